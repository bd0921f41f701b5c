"""The README's example runs as it is printed."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_embedding_example_runs_and_learns(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    scope = {}
    exec(compile(example, "README.md", "exec"), scope)
    assert "best accuracy" in capsys.readouterr().out
    assert scope["result"].best.accuracy > 0.85


def test_the_commands_named_exist():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
