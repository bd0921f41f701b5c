"""What bench/rounds.py trains: a model, synthetic data of its shape, and uneven clients.

Times do not depend on what the pixels show, so the data is noise; the sizes of the clients are
what matters, and they follow Dirichlet(0.1) cut per class.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from c2v_sim import Dataset, Federation, RunConfig
from c2v_sim.data.partition import make_partition
from c2v_sim.data.text_windows import Windows
from c2v_sim.models import build_model

TEST = 1_000  # samples of the test set, which nobody looks at


@dataclass(frozen=True)
class Case:
    """One row of the table; sizes are such that a round takes a second or two on two cores."""

    model: str
    samples: int
    clients: int
    cohort: int
    classes: int = 10
    shape: tuple[int, ...] = (32, 32, 3)
    uneven: bool = True  # else every client has samples / clients
    epochs: int = 1
    batch_size: int = 50


CASES = {
    "cnn": Case("cnn", samples=20_000, clients=100, cohort=10),
    "resnet8": Case("resnet8", samples=8_000, clients=50, cohort=10),
    "resnet18": Case("resnet18", samples=1_000, clients=20, cohort=5),
    "lstm": Case("lstm", samples=4_000, clients=50, cohort=10, classes=80, shape=(80,)),
    "linear": Case("linear", samples=40_000, clients=100, cohort=10, shape=(784,)),
    # What is left when a step costs next to nothing.
    "overhead": Case(
        "linear", 20_000, clients=1_000, cohort=100, shape=(784,), uneven=False, batch_size=10
    ),
}


def build(case: Case, seed: int = 0) -> nn.Module:
    """The case's model; every contestant starts from these weights."""
    return build_model(case.model, classes=case.classes, input_shape=case.shape, seed=seed)


def federation(case: Case, seed: int = 0) -> Federation:
    """Noise with balanced labels, dealt to the case's clients."""
    g = np.random.default_rng(seed)
    x, x_test = (_inputs(case, n, g) for n in (case.samples, TEST))
    y, y_test = (np.arange(n) % case.classes for n in (case.samples, TEST))
    images = len(case.shape) == 3
    dataset = Dataset(
        name="noise",
        x_train=x,
        y_train=torch.from_numpy(y),
        x_test=x_test,
        y_test=torch.from_numpy(y_test),
        class_names=tuple(map(str, range(case.classes))),
        mean=(0.5, 0.5, 0.5) if images else (),
        std=(0.25, 0.25, 0.25) if images else (),
        source="numpy",
        sha256="0" * 64,
    )
    kind = "dirichlet" if case.uneven else "iid"
    options = {"clients": case.clients, "alpha": 0.1, "lda": "per_class", "seed": seed}
    return Federation(dataset, make_partition(kind, y, y_test, **options))


def _inputs(case: Case, count: int, g: np.random.Generator) -> Tensor | Windows:
    if case.model == "lstm":
        (length,) = case.shape
        text = torch.from_numpy(g.integers(0, case.classes, count + length, dtype=np.uint8))
        return Windows(text, torch.arange(count), length)
    if len(case.shape) == 3:
        return torch.from_numpy(g.integers(0, 256, (count, *case.shape), dtype=np.uint8))
    return torch.from_numpy(g.standard_normal((count, *case.shape), dtype=np.float32))


def config(case: Case, lanes: int) -> RunConfig:
    """Local training of the case; the last round, the only one evaluated, is never reached."""
    return RunConfig(
        model=case.model,
        participation=case.cohort / case.clients,
        rounds=1_000_000,
        eval_every=1_000_000,
        local_epochs=case.epochs,
        batch_size=case.batch_size,
        lr=1e-3,
        momentum=0.0,
        weight_decay=5e-5,
        lanes=lanes,
        device="cpu",
    )


def normalised(federation: Federation) -> Tensor:
    """The training inputs as a baseline keeps them: images float32 [N, C, H, W], text int64."""
    dataset, x = federation.dataset, federation.dataset.x_train
    if isinstance(x, Windows):
        return x.index_select(0, torch.arange(len(x))).long()
    if x.dtype != torch.uint8:
        return x
    x = (x.float() / 255 - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    return x.permute(0, 3, 1, 2).contiguous()


def flops_per_sample(case: Case) -> float:
    """Multiplications and additions of a forward and backward pass, counted by torch.

    oneDNN's LSTM is one call that the counter does not know, so it counts torch's own operators.
    """
    model, batch = build(case), 2
    shape = (case.shape[2], *case.shape[:2]) if len(case.shape) == 3 else case.shape
    x = torch.ones(batch, *shape, dtype=torch.long if case.model == "lstm" else torch.float32)
    y = torch.zeros(batch, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # leaving flags() speaks of TF32 on Intel GPUs
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            F.cross_entropy(model(x), y).backward()
    return counter.get_total_flops() / batch
