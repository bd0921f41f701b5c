"""What the run command must make of its settings, said a second time and independently.

A case is accepted, with these settings in force, or refused with a sentence that names one of the
settings at fault. The rules of single settings (types, ranges, needs) are read from their facts;
those between settings stand here in full, so that one that is added or lost is noticed.
"""

import tomllib
from pathlib import Path

from settings_cases import Case

import c2v_sim.run.presets
from c2v_sim.config import FIELDS

Values = dict[str, object]
OWN_CLIENTS = {"shakespeare": "lstm"}  # data that has clients of its own, and the model that fits
LABELS_ALONE = ("label-histogram", "label-hellinger", "private-histogram")


def expected(case: Case) -> tuple[Values | None, set[str]]:
    """The settings in force; or None and the names, one of which the refusal must have."""
    if case.wrong:
        return None, set(case.wrong)
    in_file = case.in_file or {}
    given = in_file | case.flags
    base = {name: setting.default for name, setting in FIELDS.items()}
    base |= read_preset(case.preset or "quick")
    config = base | implied(given, base) | given
    config = {name: _plain(value) for name, value in config.items()}
    at_fault = contradictions(config, case.flags)
    idle = [name for name in FIELDS if unmet(name, config)]
    for name in idle:
        typed = name in case.flags or (
            name in in_file and config[name] != _plain(FIELDS[name].default)
        )
        if typed:
            at_fault |= {name}
        config[name] = _plain(FIELDS[name].default)
    return (None, at_fault) if at_fault else (config, set())


def read_preset(name: str) -> Values:
    return tomllib.loads((Path(c2v_sim.run.presets.__file__).parent / f"{name}.toml").read_text())


def implied(given: Values, base: Values) -> Values:
    """What data with its own clients brings with it, unless told otherwise."""
    out: Values = {}
    dataset = given.get("dataset", base["dataset"])
    if dataset != base["dataset"] and dataset in OWN_CLIENTS:
        out = {"partition": "natural", "model": OWN_CLIENTS[dataset]}
    if (out | given).get("partition") == "natural" and base["partition"] != "natural":
        out["clients"] = 0
    return out


def contradictions(config: Values, flags: Values) -> set[str]:
    """Settings of which no two fit together."""
    out: set[str] = set()
    improve, index = config["improve"], config["index"]
    if config["clients"] == 0 and config["partition"] != "natural":
        out |= {"clients"}
    if (config["train_size"] or config["test_size"]) and config["dataset"] != "shapes":
        out |= {"train_size"}
    if "sampling" in improve and config["sampling"] != "uniform":
        out |= {"sampling"}
    if index == "local-model-weights" and (set(improve) - {"local"} or config["index_file"]):
        out |= {"improve", "index_file", "index"}
    if config["index_part"] == "label" and ("local" in improve or index != "dsa-ign"):
        out |= {"index_part"}
    if index in LABELS_ALONE and "local" in improve:
        out |= {"improve", "index"}
    if "clustering" in improve and (
        config["algorithm"] in ("ifca", "cfl") or config["sampling"] != "uniform"
    ):
        out |= {"algorithm", "sampling"}
    matching = ("dsa-ign", "feature-average", "centred-average", *LABELS_ALONE[:2])
    by_index = {"clustering", "personalization"} & set(improve)
    own_models = ("fedrep", "ditto", "pfedme", "fedproto", "fine-tuning")
    if "personalization" in improve and config["algorithm"] in own_models:
        out |= {"algorithm"}
    if "clustering" in improve and config["algorithm"] in own_models[1:]:
        out |= {"algorithm"}
    if config["hold_out_clients"] and by_index and index not in matching:
        out |= {"hold_out_clients"}
    by_one_model = ("power-of-choice", "clustered-similarity", "divfl")
    if config["algorithm"] in ("ifca", "cfl") and config["sampling"] in by_one_model:
        out |= {"sampling"}
    share = config["participation"] != FIELDS["participation"].default or "participation" in flags
    if config["cohort"] and share:
        out |= {"cohort"}
    if "clients" in flags and config["clients_per_domain"]:
        out |= {"clients_per_domain"}
    return out


def unmet(name: str, config: Values) -> bool:
    def has(other: str, allowed: tuple[str, ...]) -> bool:
        value = config[other]
        return bool(set(value if isinstance(value, list) else [value]) & set(allowed))

    return not all(has(other, allowed) for other, allowed in FIELDS[name].needs.items())


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
