"""A data set of your own: arrays, a torch model and a client index from your own embeddings.

Made-up measurements: 30 stations at three sites, each site with its own calibration (feature
shift), stations with their own share of each class (label shift). The index finds the sites
without being told.

    python examples/own_dataset.py
"""

import torch
from torch import nn

from c2v_sim import Federation, IndexConfig, RunConfig, Simulator, build_index

STATIONS, SITES, SAMPLES, FEATURES, CLASSES = 30, 3, 30, 16, 4


def measurements(seed=0) -> Federation:
    """x [N, 16], y [N] and the station of each sample; a fifth of each station's is for tests."""
    g = torch.Generator().manual_seed(seed)
    station = torch.arange(STATIONS).repeat_interleave(SAMPLES)
    classes = torch.rand(STATIONS, CLASSES, generator=g)
    y = classes.multinomial(SAMPLES, replacement=True, generator=g).flatten()
    offsets = 2 * torch.randn(SITES, FEATURES, generator=g)
    signal = 0.6 * torch.randn(CLASSES, FEATURES, generator=g)
    x = offsets[station % SITES] + signal[y] + torch.randn(len(y), FEATURES, generator=g)
    names = [f"kind {c}" for c in range(CLASSES)]
    return Federation.from_arrays(x, y, station, class_names=names, seed=seed, name="stations")


class Net(nn.Module):
    """Any module with `features` and `classifier`."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU())
        self.classifier = nn.Linear(32, CLASSES)

    def features(self, x):
        return self.body(x)


def embeddings(federation, seed=0):
    """What the index sees: 512 numbers per training sample and per class, here random projections.

    Images need none of this: build_index(federation) embeds them with the builtin encoder.
    """
    g = torch.Generator().manual_seed(seed)
    x = federation.dataset.x_train
    samples = (x - x.mean(0)) / x.std(0) @ torch.randn(FEATURES, 512, generator=g)
    return samples, torch.randn(CLASSES, 512, generator=g)


def main() -> None:
    federation = measurements()
    settings = IndexConfig(epochs=4, hidden=64, dropout=0.0, batch_size=32, threads=1)
    index = build_index(federation, settings, embeddings=embeddings(federation))
    similarity, site = index.similarity("feature"), torch.arange(STATIONS) % SITES
    same = site[:, None] == site
    different_stations = ~torch.eye(STATIONS, dtype=torch.bool)
    print(f"similarity within sites {similarity[same & different_stations].mean():.2f}")
    print(f"similarity between sites {similarity[~same].mean():.2f}")

    torch.manual_seed(0)
    net = Net()
    plain = RunConfig(rounds=20, participation=0.2, local_epochs=2, batch_size=16, lr=0.05)
    steered = RunConfig(**vars(plain) | {"improve": ("sampling", "aggregation")})
    for name, config in (("plain", plain), ("with the index", steered)):
        simulator = Simulator(federation, config, model=net, index=index)
        result = simulator.run()
        simulator.close()
        print(f"{name}: best accuracy {result.best.accuracy:.3f} in round {result.best.round}")


if __name__ == "__main__":
    main()
