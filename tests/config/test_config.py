import dataclasses
import tomllib

import pytest

from c2v_sim.config import FIELDS, RunConfig, index_settings, make_config, saved_config, to_toml
from c2v_sim.index.config import IndexConfig, name_in_run
from c2v_sim.run.presets import PRESETS, preset
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import Affects, check, facts_of


def test_defaults_are_the_specifications():
    config = RunConfig()
    assert (config.clients, config.alpha, config.participation) == (100, 0.1, 0.1)
    assert (config.rounds, config.local_epochs, config.batch_size) == (100, 5, 128)
    assert (config.lr, config.momentum, config.weight_decay) == (0.01, 0.0, 5e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_toml_round_trip(name):
    config = make_config({"improve": ["sampling"]}, preset(name))
    assert make_config(tomllib.loads(to_toml(config))) == config


def test_the_presets_use_the_index_and_improve_none_is_the_plain_algorithm():
    for name in PRESETS:
        assert set(preset(name).improve) <= set(FIELDS["improve"].choices)
        assert preset(name).improve
        for none in ((), [], ["none"], "none"):
            plain = make_config({"improve": none}, preset(name))
            assert plain.improve == ()
            # of the index's settings, all without effect now, nothing is left
            assert all(
                getattr(plain, n) == s.default for n, s in FIELDS.items() if "improve" in s.needs
            )
    assert RunConfig().improve == ()  # of a program's own runs
    assert make_config({}, preset("quick")).index_epochs < RunConfig().index_epochs
    with pytest.raises(ConfigError, match=r"improve must be one of sampling, .*got 'none'"):
        make_config({"improve": ["none", "local"]}, preset("quick"))


def test_a_text_that_is_none_stays_a_text():
    assert make_config({"augment": "none"}).augment == "none"


def test_paper_preset():
    config = preset("paper")
    assert (config.dataset, config.model, config.norm) == ("cifar10", "resnet18", "batch")
    assert (config.rounds, config.local_epochs, config.batch_size) == (100, 5, 128)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"clients": -3}, "clients must be at least 0"),
        ({"seed": 2**70}, rf"seed must be in \[0, {2**64 - 1}\], got {2**70}"),
        ({"improve": ("sampling", "sampling")}, "improve must name each of its values once"),
        ({"clients": 0}, "clients must be at least 1 with partition = dirichlet, got 0"),
        ({"sample_fraction": 0.0}, r"sample_fraction must be in \(0, 1\], got 0.0"),
        ({"train_fraction": 1.0}, r"train_fraction must be in \(0, 1\), got 1.0"),
        ({"participation": 0.0}, r"participation must be in \(0, 1\], got 0.0"),
        ({"participation": 1.5}, r"participation must be in \(0, 1\]"),
        ({"alpha": 0.0}, "alpha must be a positive number"),
        ({"alpha": float("nan")}, "alpha must be a positive number"),
        ({"lr": float("inf")}, "lr must be a positive number"),
        ({"momentum": float("nan")}, "momentum must be at least 0"),
        ({"momentum": 5.0}, r"momentum must be in \[0, 1\), got 5.0"),
        ({"algorithm": "fedadam", "server_tau": 1e300}, r"server_tau must be in \(0, 1e\+06\]"),
        ({"improve": ["sampling"], "sampling": "size"}, "sampling = size has no effect"),
        ({"index_epochs": 7}, "index_epochs = 7 has no effect with improve = nothing"),
        (
            {"improve": ["local"], "index_clip_weights": "ViT-B-32.pt"},
            "index_clip_weights = ViT-B-32.pt has no effect with index_encoder = builtin",
        ),
        ({"dataset": "mnist"}, "dataset must be one of shapes, cifar10, .*got 'mnist'"),
        ({"model": "vgg"}, "model must be one of cnn, resnet8"),
        ({"clients": "many"}, "clients must be a whole number, got 'many'"),
        ({"clients": True}, "clients must be a whole number, got True"),
        ({"clients": 2.5}, "clients must be a whole number"),
        ({"improve": ["speed"]}, "improve must be one of sampling, aggregation, local"),
        (
            {"improve": ["sampling"], "index": "local-model-weights"},
            "needs an index from before training; local-model-weights serves improve = local",
        ),
        ({"improve": ["local"], "index_part": "label"}, "index_part = label goes with"),
        (
            {"improve": ["local"], "index": "label-histogram"},
            "index = label-histogram has no feature part",
        ),
        ({"improve": ["local"], "index_shuffled": True}, "index_shuffled = True has no effect"),
        ({"index_strategy": "federated"}, "index_strategy .* has no effect with improve = nothing"),
        ({"improve": ["local"], "tau": 0.5}, "tau = 0.5 has no effect with improve = local"),
        ({"feddyn_alpha": 0.5}, "feddyn_alpha .* goes with algorithm = feddyn"),
        ({"gamma": 1.5, "improve": ["aggregation"]}, r"gamma must be in \[0, 1\]"),
        ({"train_size": 10, "dataset": "cifar10"}, "train_size and test_size are for shapes"),
        ({"client": 10}, "unknown setting 'client'; did you mean clients?"),
    ],
)
def test_bad_settings_are_refused_with_what_is_allowed(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.5, "partition": "iid"}, "alpha = 0.5 has no effect with partition = iid"),
        ({"norm": "group", "model": "cnn"}, "it goes with model = resnet8 or resnet18"),
        ({"shards_per_client": 3}, "it goes with partition = shards"),
        ({"clients_per_domain": 10}, "it goes with partition = by-domain"),
        ({"lda": "prior", "partition": "shards"}, "lda = prior has no effect"),
        ({"min_samples": 9}, "it goes with dataset = shakespeare"),
        ({"dataset": "shakespeare", "augment": "crop-flip"}, "it goes with dataset = shapes or"),
        ({"dataset": "shakespeare", "alpha": 0.5}, "no effect with partition = natural"),
    ],
)
def test_settings_without_effect_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(settings)


