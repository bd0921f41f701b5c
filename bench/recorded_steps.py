"""How many kinds of step the lanes of a GPU record on uneven clients, and what that spares.

    python bench/recorded_steps.py [--data-dir DIR]

Dirichlet by class, 100 clients of CIFAR-10, batches of 128: every client's last batch has a length
of its own. The rounds of a run are dealt to the lanes of training/cuda_lane.py, whose steps do
nothing and whose graphs are counted: steps that ran operator by operator, that were recorded, that
were replayed, and how many of the samples that steps compute are padding. Nothing is timed.
"""

import argparse
import heapq
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn

from c2v_sim.data.dirichlet import LDA
from c2v_sim.data.load import load_dataset
from c2v_sim.training.arena import layout_of
from c2v_sim.training.cuda_lane import CudaLane
from c2v_sim.training.local_training import batch_bounds, padded_length

CLIENTS, COHORT, LANES, EPOCHS, BATCH, ROUNDS = 100, 10, 5, 5, 128, 100
LENGTHS = {  # of a last batch of n samples
    "as they are": lambda n, longest: n,
    "a few lengths": padded_length,
    "one length": lambda n, longest: longest,
}


class Counted:
    """In place of torch.cuda: graphs that do nothing, and are counted."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def CUDAGraph(self) -> "Counted":
        return self

    def capture_begin(self, **how: object) -> None:
        self.seen["recorded"] += 1

    def replay(self) -> None:
        self.seen["replayed"] += 1

    def capture_end(self) -> None:
        self.seen["run"] -= 1  # recording calls the step, and runs nothing

    def step(self, ids: torch.Tensor) -> None:
        self.seen["run"] += 1

    def Stream(self, device: object) -> None: ...
    def register_generator_state(self, generator: object) -> None: ...
    def graph_pool_handle(self) -> None: ...
    def stream(self, stream: object) -> nullcontext:
        return nullcontext()


def count(sizes: np.ndarray, length_of) -> tuple[Counter, int, float]:
    """What the lanes did, how many lengths there were, and the share of padding."""
    cuda, longest = Counted(), min(BATCH, int(sizes.max()))
    module = nn.Linear(1, 1)
    device = torch.device("cpu")
    lanes = [CudaLane(module, layout_of(module), device, cuda=cuda) for _ in range(LANES)]
    for lane in lanes:
        lane.prepare(1, capturable=True)
    lengths, real, computed = set(), 0, 0
    random = np.random.default_rng(0)
    for _ in range(ROUNDS):
        free = [(0, i) for i in range(LANES)]  # a heap: the largest client first, as in a round
        for n in sorted(sizes[random.choice(CLIENTS, COHORT, replace=False)], reverse=True):
            load, i = heapq.heappop(free)
            heapq.heappush(free, (load + int(n), i))
            batches = [end - begin for begin, end in batch_bounds(int(n), BATCH)]
            padded = [*batches[:-1], length_of(batches[-1], longest)]
            lengths.update(padded)
            real, computed = real + EPOCHS * sum(batches), computed + EPOCHS * sum(padded)
            for length in EPOCHS * padded:
                lanes[i].step(cuda.step, torch.zeros(length, dtype=torch.int64))
    return cuda.seen, len(lengths), 1 - real / computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    data = load_dataset("cifar10", data_dir=parser.parse_args().data_dir)
    print(f"{data.name}; {CLIENTS} clients, {COHORT} a round on {LANES} lanes, {EPOCHS} epochs, "
          f"batch {BATCH}, {ROUNDS} rounds")  # fmt: skip
    print("| alpha | last batches | lengths | steps run | recorded | replayed | padding |")
    print("|---|---|---|---|---|---|---|")
    y, y_test = (t.numpy() for t in (data.y_train, data.y_test))
    for alpha in (0.1, 0.5):
        dealt = LDA["per_class"](y, y_test, CLIENTS, np.random.default_rng(0), alpha)
        sizes = np.array([len(ids) for ids in dealt[0]])
        for name, length_of in LENGTHS.items():
            seen, lengths, padding = count(sizes, length_of)
            steps = " | ".join(f"{seen[what]:,}" for what in ("run", "recorded", "replayed"))
            print(f"| {alpha} | {name} | {lengths} | {steps} | {padding:.1%} |")


if __name__ == "__main__":
    main()
