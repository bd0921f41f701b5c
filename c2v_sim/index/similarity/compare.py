"""Several indices of one federation -> one table, and one page of heat maps.

    comparison.md     the table (similarity/measures.py says what its columns are)
    comparison.json   the same numbers, with settings, federation and encoder
    comparison.png, comparison.svg   A of every index, clients ordered by domain or dominant label

An index with two parts has a line for each part too: A is their mean.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from c2v_sim.data.federation import Federation
from c2v_sim.index.build import obtain_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import STRATEGIES, IndexConfig
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.index.naive import NAIVE
from c2v_sim.index.plots import FORMATS, groups, mark_groups, new_figure
from c2v_sim.index.similarity.measures import MEASURES, measures, uploaded
from c2v_sim.system.errors import ConfigError, Interrupted
from c2v_sim.system.files import write_atomically

NAME = "comparison"
ALL = "all"
# What may be compared -> the settings that make it.
CANDIDATES: dict[str, dict[str, str]] = {
    f"dsa-ign-{strategy}": {"index": "dsa-ign", "strategy": strategy} for strategy in STRATEGIES
} | {kind: {"index": kind} for kind in NAIVE}
COLUMNS = 4  # heat maps side by side


@dataclass(frozen=True)
class Line:
    """A line of the table: an index, or one part of it."""

    name: str
    values: dict[str, float | None]  # MEASURES
    seconds: float | None  # embeddings included; None: not recorded
    bytes: float  # that a client uploads


def chosen(names: Sequence[str]) -> list[str]:
    """The candidates that a command names; `all` stands for every one."""
    wanted = list(CANDIDATES) if list(names) == [ALL] else list(names)
    unknown = [name for name in wanted if name not in CANDIDATES]
    if unknown or not wanted:
        got = unknown[0] if unknown else "nothing"
        raise ConfigError(f"--compare takes all, or some of {', '.join(CANDIDATES)}; got {got}")
    return list(dict.fromkeys(wanted))


def compared(
    federation: Federation,
    names: Sequence[str],
    config: IndexConfig,
    embeddings: Embeddings,
    data_dir: Path | str,
    stop: threading.Event | None = None,
    on_index: Callable[[str], None] = lambda name: None,
) -> Iterator[tuple[str, ClientIndex]]:
    """The indices called `names`, each with the other settings of `config`, built or cached."""
    for name in names:
        if stop is not None and stop.is_set():
            raise Interrupted
        on_index(name)
        settings = dataclasses.replace(config, **CANDIDATES[name])  # type: ignore[arg-type]
        yield (
            name,
            obtain_index(federation, settings, embeddings=embeddings, data_dir=data_dir, stop=stop),
        )


def lines_of(name: str, index: ClientIndex) -> list[Line]:
    """What the table says of an index."""
    settings = IndexConfig(**as_fields(index.provenance["settings"]))
    sizes, classes = index.sizes.numpy(), index.label_counts.shape[1]
    cost = (index.seconds, uploaded(settings, sizes, classes))
    lines = [Line(name, measures(index), *cost)]
    if len(index.parts) > 1:
        lines += [
            Line(f"{name}, {part} part", measures(index, part), *cost) for part in index.parts
        ]
    return lines


def as_fields(saved: dict[str, object]) -> dict:
    """Settings of a file as fields have them: lists are tuples."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}


def table(lines: Sequence[Line]) -> str:
    """In Markdown, columns as wide as they need be."""
    rows = [["index", *MEASURES, "seconds", "bytes per client"]]
    for line in lines:
        values = [shown(line.values[name], ".3f") for name in MEASURES]
        rows.append([line.name, *values, shown(line.seconds, ".2f"), shown(line.bytes, ",.0f")])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows.insert(1, ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])])
    return "\n".join(
        "| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |"
        for row in rows
    )


def shown(value: float | None, form: str) -> str:
    return "—" if value is None else format(value, form)


def write_comparison(indices: dict[str, ClientIndex], folder: Path) -> str:
    """Write all files into `folder`; the table."""
    lines = [line for name, index in indices.items() for line in lines_of(name, index)]
    text = table(lines)
    about = next(iter(indices.values())).provenance
    facts = {
        "federation": about["federation"],
        "encoder": about["encoder"],
        "indices": [dataclasses.asdict(line) for line in lines],
        "settings": {name: index.provenance["settings"] for name, index in indices.items()},
    }
    out = json.dumps(facts, indent=1) + "\n"
    write_atomically(folder / f"{NAME}.json", lambda p: p.write_text(out))
    write_atomically(folder / f"{NAME}.md", lambda p: p.write_text(text + "\n"))
    draw(indices, folder / NAME)
    return text


def draw(indices: dict[str, ClientIndex], path: Path) -> list[Path]:
    """A heat map of every index on one page: <path>.png and <path>.svg."""
    columns = min(COLUMNS, len(indices))
    rows = -(-len(indices) // columns)
    figure = new_figure(4.2 * columns, 3.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, (name, index) in zip(axes, indices.items(), strict=False):
        group, names = groups(index)
        order = torch.argsort(group, stable=True)
        matrix = index.similarity()[order][:, order].numpy()
        image = ax.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r")
        ax.set_title(name, fontsize=9)
        mark_groups(ax, group[order], names)
        ax.tick_params(labelsize=6)
    for ax in axes[len(indices) :]:
        ax.set_axis_off()
    figure.colorbar(image, ax=axes.tolist(), shrink=0.6, label="A")
    about = next(iter(indices.values())).provenance
    data = about["federation"]["data"]["name"]
    figure.suptitle(f"similarity of clients: {data}, {about['encoder']} encoder", fontsize=11)
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in FORMATS]
    for file, suffix in zip(files, FORMATS, strict=True):
        write_atomically(file, functools.partial(figure.savefig, format=suffix))
    return files
