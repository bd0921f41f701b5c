"""Pictures of a client index: heat maps over clients, similarity of domains, a 2-D projection.

Every function takes a ClientIndex and a path without suffix, and writes <path>.png and <path>.svg.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.system.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def plot_all(index: ClientIndex, folder: Path) -> list[Path]:
    """All pictures that apply to this index, in `folder`."""
    written = plot_similarity(index, folder / "similarity")
    if index.domains is not None and "feature" in index.parts:
        written += plot_domains(index, folder / "domains")
    return written + plot_projection(index, folder / "projection")


def groups(index: ClientIndex) -> tuple[Tensor, list[str]]:
    """The group of each client [M] and the groups' names: domains, or else dominant labels."""
    if index.domains is not None:
        group, names = index.domains, index.provenance["domain_names"]
    else:
        group, names = index.label_counts.argmax(1), index.provenance["class_names"]
    return group, names or [str(i) for i in range(int(group.max()) + 1)]


def plot_similarity(index: ClientIndex, path: Path) -> list[Path]:
    """Heat maps of A and of β^f, clients ordered by domain or by dominant label."""
    group, names = groups(index)
    order = torch.argsort(group, stable=True)
    pictures = {r"$\beta$": index.similarity()}
    if index.parts == ("feature", "label"):
        pictures[r"$\beta^f$"] = index.similarity("feature")
    figure = new_figure(5.6 * len(pictures), 5)
    axes = figure.subplots(1, len(pictures), squeeze=False)[0]
    for ax, (name, matrix) in zip(axes, pictures.items(), strict=True):
        image = ax.imshow(matrix[order][:, order].numpy(), vmin=-1, vmax=1, cmap="RdBu_r")
        ax.set_title(f"cosine of {name}")
        mark_groups(ax, group[order], names)
        figure.colorbar(image, ax=ax, shrink=0.8)
    return _write(figure, path, index)


def plot_domains(index: ClientIndex, path: Path) -> list[Path]:
    """Mean cosine of β^f between clients of two domains; of a client with itself left out."""
    if index.domains is None:
        raise ValueError("plot_domains: the clients of this index do not follow domains")
    group, names = groups(index)
    present = torch.unique(group).tolist()
    cosines = index.similarity("feature").clone().fill_diagonal_(torch.nan)
    means = np.array(
        [[cosines[group == a][:, group == b].nanmean().item() for b in present] for a in present]
    )
    figure = new_figure(1.2 + 0.8 * len(present), 1 + 0.7 * len(present))
    ax = figure.subplots()
    image = ax.imshow(means, vmin=-1, vmax=1, cmap="RdBu_r")
    for (row, column), value in np.ndenumerate(means):
        shade = "white" if abs(value) > 0.6 else "black"
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=shade)
    ticks = range(len(present)), [names[g] for g in present]
    ax.set_xticks(*ticks, rotation=45, ha="right")
    ax.set_yticks(*ticks)
    ax.set_title(r"mean cosine of $\beta^f$")
    figure.colorbar(image, ax=ax, shrink=0.8)
    return _write(figure, path, index)


def plot_projection(index: ClientIndex, path: Path) -> list[Path]:
    """The clients on the first two principal axes of the unit vectors of each part."""
    group, names = groups(index)
    figure = new_figure(5.2 * len(index.parts), 4.6)
    axes = figure.subplots(1, len(index.parts), squeeze=False)[0]
    for ax, part in zip(axes, index.parts, strict=True):
        points, shares = principal_axes(getattr(index, part))
        for g in torch.unique(group).tolist():
            ax.scatter(*points[group == g].T.numpy(), s=18, label=names[g])
        ax.set(
            title=rf"$\beta^{part[0]}$, principal axes",
            xlabel=f"first ({shares[0]:.0%} of the variance)",
            ylabel=f"second ({shares[1]:.0%})",
        )
    axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return _write(figure, path, index)


def principal_axes(vectors: Tensor) -> tuple[Tensor, list[float]]:  # [M, D] -> [M, 2], 2 shares
    """Coordinates on the two axes of largest variance of the unit rows, and their shares of it."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    left, scale, _ = torch.linalg.svd(unit - unit.mean(0), full_matrices=False)
    points, variance = left * scale, scale.square()
    missing = max(0, 2 - points.shape[1])  # one client, or one column
    points = torch.nn.functional.pad(points, (0, missing))[:, :2]
    shares = torch.nn.functional.pad(variance, (0, missing))[:2] / variance.sum().clamp(min=1e-30)
    return points, shares.tolist()


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # slow to import; no window system is touched

    return Figure(figsize=(width, height), dpi=130, layout="constrained")


def mark_groups(ax: Axes, ordered: Tensor, names: list[str]) -> None:
    """A line between groups, each group's name at its middle."""
    present, counts = torch.unique_consecutive(ordered, return_counts=True)
    ends = counts.cumsum(0)
    for end in ends[:-1].tolist():
        ax.axhline(end - 0.5, color="black", linewidth=0.6)
        ax.axvline(end - 0.5, color="black", linewidth=0.6)
    middles = (ends - (counts + 1) / 2).tolist()
    labels = [names[g] for g in present.tolist()]
    ax.set_xticks(middles, labels, rotation=45, ha="right")
    ax.set_yticks(middles, labels)


def _write(figure: Figure, path: Path, index: ClientIndex) -> list[Path]:
    about, settings = index.provenance, index.provenance["settings"]
    kind = settings["index"] if settings["index"] != "dsa-ign" else settings["strategy"]
    figure.suptitle(
        f"{about['federation']['data']['name']}, {about['encoder']} encoder, {kind}", fontsize=10
    )
    written = []
    for suffix in FORMATS:
        file = path.with_name(f"{path.name}.{suffix}")
        write_atomically(file, functools.partial(figure.savefig, format=suffix))
        written.append(file)
    return written
