"""CLIP-like embeddings with planted domains and classes, as in the specification's measurements.

Image-image cosine .51 (nothing shared) to .69 (domain and class shared), image-text .30 matched
and .20 otherwise.
"""

import numpy as np
import torch

from c2v_sim import Federation
from c2v_sim.data.load import Dataset
from c2v_sim.data.partition import Partition


def planted(clients_per_domain=4, samples=80, domains=6, classes=20, seed=0):
    """(federation, images [N, 512], labels [K, 512]); clients 0.. are of domain 0, and so on."""
    g = torch.Generator().manual_seed(seed)
    clients = domains * clients_per_domain
    n = clients * samples
    domain = torch.arange(domains).repeat_interleave(clients_per_domain * samples)
    y = torch.randint(classes, (n,), generator=g)
    basis = torch.linalg.qr(torch.randn(512, 2 + domains + classes, generator=g)).Q.T
    common, text, domain_axes, class_axes = basis.split([1, 1, domains, classes])
    noise = torch.nn.functional.normalize(torch.randn(n, 512, generator=g), dim=1)
    images = (
        0.51**0.5 * common + 0.3 * domain_axes[domain] + 0.3 * class_axes[y] + 0.31**0.5 * noise
    )
    labels = 0.28 * common + 0.333 * class_axes + (1 - 0.28**2 - 0.333**2) ** 0.5 * text
    images, labels = (torch.nn.functional.normalize(t, dim=1) for t in (images, labels))
    dataset = Dataset(
        name="planted",
        x_train=images,
        y_train=y,
        x_test=images[:clients],
        y_test=y[:clients],
        class_names=tuple(f"class {c}" for c in range(classes)),
        mean=(),
        std=(),
        source="planted",
        sha256=f"{seed:064d}",
        domain_train=domain,
        domain_test=domain[:clients],
        domain_names=tuple(f"domain {d}" for d in range(domains)),
    )
    ids = np.split(np.arange(n), clients)
    partition = Partition(
        tuple(ids),
        tuple(np.array([i]) for i in range(clients)),
        "planted",
        tuple(np.repeat(np.arange(domains), clients_per_domain).tolist()),
    )
    return Federation(dataset, partition), images, labels
