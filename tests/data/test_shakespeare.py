"""LEAF's Shakespeare: parsing a miniature play, the split, the whole text, and a run on it."""

import itertools
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import real_data_dir

from c2v_sim import Simulator
from c2v_sim.config import make_config
from c2v_sim.data.load import load_dataset
from c2v_sim.data.sources import made_up_speech, shakespeare
from c2v_sim.data.sources.plays import parse
from c2v_sim.data.sources.shakespeare import (
    ALPHABET,
    UNKNOWN,
    WINDOW,
    encode,
    sample_roles,
    split,
)
from c2v_sim.run.build import build_federation
from c2v_sim.system.errors import DataError, Unreachable

MINI = """Header line
THE SONNETS

by William Shakespeare

  From fairest creatures. This is no speech.



1601

THE SMALL PLAY, A TEST

by William Shakespeare

SCENE: a room

ACT I
  Ann. First  line of Ann,
    and more of it.
                       [Enter BOB]
  BOB. Short.
  ANN. Her third line.
  Bob Smith. One.
    Two.

    Three after a blank line.
No indentation: nobody's.
    Four.

1602

A MONOLOGUE

by William Shakespeare

  Eve. I am alone,
    quite alone,
    and left out.

1603


THE COMEDY OF ERRORS


by William Shakespeare

ACT I. SCENE 1
DUKE. Speak,
and be brief.
Very brief.
<stage direction>
Nobody says this.
ACT II. Nor this.
This neither.
AEGEON. One.
Two.
Three.
"""


def test_parsing_a_miniature_edition():
    roles = parse(MINI)
    small = "THE_SMALL_PLAY_A_TEST"  # the comma and its space: one underscore each, made one
    assert roles == {
        # Names are upper-cased; indentation deeper than four stays, then runs of spaces shrink.
        f"{small.replace('_A_TEST', '__A_TEST')}_ANN": "First line of Ann, and more of it. [Enter "
        "BOB] Her third line. ",
        f"{small.replace('_A_TEST', '__A_TEST')}_BOB_SMITH": "One. Two. Three after a blank line. "
        "Four. ",
        "THE_COMEDY_OF_ERRORS_DUKE": "Speak, and be brief. Very brief. ",
        "THE_COMEDY_OF_ERRORS_AEGEON": "One. Two. Three. ",
    }
    assert parse(MINI.replace("\n", "\r\n")) == roles


def test_a_play_without_title_is_an_error():
    with pytest.raises(DataError, match=r"line 10 .* has no title"):
        parse("x\nby William Shakespeare" + "\n" * 8 + "by William Shakespeare\n")


def test_the_alphabet_has_80_symbols_and_others_are_the_last():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert encode(ALPHABET).tolist() == list(range(80))
    assert encode("a~é…\x00").tolist() == [ALPHABET.index("a"), *[UNKNOWN] * 4]


role_texts = st.dictionaries(
    st.text("ABC_", min_size=1, max_size=4),
    st.integers(0, 700).map(lambda n: "".join(itertools.islice(itertools.cycle("to be, or "), n))),
    min_size=1,
    max_size=6,
)


