"""Every algorithm and case study against the slow, obvious implementation."""

from functools import lru_cache

import pytest
import slow_algorithms
import torch
import torch.nn.functional as F
from federations import image_federation, made_up_index, simulator_with
from torch import nn

from c2v_sim import RunConfig
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.config.improvements import CLUSTERED
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.system.seeding import seeded_construction

TOLERANCE = 1e-5
FAR = 50 * TOLERANCE  # what a term must move the model by for its test to mean something
FEDERATION = image_federation(clients=6, smallest=4)
# A model without kinks and a small rate: two float32 runs drift apart by a kink (ReLU, max-pool)
# that one of them crosses, in proportion to lr, and which one does depends on the CPU. The
# algorithms' own weights are large in turn, so that a term that is forgotten, halved or applied
# twice stands far above the tolerance.
SETTINGS = {
    "rounds": 3,
    "participation": 0.5,
    "local_epochs": 2,
    "batch_size": 8,
    "lr": 1e-2,
    "weight_decay": 0.1,
    "seed": 4,
    "lambda1": 0.3,
    "tau": 0.2,
    "server_momentum": 0.7,
    "fedprox_mu": 5.0,
    "feddyn_alpha": 2.0,
    "max_grad_norm": 10.0,
    "moon_mu": 20.0,
    "fediir_penalty": 1.0,
    "fediir_ema": 0.6,
    "server_lr": 0.02,
    "server_tau": 0.1,
}
CASE_STUDIES = ("sampling", "aggregation", "local")


class Smooth(nn.Module):
    """[B, 3, 16, 16] -> [B, 4]."""

    def __init__(self, normed):
        super().__init__()
        self.norm = nn.BatchNorm2d(3) if normed else nn.Identity()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.hidden, self.classifier = nn.Linear(64, 512), nn.Linear(512, 4)

    def features(self, x):
        x = F.avg_pool2d(torch.tanh(self.conv1(self.norm(x))), 2)
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        return torch.tanh(self.hidden(x.flatten(1)))


def model_for(changes):
    """The smooth one, unless the test names one; FedBN's has something to keep."""
    if "model" in changes:
        return None
    with seeded_construction(SETTINGS["seed"]):
        return Smooth(normed="fedbn" in (changes.get("algorithm"), changes.get("beside")))


@lru_cache
def simulated(**changes):
    model = model_for(changes)
    changes.pop("beside", None)
    config = RunConfig(**SETTINGS | changes)
    simulator = simulator_with(FEDERATION, config, model=model)
    records = list(simulator.rounds())
    simulator.close()
    return simulator, records


@lru_cache
def slowly(part="both", **changes):
    config = RunConfig(**SETTINGS | changes)
    index = made_up_index(FEDERATION)
    feature = None if part == "neither" or part == "label" else index.feature
    label = None if part == "neither" or part == "feature" else index.label
    with intra_op_threads(1):
        return slow_algorithms.run(FEDERATION, config, feature, label, model_for(changes))


def tensors_of(model):
    """In the order of an arena: parameters, statistics, counts."""
    buffers = list(model.buffers())
    return [
        *model.parameters(),
        *(b for b in buffers if b.is_floating_point()),
        *(b for b in buffers if not b.is_floating_point()),
    ]


