"""Ctrl-C while a command imports its packages: quiet, with the code of an interrupted command."""

import signal
import subprocess
import sys

import pytest

# The signal comes when torch is looked for, which is among the first of the slow imports.
SLOW = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
"""
COMMANDS = ("run", "index", "sweep", "report", "tables", "doctor")


def interrupted(*arguments, folder):
    (folder / "sitecustomize.py").write_text(SLOW)
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        # A shell lets what it starts in the background ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_during_imports_is_quiet(command, tmp_path):
    done = interrupted("-P", "-m", f"c2v_sim.{command}", "--help", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_console_script_too(tmp_path):
    script = tmp_path / "c2v-sim"
    script.write_text("import sys\nfrom c2v_sim.__main__ import main\nsys.exit(main())\n")
    done = interrupted("-P", str(script), "run", "--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_program_that_imports_the_package_keeps_its_own_way(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("try:\n    import c2v_sim\nexcept KeyboardInterrupt:\n    print('mine')\n")
    done = interrupted("-P", str(script), folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
