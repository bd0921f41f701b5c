"""Small federations for the tests: random images with a learnable signal, uneven clients."""

import hashlib

import numpy as np
import torch

from c2v_sim import Federation, Simulator
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.partition import Partition
from c2v_sim.data.text_windows import Windows
from c2v_sim.index.client_index import ClientIndex, federation_facts
from c2v_sim.index.encoders.encoder import WIDTH


def image_federation(clients=6, classes=4, smallest=3, side=16, seed=0):
    """uint8 side×side RGB images whose class shifts the colour; client i has smallest + 7 i."""
    g = np.random.default_rng(seed)
    sizes = [smallest + 7 * i for i in range(clients)]
    ids, test_ids = np.repeat(np.arange(clients), sizes), np.repeat(np.arange(clients), 5)
    y, y_test = (g.integers(0, classes, len(n)) for n in (ids, test_ids))

    def images(labels):
        noise = g.integers(0, 128, (len(labels), side, side, 3))
        return (noise + 30 * labels[:, None, None, None]).astype(np.uint8)

    return Federation.from_arrays(
        images(y),
        y,
        ids,
        x_test=images(y_test),
        y_test=y_test,
        client_ids_test=test_ids,
        class_names=[f"class {c}" for c in range(classes)],
    )


def made_up_index(federation, label_width=7, seed=5):
    """Random vectors for the clients, neighbours alike, as an index of `federation`."""
    g = torch.Generator().manual_seed(seed)
    clients = federation.partition.clients
    feature = torch.randn(clients, WIDTH, generator=g)
    feature += 2 * feature[torch.arange(clients) // 2]
    return index_of(federation, feature, torch.randn(clients, label_width, generator=g))


def index_of(federation, feature, label):
    """`feature` [M, D] and `label` [M, D'] as an index of `federation`."""
    sizes = torch.from_numpy(federation.partition.sizes)
    provenance = {"federation": federation_facts(federation)}
    return ClientIndex(feature, label, sizes, federation.label_counts, None, provenance)


def simulator_with(federation, config, index=None, **parts):
    """A simulator that is given the index, or a made-up one, where the config needs one."""
    if not config.needs_client_index:
        return Simulator(federation, config, **parts)
    index = made_up_index(federation) if index is None else index
    return Simulator(federation, config, index=index, **parts)


def bits(tensors, ordered=True):
    """A hash of a simulator's state; not `ordered`: whatever chunks the clients' rows lie in."""
    digest = hashlib.sha256()
    if not ordered:
        rows = [tensors[name] for name in sorted(tensors) if ".rows." in name]
        tensors = {name: t for name, t in tensors.items() if ".rows." not in name}
        tensors |= {"rows": torch.cat([r.flatten() for r in rows])} if rows else {}
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def text_federation(clients=4, each=6, classes=3, length=12):
    """Windows of a random text, labelled by their first symbol."""
    g = np.random.default_rng(0)
    text = torch.from_numpy(g.integers(0, classes, 400).astype(np.uint8))
    starts = torch.from_numpy(g.integers(0, 380, clients * each))
    windows = Windows(text, starts, length)
    labels = text[starts].long()
    facts = {"x_train": windows, "y_train": labels, "x_test": windows, "y_test": labels}
    names = tuple(f"class {c}" for c in range(classes))
    dataset = Dataset(
        "text", **facts, class_names=names, mean=(), std=(), source="made", sha256="0" * 64
    )
    own = tuple(np.split(np.arange(clients * each), clients))
    return Federation(dataset, Partition(own, own, "in order"))
