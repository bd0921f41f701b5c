"""Whether training with our convolutions can be told from training with torch's: curves over seeds.

    python bench/conv_curves.py [--models cnn resnet8] [--seeds N] [--rounds N] [--samples N]

The same ten clients (images of `shapes`, Dirichlet 1), cohorts and starts, once with `conv="auto"`,
once with `conv="torch"`. For each round: the accuracy on the test images with torch, mean and
standard deviation over seeds, then auto less torch: the mean over seeds, the largest of one seed.
Rounding makes the two runs of one seed part; whether that matters shows where the mean of the
differences is small beside the deviation over seeds.
"""

import argparse
import statistics

from c2v_sim import Federation, RunConfig, Simulator, load_dataset, make_partition
from c2v_sim.system.machine import cpu_name


def curve(federation: Federation, model: str, conv: str, seed: int, rounds: int) -> list[float]:
    """Accuracy on all test images after each round, in percent."""
    config = RunConfig(
        model=model, conv=conv, seed=seed, rounds=rounds, eval_every=1, participation=0.5,
        local_epochs=2, batch_size=25, lr=0.05, lanes=1, device="cpu",
    )  # fmt: skip
    simulator = Simulator(federation, config)
    records = list(simulator.rounds())
    simulator.close()
    return [100 * (r.accuracy_global or 0.0) for r in records]


def clients(samples: int, seed: int) -> Federation:
    dataset = load_dataset("shapes", train_size=samples, test_size=samples // 3)
    partition = make_partition(
        "dirichlet", dataset.y_train.numpy(), dataset.y_test.numpy(), clients=10, alpha=1.0,
        seed=seed,
    )  # fmt: skip
    return Federation(dataset, partition)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=["cnn", "resnet8"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--samples", type=int, default=3_000)
    options = parser.parse_args()
    print(cpu_name())
    for model in options.models:
        curves: dict[str, list[list[float]]] = {"auto": [], "torch": []}
        for seed in range(options.seeds):
            federation = clients(options.samples, seed)
            for conv, found in curves.items():
                found.append(curve(federation, model, conv, seed, options.rounds))
        for t in range(options.rounds):
            auto, plain = ([c[t] for c in curves[conv]] for conv in ("auto", "torch"))
            apart = [a - b for a, b in zip(auto, plain, strict=True)]
            print(
                f"{model:8} round {t + 1:2}: torch {statistics.mean(plain):5.2f} ± "
                f"{statistics.stdev(plain):4.2f} %, "
                f"auto less torch {statistics.mean(apart):+5.2f}, "
                f"largest {max(apart, key=abs):+5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
