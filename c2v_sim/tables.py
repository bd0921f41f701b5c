"""The tables of a sweep, beside the paper's: `python -m c2v_sim.tables DIR`.

DIR is that of a sweep, finished or not; its tables (sweep/tables) are written anew and shown. Exit
codes: 0 done, 2 bad input.
"""

import argparse
import sys
from pathlib import Path

from c2v_sim.sweep.file import SWEEP, read_sweep
from c2v_sim.sweep.tables.write import write_tables
from c2v_sim.system.errors import fail
from c2v_sim.system.output import printed


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    text = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="c2v_sim.tables", description=text)
    parser.add_argument("directory", type=Path, help=f"of a sweep: the one that holds {SWEEP}")
    out = parser.parse_args(argv).directory
    try:
        if not (out / SWEEP).is_file():
            raise ValueError(f"{out} is not the directory of a sweep: it holds no {SWEEP}")
        text = write_tables(read_sweep(out / SWEEP), out)
    except (ValueError, OSError) as error:
        return fail(2, str(error))
    return printed(lambda: print(text, end=""), f"the tables are written into {out}")


if __name__ == "__main__":
    sys.exit(main())