def largest_difference(one, other):
    pairs = zip(one.global_model().values(), other.global_model().values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def check(simulator, records, slow):
    assert [r.cohort for r in records] == slow.cohorts
    for record, weights in zip(records, slow.weights, strict=True):
        assert record.weights == pytest.approx(weights, abs=1e-6)
    model = simulator.global_model()
    for (name, tensor), wanted in zip(model.items(), tensors_of(slow.model), strict=True):
        close(tensor, wanted, name)
    check_client_states(simulator, slow)


def close(got, wanted, name):
    torch.testing.assert_close(
        got, wanted.detach(), rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{name}: {text}"
    )


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


def check_client_states(simulator, slow):
    layout, algorithm, far = simulator.layout, simulator.algorithm, 1.0
    if slow.moments is not None:
        for got, wanted in zip((algorithm.m, algorithm.v), slow.moments, strict=True):
            views = [slot.view(got) for slot in layout.parameters]
            close(flat(views), flat(wanted).float(), "a moment of the server's optimiser")
    if algorithm.name == "feddyn":
        rows, slots = algorithm.h, layout.parameters
        wanted = slow.h
    elif algorithm.name == "moon":
        rows, slots = algorithm.previous, layout.parameters + layout.buffers
        wanted = {i: tensors_of(model) for i, model in slow.previous.items()}
    elif algorithm.name == "scaffold":
        rows, slots = algorithm.c_i, layout.parameters
        wanted = slow.controls
        far = simulator.config.lr  # c_i is a difference divided by lr and steps, so is its error
    else:
        return
    assert {i for i in range(6) if i in rows} == set(wanted)
    for client, tensors in wanted.items():
        row = rows.read(client, torch.empty(rows.width))
        for slot, tensor in zip(slots, tensors, strict=False):  # a row has no counts
            close(far * slot.view(row), far * tensor, f"client {client}, {slot.name}")


@pytest.mark.parametrize("improve", [(), CASE_STUDIES], ids=["plain", "improved"])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in CLUSTERED])
def test_equals_the_slow_implementation(algorithm, improve):
    simulator, records = simulated(algorithm=algorithm, improve=improve)
    slow = slowly(algorithm=algorithm, improve=improve)
    check(simulator, records, slow)
    # MOON has a model of its own; without the contrast it is trained by FedAvg.
    plain = {"moon_mu": 0.0} if algorithm == "moon" else {"algorithm": "fedavg"}
    if algorithm == "fedbn":
        plain |= {"beside": "fedbn"}  # the same model
    other = simulated(**{"algorithm": algorithm, "improve": improve} | plain)[0]
    if algorithm != "fedavg":
        assert largest_difference(simulator, other) > FAR, "the algorithm's own term did not matter"


