"""Runs cases on the fake GPU and prints a JSON line for each; a process of its own.

    python fake_cuda_driver.py LIBRARY CASE...

See tests/training/test_fake_cuda.py for what is asked of it.
"""

import json
import sys
import time
import traceback
from functools import partial

import fake_cuda_library

if __name__ == "__main__":
    fake_cuda_library.load(sys.argv[1])

import fake_cuda
import torch
import torch.nn.functional as F
from federations import image_federation, made_up_index, text_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS, Algorithm
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.training import Pairs, train_network
from c2v_sim.training.samplers import SAMPLERS

SETTINGS = {
    "rounds": 2, "participation": 0.5, "local_epochs": 3, "batch_size": 8, "momentum": 0.9,
    "weight_decay": 1e-3, "lanes": 1, "device": "cuda", "model": "mlp",
}  # fmt: skip
INDEX = {"index": "dsa-ign", "index_epochs": 1, "index_hidden": 32}
QUICK = {"rounds": 1, "local_epochs": 2, "participation": 0.25}


def run(own=None, text=False, built=True, **settings) -> dict:
    """Two rounds with evaluation."""
    side = 32 if settings.get("model") in ("resnet18", "mobilenetv2", "cct") else 16
    federation = text_federation() if text else image_federation(clients=4, side=side)
    config = RunConfig(**SETTINGS | settings)
    index = made_up_index(federation) if config.needs_client_index and built else None
    simulator = Simulator(federation, config, index=index, algorithm=own and own())
    records = list(simulator.rounds())
    simulator.state()
    simulator.close()
    return {"rounds": len(records), "accuracy": records[-1].accuracy}


def index(**settings) -> dict:
    """Training of the index network on made-up embeddings."""
    federation = image_federation(clients=4)
    y = federation.dataset.y_train
    pairs = Pairs(torch.randn(len(y), 512), torch.randn(4, 512), y, fake_cuda.DEVICE)
    config = IndexConfig(lanes=1, batch_size=8, hidden=32, **settings)
    network, training = train_network(pairs, federation.partition, config)
    with torch.no_grad():
        network(pairs.images[:3])
    return {"rounds": len(training.curve)}


class AsksForAValue(Algorithm):
    def local_loss(self, client, x, y):
        loss = super().local_loss(client, x, y)
        return loss * (2.0 if loss.item() > 0 else 1.0)


class ForgetsTheDevice(Algorithm):
    def local_loss(self, client, x, y):
        return F.cross_entropy(client.module(x), y, weight=torch.ones(4))


class SendsToTheDevice(Algorithm):
    def local_loss(self, client, x, y):
        weight = torch.ones(4).to(client.device)
        return F.cross_entropy(client.module(x), y, weight=weight)


CASES = {
    **{name: partial(run, algorithm=name) for name in ALGORITHMS},
    "fedbn": partial(run, algorithm="fedbn", model="resnet8", norm="batch"),
    **{f"sampling {name}": partial(run, sampling=name) for name in SAMPLERS},
    "an index is made": partial(run, built=False, improve=("sampling",), **INDEX),
    "a naive index is made": partial(
        run, built=False, improve=("sampling",), index="label-histogram"
    ),
    **{
        name: partial(run, model=name, **QUICK)
        for name in ("cnn", "resnet18", "mobilenetv2", "cct")
    },
    "resnet8": partial(run, model="resnet8", augment="crop-flip", **QUICK),
    "lstm": partial(run, model="lstm", text=True, **QUICK),
    "stacked": partial(run, model="linear", participation=1.0),
    "stacked cnn": partial(run, model="cnn", participation=1.0),
    "stacked resnet8": partial(run, model="resnet8", norm="batch", participation=1.0),
    "case i and ii": partial(run, improve=("sampling", "aggregation")),
    "case iii": partial(run, improve=("local",)),
    "cases i to iii": partial(run, improve=("sampling", "aggregation", "local"), model="cnn"),
    "case iii, growing": partial(run, improve=("local",), index="local-model-weights"),
    "clusters": partial(run, improve=("clustering",), clusters=2),
    "clusters, steered": partial(
        run, improve=("clustering", "sampling", "aggregation", "local"), clusters=2
    ),
    "personal classifiers": partial(run, improve=("personalization",)),
    "clients that never train": partial(run, hold_out_clients=0.25),
    "unlike lengths, not padded": partial(run, algorithm="fedproto", batch_size=5),
    "rows in half": partial(run, algorithm="feddyn", state_dtype="bfloat16"),
    "rows in a file": partial(run, algorithm="moon", state_memory=1e-6),
    "index, global": partial(index, strategy="global", epochs=2),
    "index, federated": partial(index, strategy="federated", epochs=4, local_epochs=2),
    "index, federated, stacked": partial(
        index, strategy="federated", epochs=4, local_epochs=2, participation=1.0
    ),
    "a value is asked for": partial(run, own=AsksForAValue),
    "a tensor of the host": partial(run, own=ForgetsTheDevice),
    "a copy while recording": partial(run, own=SendsToTheDevice),
}


def main(library: str, *wanted: str) -> None:
    cuda = fake_cuda.install()
    for name in wanted or CASES:
        cuda.graphs.clear()
        begin = time.process_time()
        row = {"case": name}
        try:
            with fake_cuda.FakeGpu():
                row |= CASES[name]()
        except Exception as error:
            row |= {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        row |= {"graphs": len(cuda.graphs), "replays": sum(g.replays for g in cuda.graphs)}
        row["seconds"] = round(time.process_time() - begin, 2)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
