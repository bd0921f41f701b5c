"""What an index is worth, by its similarities A [M, M]: numbers that compare any two of them.

    within, between   mean A over pairs of clients of one domain, and of two
    silhouette        of the domains, by the distances 1 - A                      (scikit-learn)
    rand              adjusted Rand index of as many clusters as domains, against the domains
    spearman          rank correlation over pairs of A with 1 - TV of the label shares
    bytes             that a client uploads for it, numbers as float32, classes as 8 bytes

None where there is nothing to take a number from: no domains, or all clients alike.
"""

import numpy as np
import torch
from torch import Tensor

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import build_network
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.naive import NAIVE
from c2v_sim.index.quality import label_similarity, pairs_of, spearman
from c2v_sim.index.similarity.clusters import cluster, distances_of
from c2v_sim.training.sampling import cohort_size

MEASURES = ("within", "between", "silhouette", "rand", "spearman")


def measures(index: ClientIndex, part: str | None = None) -> dict[str, float | None]:
    """MEASURES of A, or of the cosines of one part."""
    similarity = index.similarity(part).double()
    out: dict[str, float | None] = dict.fromkeys(MEASURES)
    if index.domains is not None:
        out |= against_domains(similarity, index.domains)
    truth = label_similarity(index.label_counts)
    return out | {"spearman": spearman(pairs_of(similarity), pairs_of(truth))}


def against_domains(similarity: Tensor, domains: Tensor) -> dict[str, float | None]:
    """within, between, silhouette and rand."""
    from sklearn.metrics import adjusted_rand_score, silhouette_score  # slow to import

    same = domains[:, None] == domains
    pairs = ~torch.eye(len(domains), dtype=torch.bool)
    out: dict[str, float | None] = {
        name: similarity[mask].mean().item() if mask.any() else None
        for name, mask in (("within", same & pairs), ("between", ~same))
    }
    count, truth = len(torch.unique(domains)), domains.numpy()
    if 2 <= count < len(domains):
        score = silhouette_score(distances_of(similarity), truth, metric="precomputed")
        out["silhouette"] = float(score)
    if count >= 2:
        out["rand"] = float(adjusted_rand_score(truth, cluster(similarity, count)))
    return out


def uploaded(config: IndexConfig, sizes: np.ndarray, classes: int) -> float:
    """Bytes that a client sends for the index, on average over clients [M]."""
    if config.index in NAIVE:
        naive = NAIVE[config.index]
        return 4.0 * (naive.sent or naive.width)(classes)
    own = 4 * (WIDTH + classes)  # β^f and the counts of the classes, at the end
    used = np.minimum(sizes, config.max_samples) if config.max_samples else sizes
    if config.strategy == "global":
        return own + float(np.minimum(used, config.upload).mean()) * (4 * WIDTH + 8)
    network = build_network(config.decoder, config.hidden, config.dropout, config.seed)
    model = 4 * sum(p.numel() for p in network.parameters())
    cohort = cohort_size(config.participation, len(sizes))
    return own + config.points * cohort / len(sizes) * model
