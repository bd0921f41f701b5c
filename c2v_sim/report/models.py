"""A run with several models → the plain data of two pictures.

projection: the clients on the first two principal axes of the index's unit vectors, by cluster;
changes: every client's accuracy by its own model beside that by the model it is made of.
"""

import numpy as np
import torch

from c2v_sim.index.plots import principal_axes
from c2v_sim.report.clients import PlainData, rounded
from c2v_sim.run.reader import Run
from c2v_sim.system.text import percent

MOST = 2000  # clients that are drawn, the first ones


def projection_data(run: Run) -> PlainData | None:
    """Where the clusters of a finished run lie in the client index."""
    clusters = (run.result or {}).get("clusters")
    if run.index is None or not clusters or len(clusters) != run.index.clients:
        return None
    if min(clusters) < 0 or max(clusters) >= len(clusters):  # a damaged file
        return None
    unit = [torch.nn.functional.normalize(getattr(run.index, p), dim=1) for p in run.index.parts]
    points, shares = principal_axes(torch.cat(unit, dim=1))
    sizes = np.bincount(clusters)
    return {
        "x": rounded(points[:MOST, 0].numpy(), 4),
        "y": rounded(points[:MOST, 1].numpy(), 4),
        "clusters": clusters[:MOST],
        "names": [f"cluster {number} ({size})" for number, size in enumerate(sizes.tolist())],
        "caption": f"The clients' vectors on their principal axes ({shares[0]:.0%} and "
        f"{shares[1]:.0%} of the variance); each cluster has a global model.",
    }


def changes_data(run: Run) -> PlainData | None:
    """What personal models changed for each client, at the end."""
    result = run.result or {}
    before, after = (
        np.array([np.nan if v is None else v for v in result.get(name) or []], dtype=np.float64)
        for name in ("final_client_accuracy_shared", "final_client_accuracy")
    )
    if not len(before) or len(before) != len(after):
        return None
    known = np.flatnonzero(np.isfinite(before) & np.isfinite(after))
    better, worse = (after > before)[known].sum(), (after < before)[known].sum()
    shown = known[:MOST]
    return {
        "ids": shown.tolist(),
        "before": rounded(100 * before[shown]),
        "after": rounded(100 * after[shown]),
        "caption": f"Of {len(known)} clients {better} are better off with their own model and "
        f"{worse} worse: {percent(before[known].mean(), 1)} became "
        f"{percent(after[known].mean(), 1)} on average.",
    }
