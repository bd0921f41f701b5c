"""Texts of files that are hostile rather than wrong."""

import pytest

from c2v_sim.config import FIELDS, read_toml
from c2v_sim.run.settings import parser, settings_of
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.parse import is_a, parse_json, parse_json_object, parse_toml
from c2v_sim.system.settings import check
from c2v_sim.system.text import brief


@pytest.mark.parametrize(
    ("parse", "text"), [(parse_json, "[" * 100_000), (parse_toml, "x = " + "[" * 100_000)]
)
def test_a_text_that_is_nested_too_deep_is_a_value_error(parse, text):
    with pytest.raises(ValueError, match="nested too deep"):
        parse(text)


@pytest.mark.parametrize("text", ["[]", "3", '"a"', "null"])
def test_an_object_is_wanted(text):
    with pytest.raises(ValueError, match="must hold an object"):
        parse_json_object(text)


@pytest.mark.parametrize(
    ("value", "kind", "answer"),
    [
        (3, float, True),
        (True, int, False),
        (None, str | None, True),
        ([1, 2.5], list[float], True),
        ([1, "2"], list[float], False),
        ({"a": [1]}, dict[str, list[int]], True),
        ("a", list[str], False),
    ],
)
def test_types_of_plain_data(value, kind, answer):
    assert is_a(value, kind) is answer


def test_a_number_that_python_cannot_write_is_refused_by_name(tmp_path):
    (tmp_path / "a.toml").write_text("seed = 0x" + "f" * 50_000)
    value = read_toml(tmp_path / "a.toml")["seed"]
    assert brief(value) == "a number of thousands of digits"
    with pytest.raises(ConfigError, match="seed must be a smaller number"):
        check(FIELDS["seed"], value)


def test_a_file_and_flags_are_judged_together(tmp_path):
    """What has no effect in the file alone may have one with a flag, and the other way round."""
    file = tmp_path / "mine.toml"
    file.write_text("feddyn_alpha = 0.5\n")
    given = parser().parse_args(["--config", str(file), "--algorithm", "feddyn"])
    config, label = settings_of(given)
    assert (config.algorithm, config.feddyn_alpha) == ("feddyn", 0.5)
    assert label == "quick + mine.toml, changed: algorithm"
    file.write_text('rounds = "many"\n')
    with pytest.raises(ConfigError, match=r"mine.toml: rounds must be a whole number, got 'many'"):
        settings_of(parser().parse_args(["--config", str(file), "--rounds", "3"]))
