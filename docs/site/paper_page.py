"""The numbers of the paper as a page, from the file that sweeps compare their results with."""

from collections.abc import Iterator

from c2v_sim.sweep.tables.paper import paper_entry, paper_names

INTRODUCTION = """# The paper's tables

The numbers that *Client2Vec* (arXiv 2405.16233) reports, as they stand in the file
`c2v_sim/sweep/tables/paper_tables.toml`: best accuracy in %, mean ± standard deviation where the
paper gives both; seconds in `simulation_time_s`. A sweep sets its results beside them. What was
measured here, and what cannot be compared: [reproducing the paper](reproducing-the-paper.md).
"""


def paper_page() -> str:
    """Every table of the paper as Markdown."""
    parts = [INTRODUCTION]
    for name in paper_names():
        rows = dict(rows_of(paper_entry(name.split(".")), ()))
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        parts.append(f"## {name}\n\n{table(rows, columns)}\n")
    return "\n".join(parts)


def rows_of(entry: object, path: tuple[str, ...]) -> Iterator[tuple[str, dict[str, object]]]:
    """(row's name, its cells): the innermost dicts, named by the keys that lead to them."""
    assert isinstance(entry, dict)
    cells = {key: value for key, value in entry.items() if not isinstance(value, dict)}
    if cells:
        yield " · ".join(path), cells
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from rows_of(value, (*path, key))


def table(rows: dict[str, dict[str, object]], columns: list[str]) -> str:
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(shown(row.get(c)) for c in columns)] for name, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(value: object) -> str:
    if isinstance(value, list):
        return f"{value[0]:.2f} ± {value[1]:.2f}"
    return "" if value is None else str(value)