# what is switched on -> the settings from which it must differ
VARIANTS = {
    "sampling alone": ({"improve": ("sampling",)}, {}),
    "aggregation alone": ({"improve": ("aggregation",)}, {}),
    "gamma": ({"improve": ("aggregation",), "gamma": 0.9}, {"improve": ("aggregation",)}),
    "by size": ({"sampling": "size"}, {}),
    "feature only": (
        {"improve": CASE_STUDIES, "index_part": "feature"},
        {"improve": CASE_STUDIES},
    ),
    "label only": (
        {"improve": ("sampling", "aggregation"), "index_part": "label"},
        {"improve": ("sampling", "aggregation")},
    ),
    "local alone": ({"improve": ("local",)}, {"improve": ("local",), "local_weight": 1e-9}),
    "no orthogonality": (
        {"improve": CASE_STUDIES, "omit_local_orth": True},
        {"improve": CASE_STUDIES},
    ),
    "detached": ({"improve": CASE_STUDIES, "dist_detach": True}, {"improve": CASE_STUDIES}),
    "caption weight": (
        {"improve": ("local",), "local_weight_rule": "caption"},
        {"improve": ("local",)},
    ),
    "caption weight, federated": (
        {"improve": ("local",), "local_weight_rule": "caption", "index_strategy": "federated"},
        {"improve": ("local",), "local_weight_rule": "caption"},
    ),
    # |<z_P, beta>| is a kink too: where a product crosses zero, two float32 runs drift apart.
    "cosine": (
        {"improve": ("local",), "local_orth": "cosine", "lr": 3e-3},
        {"improve": ("local",), "lr": 3e-3},
    ),
    "raw": (
        {"improve": ("local",), "local_orth": "raw", "lr": 3e-3},
        {"improve": ("local",), "lr": 3e-3},
    ),
    "weight of orth": ({"improve": ("local",), "local_orth_weight": 3.0}, {"improve": ("local",)}),
    "weight of dist": ({"improve": ("local",), "local_dist_weight": 0.3}, {"improve": ("local",)}),
    "reverse": ({"improve": CASE_STUDIES, "dist_direction": "reverse"}, {"improve": CASE_STUDIES}),
    "appendix weight": (
        {"algorithm": "feddyn", "improve": ("local",), "local_weight_rule": "appendix"},
        {"algorithm": "feddyn", "improve": ("local",)},
    ),
    "model weights": (
        {"improve": ("local",), "index": "local-model-weights"},
        {"improve": ("local",), "index": "local-model-weights", "omit_local_orth": True},
    ),
    "model weights, moon": (
        {"algorithm": "moon", "improve": ("local",), "index": "local-model-weights"},
        {
            "algorithm": "moon",
            "moon_mu": 0.0,
            "improve": ("local",),
            "index": "local-model-weights",
        },
    ),
    "feddyn, not clipped": (
        {"algorithm": "feddyn", "max_grad_norm": 1e9},
        {"algorithm": "feddyn"},
    ),
    "feddyn, momentum": (
        {"algorithm": "feddyn", "max_grad_norm": 1e9, "momentum": 0.9, "lr": 1e-3},
        {"algorithm": "fedavg", "momentum": 0.9, "lr": 1e-3},
    ),
    "scaffold, momentum": (
        {"algorithm": "scaffold", "momentum": 0.9, "lr": 1e-3},
        {"algorithm": "fedavg", "momentum": 0.9, "lr": 1e-3},
    ),
    "fednova, momentum": (
        {"algorithm": "fednova", "momentum": 0.9, "lr": 1e-3},
        {"algorithm": "fedavg", "momentum": 0.9, "lr": 1e-3},
    ),
    "beta2": (
        {"algorithm": "fedadam", "server_beta2": 0.5, "server_tau": 1e-2},
        {"algorithm": "fedadam", "server_tau": 1e-2},
    ),
    "yogi's beta2": (
        {"algorithm": "fedyogi", "server_beta2": 0.5, "server_tau": 2e-3},
        {"algorithm": "fedyogi", "server_tau": 2e-3},
    ),
    "beta1": ({"algorithm": "fedadagrad", "server_beta1": 0.0}, {"algorithm": "fedadagrad"}),
    "fediir, momentum": (
        {"algorithm": "fediir", "improve": CASE_STUDIES, "momentum": 0.9, "lr": 1e-3},
        {"algorithm": "fedavg", "improve": CASE_STUDIES, "momentum": 0.9, "lr": 1e-3},
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_the_slow_implementation(variant):
    changes, plainer = VARIANTS[variant]
    simulator, records = simulated(**changes)
    if changes.get("index") == "local-model-weights":
        part = "neither"
    else:
        part = changes.get("index_part", "both")
    check(simulator, records, slowly(part, **changes))
    assert largest_difference(simulator, simulated(**plainer)[0]) > FAR


NORMED = ["fedavgm", "feddyn", "moon", "fediir", "scaffold", "fednova", "fedadam", "fedbn"]


@pytest.mark.parametrize("algorithm", NORMED)
def test_batch_norm_statistics_are_averaged_with_the_weights(algorithm):
    changes = {
        "algorithm": algorithm,
        "model": "resnet8",
        "improve": CASE_STUDIES,
        "local_epochs": 1,
        "lr": 1e-4,
    }
    simulator, records = simulated(**changes)
    check(simulator, records, slowly(**changes))
    assert [name for name in simulator.global_model() if name.endswith("running_var")]


def test_the_parts_of_a_model_begin_alike_whatever_is_added_to_them():
    plain, local, moon = (
        simulator_with(FEDERATION, RunConfig(**SETTINGS | changes))
        for changes in ({}, {"improve": ("local",)}, {"algorithm": "moon"})
    )
    base = plain.global_model()
    assert all(torch.equal(local.global_model()[name], base[name]) for name in base)
    of_moon = moon.global_model()
    assert all(
        torch.equal(of_moon[f"base.{name}"], base[name])
        for name in base
        if "classifier" not in name
    )