@given(role_texts, st.floats(0.05, 1), st.integers(0, 500), st.floats(0.1, 0.95), st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_the_split_is_the_naive_one(roles, fraction, least, train_fraction, seed):
    options = {"min_samples": least, "train_fraction": train_fraction, "seed": seed}
    taken = sample_roles({r: len(t) - WINDOW for r, t in roles.items()}, fraction, seed)
    total = sum(max(0, len(t) - WINDOW) for t in roles.values())
    assert sum(taken.values()) == int(fraction * total)
    assert sum(n < len(roles[r]) - WINDOW for r, n in taken.items()) <= 1  # one role is cut
    expected = {}
    for role, n in taken.items():
        text = roles[role]
        samples = [(text[i : i + WINDOW], text[i + WINDOW]) for i in range(n)]
        n_train = max(1, int(train_fraction * n))
        if n >= least and samples[n_train + WINDOW - 1 :]:
            expected[role] = samples[:n_train], samples[n_train + WINDOW - 1 :]
    if not expected:
        with pytest.raises(DataError, match="raise sample_fraction or lower the others"):
            split(roles, sample_fraction=fraction, **options)
        return
    got = split(roles, sample_fraction=fraction, **options)
    assert got.names == tuple(sorted(expected))
    letters = "".join(ALPHABET[k] for k in got.text)
    for part, (starts, owner) in enumerate(
        ((got.x_train, got.client_train), (got.x_test, got.client_test))
    ):
        for i, role in enumerate(got.names):
            of_role = [(letters[s : s + WINDOW], letters[s + WINDOW]) for s in starts[owner == i]]
            assert of_role == expected[role][part]


def covered(text_length, starts):
    """Which characters lie in some window."""
    inside = np.zeros(text_length, dtype=bool)
    inside[(starts[:, None] + np.arange(WINDOW)).ravel()] = True
    return inside


def test_no_character_of_a_test_window_is_inside_a_training_window():
    parts = split(
        made_up_speech.speech(roles=12, words=300),
        sample_fraction=0.7, min_samples=1, train_fraction=0.8, seed=3,
    )  # fmt: skip
    train, test = (covered(len(parts.text), x) for x in (parts.x_train, parts.x_test))
    assert train.any()
    assert test.any()
    assert not (train & test).any()
    # Nothing is wasted: the first test window follows the last training window at once.
    for i in range(len(parts.names)):
        last = parts.x_train[parts.client_train == i].max() + WINDOW
        assert parts.x_test[parts.client_test == i].min() == last


def test_a_role_needs_396_samples_at_the_default_split():
    options = {"sample_fraction": 1.0, "min_samples": 40, "train_fraction": 0.8, "seed": 0}
    assert split({"A": "x" * (396 + WINDOW)}, **options).x_test.tolist() == [395]
    with pytest.raises(DataError, match="of 1 sampled roles none"):
        split({"A": "x" * (395 + WINDOW)}, **options)


def test_the_order_of_the_roles_depends_on_the_seed_alone():
    sizes = {f"R{i}": 100 + i for i in range(50)}
    backwards = dict(reversed(sizes.items()))
    assert sample_roles(sizes, 0.2, 5) == sample_roles(backwards, 0.2, 5)
    assert sample_roles(sizes, 0.2, 5) != sample_roles(sizes, 0.2, 6)


# ---- files ----------------------------------------------------------------------------------


@pytest.fixture
def mini(monkeypatch):
    """The miniature edition, long enough to be split, as if it were the published one."""
    text = MINI.replace("Her third line.", "word " * 200).replace("Four.", "other " * 200)
    monkeypatch.setattr(shakespeare, "ROLES_SHA256", shakespeare.roles_hash(parse(text)))
    return text


def test_text_and_archive_give_the_same_data(mini, tmp_path):
    loaded = []
    for name in ("shakespeare.txt", "1994-01-100.zip"):
        folder = tmp_path / name.split(".")[0]
        folder.mkdir()
        if name.endswith("zip"):
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr("100.txt", mini.replace("\n", "\r\n"))
        else:
            (folder / name).write_text(mini, encoding="utf-8-sig")
        loaded.append(load_dataset("shakespeare", data_dir=folder, sample_fraction=1.0))
        assert loaded[-1].source.startswith(name)
    one, two = loaded
    assert one.sha256 == two.sha256
    assert [name.rsplit("_", 1)[1] for name in one.client_names] == ["ANN", "SMITH"]
    assert one.classes == 80
    assert one.standin_for is None
    rows = one.x_train.index_select(0, torch.arange(len(one.y_train)))
    same = one.client_train[1:] == one.client_train[:-1]
    # A role's next window ends with the character that was the target before.
    assert torch.equal(one.y_train[:-1][same], rows[1:, -1].long()[same])
    other = load_dataset("shakespeare", data_dir=folder, sample_fraction=1.0, train_fraction=0.7)
    assert other.sha256 != one.sha256


def test_another_or_damaged_text_is_refused(mini, tmp_path):
    (tmp_path / "shakespeare.txt").write_text(mini.replace("Speak", "Shout"))
    with pytest.raises(DataError, match=r"shakespeare.txt is not the edition that LEAF uses"):
        load_dataset("shakespeare", data_dir=tmp_path)
    (tmp_path / "shakespeare.txt").unlink()
    (tmp_path / "1994-01-100.zip").write_bytes(b"PK no archive")
    with pytest.raises(DataError, match=r"cannot read .*1994-01-100.zip \(truncated or damaged"):
        load_dataset("shakespeare", data_dir=tmp_path)


def test_a_download_with_other_content_is_not_kept(mini, tmp_path, monkeypatch):
    def fetch(url, path, md5, progress):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("100.txt", "<html>moved</html>")
        return path

    monkeypatch.setattr(shakespeare, "fetch", fetch)
    with pytest.raises(DataError, match="is not the edition that LEAF uses"):
        load_dataset("shakespeare", data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def offline(monkeypatch):
    def fetch(url, path, md5, progress):
        raise Unreachable(f"{url}: no network")

    monkeypatch.setattr(shakespeare, "fetch", fetch)


def test_offline_a_stand_in_says_so_or_is_refused(offline, tmp_path, capsys):
    data = load_dataset("shakespeare", data_dir=tmp_path)
    assert data.name == "shakespeare-standin(made-up-speech)"
    assert data.standin_for == "shakespeare"
    assert "STAND-IN DATA: shakespeare is not in" in capsys.readouterr().err
    assert len(data.client_names) > 20
    with pytest.raises(DataError, match=r"no network.*place shakespeare.txt"):
        load_dataset("shakespeare", data_dir=tmp_path, require_real_data=True)
    with pytest.raises(DataError, match="sample_fraction, not train_size"):
        load_dataset("shakespeare", data_dir=tmp_path, train_size=5)


# ---- the whole text -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_roles():
    found = shakespeare.find(real_data_dir("shakespeare.txt"))
    assert found is not None
    return found[0]


def test_the_whole_text_has_the_published_roles_and_samples(real_roles):
    windows = [len(text) - WINDOW for text in real_roles.values()]
    assert sum(n > 0 for n in windows) == 1129  # LEAF's count of users
    assert sum(n for n in windows if n > 0) == 4_226_158
    assert set("".join(real_roles.values())) <= set(ALPHABET)


@pytest.mark.parametrize(
    ("fraction", "least", "train_fraction", "expected"),
    [
        (1.0, 0, 0.9, (660, 3_678_451, 356_921)),  # LEAF's README: 660 users remain
        (1.0, 40, 0.8, (799, 3_335_126, 771_050)),
        (0.1, 40, 0.8, (57, 335_376, 79_369)),
    ],
)
def test_counts_of_users_and_samples(real_roles, fraction, least, train_fraction, expected):
    parts = split(
        real_roles,
        sample_fraction=fraction,
        min_samples=least,
        train_fraction=train_fraction,
        seed=0,
    )
    assert (len(parts.names), len(parts.x_train), len(parts.x_test)) == expected
    if fraction < 1:
        train, test = (covered(len(parts.text), x) for x in (parts.x_train, parts.x_test))
        assert not (train & test).any()


# ---- a run ----------------------------------------------------------------------------------


class BagOfCharacters(torch.nn.Module):
    """The smallest model of a window: the mean of its symbols' vectors and the last one."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(80, 16)
        self.classifier = torch.nn.Linear(32, 80)

    def features(self, x):
        vectors = self.embedding(x)
        return torch.cat([vectors.mean(1), vectors[:, -1]], dim=1)

    def forward(self, x):
        return self.classifier(self.features(x))


def test_roles_train_and_their_next_characters_are_learned(offline, tmp_path, monkeypatch):
    few = made_up_speech.speech(roles=10, words=200)
    monkeypatch.setattr(made_up_speech, "speech", lambda: few)
    config = make_config(
        {
            "dataset": "shakespeare", "data_dir": str(tmp_path), "sample_fraction": 1.0,
            "rounds": 4, "local_epochs": 1, "participation": 0.5, "batch_size": 32, "lr": 1.0,
        }
    )  # fmt: skip
    federation, config = build_federation(config)
    assert config.partition == "natural"
    assert config.clients == federation.partition.clients == 10
    torch.manual_seed(0)
    simulator = Simulator(federation, config, model=BagOfCharacters())
    result = simulator.run()
    simulator.close()
    share = torch.bincount(federation.dataset.y_test).max() / len(federation.dataset.y_test)
    assert result.final.accuracy > share + 0.05  # better than always the commonest character


def test_more_clients_than_roles_is_an_error(offline, tmp_path):
    wanted = {"dataset": "shakespeare", "data_dir": str(tmp_path), "clients": 7}
    with pytest.raises(ValueError, match=r"natural: the data has clients=\d+, got clients=7"):
        build_federation(make_config(wanted))
