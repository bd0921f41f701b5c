"""The oldest versions that pyproject.toml allows, a pin a line: `oldest_versions.py [EXTRA…]`.

The project's own and those of the extras together, so that pip refuses them where one needs a newer
version of another. `make oldest` installs them. torch is pinned to the version that everything is
tested with.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
TORCH = "torch==2.13.0"


def oldest(requirements: Iterable[str]) -> list[str]:
    """`name>=1.2,<2` -> `name==1.2`; ValueError where there is no lower bound."""
    out = []
    for requirement in requirements:
        found = re.match(r"([\w.-]+)\s*[>=]=\s*([\d.]+)", requirement)
        if found is None:
            raise ValueError(f"{requirement} has no lower bound")
        out.append(TORCH if found[1] == "torch" else f"{found[1]}=={found[2]}")
    return out


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    chosen = project["dependencies"] + [r for name in sys.argv[1:] for r in extras[name]]
    print(*oldest(chosen), sep="\n")
