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

from c2v_sim import Federation, RunConfig
from c2v_sim.models import build_model
from c2v_sim.partition import make_partition
from c2v_sim.seeding import seeded_construction


@dataclass(frozen=True)
class Case:
    """One row of the table; sizes are such that a round takes a second or two on two cores."""

    model: str
    samples: int
    clients: int
    cohort: int
    classes: int = 10
    shape: tuple[int, ...] = (32, 32, 3)
    tokens: bool = False  # the data is whole numbers below `classes`
    uneven: bool = True  # else every client has samples / clients
    epochs: int = 1
    batch_size: int = 50


CASES = {
    "cnn": Case("cnn", samples=20_000, clients=100, cohort=10),
    "resnet8": Case("resnet8", samples=8_000, clients=50, cohort=10),
    "resnet18": Case("resnet18", samples=1_000, clients=20, cohort=5),
    "lstm": Case(
        "lstm", samples=4_000, clients=50, cohort=10, classes=80, shape=(80,), tokens=True
    ),
    "linear": Case("linear", samples=40_000, clients=100, cohort=10, shape=(784,)),
    # What is left when a step costs next to nothing.
    "overhead": Case(
        "linear", 20_000, clients=1_000, cohort=100, shape=(784,), uneven=False, batch_size=10
    ),
}


class TokenLstm(nn.Module):
    """Next-character model of LEAF: embedding 8, two LSTM layers of 256, 80 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(256, 80)

    def features(self, x: Tensor) -> Tensor:  # tokens as floats [B, 80] -> [B, 256]
        return self.lstm(self.embedding(x.long()))[0][:, -1]

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def build(case: Case, seed: int = 0) -> nn.Module:
    """The case's model; every contestant starts from these weights."""
    if case.model == "lstm":
        with seeded_construction(seed):
            return TokenLstm()
    return build_model(case.model, classes=case.classes, input_shape=case.shape, seed=seed)


def federation(case: Case, seed: int = 0) -> Federation:
    """Noise with balanced labels, dealt to the case's clients."""
    g = np.random.default_rng(seed)
    n, test = case.samples, max(200, case.clients)
    y, y_test = np.arange(n) % case.classes, np.arange(test) % case.classes
    owner, owner_test = np.arange(n) % case.clients, np.arange(test) % case.clients

    def inputs(count: int) -> np.ndarray:
        if case.tokens:
            return g.integers(0, case.classes, (count, *case.shape)).astype(np.float32)
        if len(case.shape) == 3:
            return g.integers(0, 256, (count, *case.shape), dtype=np.uint8)
        return g.standard_normal((count, *case.shape), dtype=np.float32)

    even = Federation.from_arrays(
        inputs(n),
        y,
        owner,
        x_test=inputs(test),
        y_test=y_test,
        client_ids_test=owner_test,
        class_names=[str(c) for c in range(case.classes)],
        name="noise",
    )
    if not case.uneven:
        return even
    options = {"clients": case.clients, "alpha": 0.1, "lda": "per_class", "seed": seed}
    return Federation(even.dataset, make_partition("dirichlet", y, y_test, **options))


def config(case: Case, lanes: int) -> RunConfig:
    """Local training of the case; the last round, the only one evaluated, is never reached."""
    return RunConfig(
        model="linear" if case.model == "lstm" else case.model,
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
    """The training inputs as a baseline keeps them: float32, images [N, C, H, W]."""
    dataset = federation.dataset
    if dataset.x_train.dtype != torch.uint8:
        return dataset.x_train
    mean, std = torch.tensor(dataset.mean), torch.tensor(dataset.std)
    x = (dataset.x_train.float() / 255 - mean) / std
    return x.permute(0, 3, 1, 2).contiguous()


def flops_per_sample(case: Case) -> float:
    """Multiplications and additions of a forward and backward pass, counted by torch.

    oneDNN's LSTM is one call that the counter does not know, so it counts torch's own operators.
    """
    model, batch = build(case), 2
    shape = (case.shape[2], *case.shape[:2]) if len(case.shape) == 3 else case.shape
    x, y = torch.ones(batch, *shape), torch.zeros(batch, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # leaving flags() speaks of TF32 on Intel GPUs
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            F.cross_entropy(model(x), y).backward()
    return counter.get_total_flops() / batch