def test_a_default_value_typed_by_hand_is_refused_where_it_has_no_effect():
    make_config({"alpha": 0.1, "partition": "iid"})  # a file may list every field
    with pytest.raises(ConfigError, match="alpha"):
        make_config({"alpha": 0.1, "partition": "iid"}, flags=["alpha"])


def test_data_with_its_own_clients_keeps_them_unless_told_otherwise():
    own = make_config({"dataset": "shakespeare"}, preset("quick"))
    assert (own.partition, own.clients, own.model) == ("natural", 0, "lstm")
    assert make_config({"dataset": "shakespeare"}, preset("paper")).model == "lstm"
    mixed = make_config({"dataset": "shakespeare", "partition": "iid", "clients": 7})
    assert (mixed.partition, mixed.clients) == ("iid", 7)
    assert make_config({"rounds": 3}, dataclasses.replace(own, clients=57)).clients == 57


@pytest.mark.parametrize("chosen", [{"partition": "iid"}, {"dataset": "shakespeare"}])
def test_a_saved_configuration_is_accepted_again(chosen):
    config = make_config(chosen, preset("quick"))  # whose alpha has no effect then
    assert make_config(tomllib.loads(to_toml(config))) == config


def test_a_run_of_an_earlier_version_may_hold_settings_without_effect(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("index_epochs = 7\nrounds = 3\n")
    assert saved_config(file) == RunConfig(rounds=3, conv="torch")


def test_all_settings_of_an_index_are_settings_of_a_run():
    in_run = {name: name_in_run(name) for name in facts_of(IndexConfig)}
    assert set(in_run.values()) <= set(FIELDS)
    assert [n for n, other in in_run.items() if n == other] == [
        "index",
        "index_lr",
        "seed",
        "lanes",
        "device",
    ]
    assert index_settings(RunConfig()) == IndexConfig()
    given = {"index_hidden": 64, "index_upload": 7, "index_lr": 0.1, "seed": 3, "lanes": 2}
    config = index_settings(make_config({"improve": ["local"], **given}))
    assert config == IndexConfig(hidden=64, upload=7, index_lr=0.1, seed=3, lanes=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"index_hidden": 64}, "index_hidden = 64 has no effect with improve = nothing"),
        ({"improve": ["local"], "index_batch_size": 1}, "index_batch_size must be at least 2"),
        (
            {"improve": ["local"], "index_upload": 7, "index_strategy": "federated"},
            "index_upload = 7 has no effect with index_strategy = federated",
        ),
        (
            {"improve": ["local"], "index_patience": 7, "index": "class-prototypes"},
            "index_patience = 7 has no effect with index = class-prototypes",
        ),
    ],
)
def test_settings_of_an_index_are_checked_under_their_names_in_a_run(given, message):
    with pytest.raises(ConfigError, match=message):
        make_config(given)


