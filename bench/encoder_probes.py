"""How useful are an encoder's embeddings? Linear probes for class and domain, beside a floor.

    python bench/encoder_probes.py [--data DIR] [--encoder builtin …] [--train 10000] [--test 2000]

For cifar10.npz and pacs64.npz in DIR (default $C2V_DATA, then ~/.cache/c2v_shared) and for the
rendered shapes: ridge regression to one-hot targets on the 512 standardised numbers, its weight
chosen on a held-out tenth of the training part. The floor is PCA of the raw pixels (PACS at
32×32) to 512, fitted on the training part. Speed is images per second of the wall clock, and per
second of processor time (which other programs do not change).
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from c2v_sim.data.sources import shapes
from c2v_sim.index.encoders import ENCODERS, make_encoder
from c2v_sim.index.encoders.encoder import Encoder

Targets = dict[str, Tensor]
Parts = tuple[Tensor, Targets, Tensor, Targets]
Rows = tuple[Tensor, Tensor, str]  # embeddings of both parts, and their speed


def load(name: str, folder: Path, train: int, test: int) -> Parts | None:
    """Images and targets of `train` training and `test` test images; None without the file."""
    if name == "shapes":
        parts = [
            [torch.from_numpy(a) for a in shapes.render(split, n, 0)]
            for split, n in (("train", train), ("test", test))
        ]
        x, y, d = zip(*parts, strict=True)
        return x[0], {"class": y[0], "domain": d[0]}, x[1], {"class": y[1], "domain": d[1]}
    file = folder / f"{name}.npz"
    if not file.exists():
        return None
    with np.load(file) as arrays:
        if name == "cifar10":
            kinds = {"class": ("y_train", "y_test")}
            x_train, x_test = arrays["x_train"], arrays["x_test"]
            targets = {k: (arrays[a], arrays[b]) for k, (a, b) in kinds.items()}
        else:  # no official split: a fixed permutation, its end for testing
            order = np.random.default_rng(0).permutation(len(arrays["x"]))
            cut = len(order) - test
            x_train, x_test = arrays["x"][order[:cut]], arrays["x"][order[cut:]]
            named = {"class": arrays["label"][order], "domain": arrays["domain"][order]}
            targets = {k: (v[:cut], v[cut:]) for k, v in named.items()}
    tensors = {
        k: [
            torch.from_numpy(v[:n].astype(np.int64))
            for v, n in zip(pair, (train, test), strict=True)
        ]
        for k, pair in targets.items()
    }
    first, second = ({k: v[i] for k, v in tensors.items()} for i in (0, 1))
    return torch.from_numpy(x_train[:train]), first, torch.from_numpy(x_test[:test]), second


def probe(train: Tensor, y: Targets, test: Tensor, y_test: Targets) -> dict[str, float]:
    """Test accuracy of a linear classifier for every target."""
    mean, std = train.mean(0), train.std(0) + 1e-6
    x, x_test = (F.pad(((v - mean) / std).double(), (0, 1), value=1.0) for v in (train, test))
    fit = len(x) * 9 // 10
    part = x[:fit].T @ x[:fit]
    whole = part + x[fit:].T @ x[fit:]
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    result = {}
    for kind, labels in y.items():
        target = F.one_hot(labels).double()

        def held_out(ridge: float, labels: Tensor = labels, target: Tensor = target) -> float:
            weights = torch.linalg.solve(part + ridge * fit * eye, x[:fit].T @ target[:fit])
            return float((x[fit:] @ weights).argmax(1).eq(labels[fit:]).double().mean())

        ridge = max((1e-4, 1e-3, 1e-2, 1e-1), key=held_out)
        weights = torch.linalg.solve(whole + ridge * len(x) * eye, x.T @ target)
        result[kind] = float((x_test @ weights).argmax(1).eq(y_test[kind]).double().mean())
    return result


def pixels_pca(train: Tensor, test: Tensor) -> Rows:
    """512 principal components of the pixels at 32×32."""
    flat = [
        F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2).float() / 255, 32).flatten(1)
        for x in (train, test)
    ]
    mean = flat[0].mean(0)
    generator = np.random.default_rng(0)  # randomised range finder: a full eigh takes a minute
    start = torch.from_numpy(generator.standard_normal((flat[0].shape[1], 560)).astype(np.float32))
    basis = torch.linalg.qr(start)[0]
    a = flat[0] - mean
    for _ in range(3):
        basis = torch.linalg.qr(a.T @ (a @ basis))[0]
    small = a @ basis
    components = basis @ torch.linalg.eigh(small.T @ small)[1][:, -512:]
    return a @ components, (flat[1] - mean) @ components, ""


def with_speed(encoder: Encoder) -> Callable[[Tensor, Tensor], Rows]:
    def embed(train: Tensor, test: Tensor) -> Rows:
        wall, cpu = time.perf_counter(), time.process_time()
        rows = encoder.embed_images(train), encoder.embed_images(test)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        count = len(train) + len(test)
        return *rows, f"{count / wall:9.0f} {count / cpu:.0f}"

    return embed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = os.environ.get("C2V_DATA") or Path.home() / ".cache/c2v_shared"
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--encoder", nargs="+", choices=list(ENCODERS), default=["builtin"])
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=2_000)
    options = parser.parse_args()
    encoders = [make_encoder(name) for name in options.encoder]
    print(f"{'data':8} {'features':15} {'class':>7} {'domain':>7} {'train':>6} {'images/s':>9} cpu")
    for name in ("cifar10", "pacs64", "shapes"):
        parts = load(name, options.data, options.train, options.test)
        if parts is None:
            print(f"{name:8} skipped: no {name}.npz in {options.data}")
            continue
        x, y, x_test, y_test = parts
        features: dict[str, Callable[[Tensor, Tensor], Rows]] = {"pixels + PCA": pixels_pca}
        features |= {encoder.name: with_speed(encoder) for encoder in encoders}
        for label, embed in features.items():
            train, test, speed = embed(x, x_test)
            found = probe(train, y, test, y_test)
            cells = [
                f"{100 * found[k]:6.1f}%" if k in found else "      –" for k in ("class", "domain")
            ]
            print(f"{name:8} {label:15} {' '.join(cells)} {len(x):6d} {speed}", flush=True)


if __name__ == "__main__":
    main()
