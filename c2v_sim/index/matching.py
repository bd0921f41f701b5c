"""The vector of a client that was not there when the index was made, from its embeddings alone.

    dsa-ign           β^f = mean_j u_j by the network of the index,  β^l = mean_j L_j
    feature-average   mean_j D_j
    centred-average   the same less the mean over the clients of the index
    label-histogram, label-hellinger   the shares of the classes, or their roots

What this takes beside the vectors is kept with the index as `known`: `network.NAME`, the embeddings
of the `classes` [K, 512], the `centre` [512]. Without the classes of the samples there is no label
part, and the feature parts are compared alone. Nothing is trained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from c2v_sim.index.dsa_ign import IndexNetwork, build_network
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.system.machine import intra_op_threads

MATCHING = ("dsa-ign", "feature-average", "centred-average", "label-histogram", "label-hellinger")
NETWORK = "network."
BATCH = 256


@dataclass(frozen=True, eq=False)
class Match:
    """How alike a new client is to those of an index, and what follows from it."""

    similarity: Tensor  # float64 [M], A of the new client and each of the index
    weights: Tensor  # float64 [M], softmax of similarity / temperature
    cluster: int | None  # where clusters were given: the one that it is most like on average


def vectors_of(
    kind: str,
    settings: Mapping[str, Any],
    known: Mapping[str, Tensor],
    embeddings: Tensor,  # [n, 512]
    counts: Tensor | None,  # [K], samples of each class
) -> dict[str, Tensor]:
    """The parts of the new client's vector that can be made, `feature` and `label`."""
    if kind not in MATCHING:
        raise ValueError(
            f"match: the vectors of index = {kind} are made of all clients together; a new client "
            f"is matched by {', '.join(MATCHING)}"
        )
    shares = None if counts is None else counts.double() / counts.sum()
    if kind.startswith("label"):
        if shares is None:
            raise ValueError(f"match: index = {kind} needs the classes of the new client's samples")
        return {"label": (shares.sqrt() if kind == "label-hellinger" else shares).float()}
    if kind != "dsa-ign":
        mean = embeddings.double().mean(0).float()
        return {"feature": mean - known["centre"] if kind == "centred-average" else mean}
    if "classes" not in known:
        raise ValueError("match: this index does not have its network; build it anew")
    out = {"feature": mean_code(network_of(settings, known), embeddings)}
    if shares is not None:
        out["label"] = (shares @ known["classes"].double()).float()
    return out


def network_of(settings: Mapping[str, Any], known: Mapping[str, Tensor]) -> IndexNetwork:
    """The network that the index was made with."""
    network = build_network(settings["decoder"], settings["hidden"], settings["dropout"], 0)
    state = {n.removeprefix(NETWORK): t for n, t in known.items() if n.startswith(NETWORK)}
    network.load_state_dict(state)
    return network.eval()


def mean_code(network: IndexNetwork, embeddings: Tensor) -> Tensor:  # [n, 512] -> [512]
    """β^f, as index/build.py makes it."""
    total = torch.zeros(WIDTH, dtype=torch.float64)
    with torch.inference_mode(), intra_op_threads(1):
        for batch in embeddings.split(BATCH):
            total += network.encode(batch)[:, WIDTH:].sum(0, dtype=torch.float64)
    return (total / len(embeddings)).float()


def match_by(
    similarity: Tensor,  # [M]
    temperature: float,
    clusters: Tensor | None,  # int64 [M]
) -> Match:
    """What follows from the similarities; of clusters that tie it is the first."""
    weights = torch.softmax(similarity / temperature, 0)
    if clusters is None:
        return Match(similarity, weights, None)
    means = [similarity[clusters == number].mean() for number in range(int(clusters.max()) + 1)]
    return Match(similarity, weights, int(torch.stack(means).argmax()))
