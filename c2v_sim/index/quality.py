"""How good a client index is, in numbers.

Feature part, where clients have domains: the mean cosine over pairs of clients of one domain
(within) and of two (between), and the silhouette by cosine distance. Label part: Spearman's rank
correlation over client pairs between cosine and 1 - total variation of the label distributions.
The control, the mean of D per client centred over clients, separates domains without training.
"""

import numpy as np
import torch
from torch import Tensor

from c2v_sim.ops.index_losses import cosines_torch


def quality(
    feature: Tensor,  # [M, D_f], or no columns
    label: Tensor,  # [M, D_l], or no columns
    label_counts: Tensor,  # [M, K]
    domains: Tensor | None,  # [M]
    control: Tensor,  # [M, 512]: mean of D
) -> dict[str, float]:
    """The numbers that apply to this index, by name."""
    out: dict[str, float] = {}
    if domains is not None and feature.shape[1]:
        out |= separation(feature, domains)
        of_control = separation(control - control.mean(0), domains)
        out |= {f"control_{name}": value for name, value in of_control.items()}
    truth = pairs_of(label_similarity(label_counts))
    for name, part in (("label_spearman", label), ("feature_spearman", feature)):
        if part.shape[1]:
            rho = spearman(pairs_of(cosines_torch(part.double(), part.double())), truth)
            if rho is not None:
                out[name] = rho
    return out


def separation(vectors: Tensor, domains: Tensor) -> dict[str, float]:
    """within, between and silhouette; a number without a pair to take it from is left out."""
    cosines = cosines_torch(vectors.double(), vectors.double())
    same = domains[:, None] == domains
    others = ~torch.eye(len(domains), dtype=torch.bool)
    out = {}
    for name, mask in (("within", same & others), ("between", ~same)):
        if mask.any():
            out[name] = cosines[mask].mean().item()
    score = silhouette(1.0 - cosines, domains)
    return out if score is None else out | {"silhouette": score}


def silhouette(distances: Tensor, domains: Tensor) -> float | None:
    """Mean over clients of (b - a) / max(a, b): a own domain's, b the nearest other's distance.

    A client that is alone in its domain counts 0. None with fewer than two domains.
    """
    names, inverse, counts = torch.unique(domains, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return None
    member = torch.nn.functional.one_hot(inverse).to(distances.dtype)  # [M, domains]
    sums = distances @ member
    own = sums.gather(1, inverse[:, None])[:, 0] / (counts[inverse] - 1).clamp(min=1)
    means = (sums / counts).masked_fill(member.bool(), torch.inf)
    nearest = means.min(1).values
    largest = torch.maximum(own, nearest)
    scores = torch.where(largest > 0, (nearest - own) / largest, 0.0)
    return torch.where(counts[inverse] > 1, scores, 0.0).mean().item()


def label_similarity(label_counts: Tensor) -> Tensor:  # [M, K] -> [M, M]
    """1 - total variation of the clients' label distributions."""
    shares = label_counts.double() / label_counts.sum(1, keepdim=True)
    return 1.0 - torch.cdist(shares, shares, p=1.0) / 2.0


def pairs_of(matrix: Tensor) -> np.ndarray:
    """The entries above the diagonal."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix), offset=1)
    return matrix[rows, columns].numpy()


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation, ties with their mean rank; None where one of the two is constant."""
    from scipy.stats import spearmanr  # slow to import, and needed at the end of a training only

    a, b = (np.round(values, 12) for values in (a, b))  # equal up to rounding: a tie
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(spearmanr(a, b).statistic)