def test_what_a_resume_may_change():
    free = {name for name, setting in FIELDS.items() if setting.free}
    assert free == {"lanes", "data_dir", "require_real_data", "checkpoint_every", "state_memory"}
    assert {name for name, setting in facts_of(IndexConfig).items() if setting.free} == {"lanes"}


def test_clients_and_clients_per_domain_are_not_typed_together():
    given = {"partition": "by-domain", "clients_per_domain": 2, "clients": 12}
    assert make_config(given).clients == 12  # as a saved configuration has them
    with pytest.raises(ConfigError, match="clients = 12 has no effect with clients_per_domain = 2"):
        make_config(given, flags=given)


@pytest.mark.parametrize("kind", [RunConfig, IndexConfig])
def test_every_field_says_what_it_is(kind):
    for name, setting in facts_of(kind).items():  # which refuses a field without facts
        assert setting.name == name
        assert setting.help
        assert setting.section
        assert setting.affects & (Affects.RESULT | Affects.BITS | Affects.PLACE), name
        assert set(setting.needs) <= set(facts_of(kind)), name
        check(setting, setting.default)
        for other, allowed in setting.needs.items():
            assert set(allowed) <= set(facts_of(kind)[other].choices), name


def test_a_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().rounds = 3  # type: ignore[misc]


def test_settings_of_dsa_ign_go_with_it_alone():
    given = {"improve": ["local"], "index_omit_loss": ["div"]}
    assert make_config(given).index_omit_loss == ("div",)
    refused = "index_omit_loss = div has no effect with index = feature-average; it goes with"
    with pytest.raises(ConfigError, match=f"{refused} index = dsa-ign"):
        make_config(given | {"index": "feature-average"})
    with pytest.raises(ConfigError, match="index_decoder = mlp has no effect with improve"):
        make_config({"index_decoder": "mlp"})


def test_a_run_from_before_the_forms_of_l_orth_keeps_the_cosine(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('improve = ["local"]\nlocal_weight_rule = "caption"\n')
    assert saved_config(file).local_orth == "cosine"
    assert saved_config(file).local_weights == (5.0, 5.0)
    file.write_text('improve = ["local"]\nlocal_orth = "raw"\n')
    assert saved_config(file).local_orth == "raw"
    file.write_text("rounds = 3\n")
    assert saved_config(file) == RunConfig(rounds=3, conv="torch")


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, (1.0, 1.0)),
        ({"local_weight": 2.0}, (2.0, 2.0)),
        ({"local_weight": 2.0, "local_orth_weight": 3.0}, (3.0, 2.0)),
        ({"local_dist_weight": 0.0}, (1.0, 0.0)),
        ({"omit_local_orth": True, "local_orth_weight": 3.0}, (0.0, 1.0)),
        ({"local_weight_rule": "caption"}, (5.0, 5.0)),
        ({"local_weight_rule": "caption", "index_strategy": "federated"}, (1.0, 1.0)),
    ],
)
def test_the_two_local_terms_have_weights_of_their_own(settings, weights):
    assert make_config({"improve": ["local"]} | settings).local_weights == weights
