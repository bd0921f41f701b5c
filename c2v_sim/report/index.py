"""A client index → the packed mean cosines of the report's heat maps."""

import numpy as np

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.report.clients import Order, PlainData, pack, rounded


def index_data(index: ClientIndex, order: Order) -> PlainData:
    """Mean cosines between rows of clients and between groups of clients."""
    pictures: list[tuple[str, tuple[str, ...]]] = [
        ("β, both parts" if len(index.parts) == 2 else "β", index.parts)
    ]
    if len(index.parts) == 2:
        pictures.append(("βᶠ, the feature part", ("feature",)))
    present, group = np.unique(order.group, return_inverse=True)
    maps = []
    for name, parts in pictures:
        sums, counts = block_cosines(index, parts, order.row, order.rows)
        upper = means_of(sums, counts)[np.triu_indices(order.rows)]
        caption = index_caption(*block_cosines(index, parts, group, len(present)), order.by)
        maps.append({"name": name, "upper": pack(levels(upper)), "caption": caption})
    numbers = {k: v for k, v in index.quality.items() if not k.startswith("control")}
    quality = ", ".join(f"{k.replace('_', ' ')} {v:.2f}" for k, v in numbers.items())
    return {"maps": maps, "groups": group_means(index, order), "quality": quality}


def group_means(index: ClientIndex, order: Order) -> PlainData | None:
    """Mean cosines between the groups of clients; None where there are no groups."""
    if order.by is None:
        return None
    present, group = np.unique(order.group, return_inverse=True)
    part = "feature" if "feature" in index.parts else "label"
    means = means_of(*block_cosines(index, (part,), group, len(present)))
    return {
        "names": [order.names[g] for g in present.tolist()],
        "means": [rounded(row, 3) for row in means],
        "part": {"feature": "βᶠ", "label": "βˡ"}[part],
    }


def block_cosines(
    index: ClientIndex, parts: tuple[str, ...], block: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:  # [B, B], [B, B]
    """Sums of cosines over pairs of clients of two blocks, and how many pairs there are.

    With unit rows u the sum over blocks a, b is (Σ_a u) · (Σ_b u): no M × M matrix is needed. A
    client with itself is no pair.
    """
    member = np.zeros((count, len(block)))
    member[block, np.arange(len(block))] = 1.0
    sums = np.zeros((count, count))
    for part in parts:
        rows = getattr(index, part).double().numpy()
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(min=1e-12)
        totals = member @ unit
        sums += totals @ totals.T - np.diag(member @ np.square(unit).sum(1))
    sizes = member.sum(1)
    return sums / len(parts), np.outer(sizes, sizes) - np.diag(sizes)


def means_of(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def levels(cosines: np.ndarray) -> np.ndarray:
    """0 to 254 for -1 to 1, 255 for none."""
    scaled = np.round((np.clip(cosines, -1, 1) + 1) * 127)
    return np.where(np.isnan(scaled), 255, scaled).astype(np.int64)


def index_caption(sums: np.ndarray, counts: np.ndarray, by: str | None) -> str:
    """The mean cosine of two clients, in all, within and between groups."""
    same = np.eye(len(sums), dtype=bool)
    said = []
    for words, mask in (
        ("", same | ~same),
        (f"of one {by} ", same),
        ("of different ones ", ~same),
    ):
        if counts[mask].sum() and (by or not words):
            said.append(f"{words}{sums[mask].sum() / counts[mask].sum():.2f}")
    return f"Mean cosine of two clients: {', '.join(said) or 'there is only one client'}."
