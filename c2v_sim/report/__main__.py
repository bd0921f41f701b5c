"""The report: `python -m c2v_sim.report RUN_DIR…` (also `c2v-sim report`).

One HTML file about one run or many, which needs nothing else: figures, tables, manifests, and the
JavaScript that draws them. A folder stands for all run directories inside it, such as those of a
sweep; a cell that failed before it had one is listed with the reason. Exit codes: 0 done, 1 the
report could not be written, 2 bad input.
"""

import argparse
import sys
from pathlib import Path

from c2v_sim.report.write import NAME, make_report
from c2v_sim.system.errors import fail
from c2v_sim.system.output import printed


def parser() -> argparse.ArgumentParser:
    text = "One self-contained HTML page about one run or many."
    out = argparse.ArgumentParser(prog="c2v_sim.report", description=text)
    out.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR", help="run directories, or folders of them"
    )
    out.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"default: {NAME} in the run directory, of several runs ./{NAME}",
    )
    out.add_argument("--force", action="store_true", help="overwrite a file that is no report")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    try:
        output = make_report(arguments.runs, arguments.output, force=arguments.force)
    except ValueError as error:
        return fail(2, str(error))
    except OSError as error:
        return fail(1, f"{error.filename}: {error.strerror}")
    text = f"report: {output} ({output.stat().st_size / 1e6:.2f} MB)"
    return printed(lambda: print(text), f"the report is written: {output}")


if __name__ == "__main__":
    sys.exit(main())
