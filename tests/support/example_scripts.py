"""The scripts in examples/: their folder, how long the class of one is, and what it prints."""

import ast
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def lines_of_class(script):
    """Of the only class in the script."""
    tree = ast.parse((EXAMPLES / script).read_text())
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef))
    return found.end_lineno - found.lineno + 1


def printed(script, timeout=300):
    """The lines that the script prints, run as a program."""
    command = [sys.executable, "-P", str(EXAMPLES / script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
