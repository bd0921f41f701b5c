"""Runs → groups of those that differ only in their seed, with labels that say what differs.

A run that failed before it made its client index belongs with the seeds that did: it is compared
by the index that its settings ask for.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from c2v_sim.config import FIELDS, OF_OLDER_RUNS, RunConfig, index_settings, make_config
from c2v_sim.index.config import IndexConfig
from c2v_sim.report.runs import Unstarted
from c2v_sim.run.reader import Run
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import REPORT, facts_of, unmet_need

# Settings on which the result does not depend but for chance, and a file of which the manifest says
# what was in it.
NOT_COMPARED = {name for name, setting in FIELDS.items() if not setting.compared_in(REPORT)}
# Of what a run was not told.
DEFAULTS = json.loads(json.dumps(dataclasses.asdict(RunConfig()) | OF_OLDER_RUNS))


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed."""

    label: str
    facts: dict[str, Any]  # what they have in common
    runs: list[Run]
    unstarted: list[Unstarted]

    @property
    def everyone(self) -> list[Run | Unstarted]:
        return sorted([*self.runs, *self.unstarted], key=seed_of)

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.state == "done"]

    @property
    def counted(self) -> list[Run]:
        """The runs of which means are made: the finished ones, or else what there is so far."""
        return self.finished or self.runs


def seed_of(run: Run | Unstarted) -> int:
    return run.config.get("seed", 0)


def group_runs(runs: Sequence[Run], unstarted: Sequence[Unstarted] = ()) -> list[Group]:
    """Runs by equal settings; groups in the order of their first run, an algorithm as it is before
    its improvements, seeds in their order."""
    data = {run.config.get("dataset"): run.manifest["data"]["name"] for run in runs}
    everyone: list[Run | Unstarted] = [*runs, *unstarted]
    facts: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Run | Unstarted]] = {}
    for run in everyone:
        fact = compared(run, data)
        key = json.dumps(fact, sort_keys=True)
        facts[key] = fact
        members.setdefault(key, []).append(run)
    algorithms = list(dict.fromkeys(fact.get("algorithm") for fact in facts.values()))

    def place(key: str) -> tuple[int, int]:
        fact = facts[key]
        return algorithms.index(fact.get("algorithm")), len(fact.get("improve", ()))

    ordered = sorted(members, key=place)
    firsts = [facts[key] for key in ordered]
    names = [n for n in dict.fromkeys(n for fact in firsts for n in fact) if differs(n, firsts)]
    groups = []
    for key in ordered:
        of_group = sorted(members[key], key=seed_of)
        begun = [run for run in of_group if isinstance(run, Run)]
        others = [run for run in of_group if isinstance(run, Unstarted)]
        groups.append(Group(group_label(facts[key], names), facts[key], begun, others))
    return groups


def compared(run: Run | Unstarted, data: Mapping[str | None, str]) -> dict[str, Any]:
    """What two runs must have in common to be seeds of one experiment.

    `data` names the data of a run that did not come to load it, by the data set it asked for.
    """
    settings = DEFAULTS | run.config
    facts = {fact_name(n): v for n, v in settings.items() if n not in NOT_COMPARED}
    asked = run.config.get("dataset")
    facts["data"] = run.manifest["data"]["name"] if isinstance(run, Run) else data.get(asked, asked)
    own = facts_of(IndexConfig)
    for name, value in index_made(run).items():  # an index from a file has settings of its own
        if name not in own or own[name].compared_in(REPORT):
            facts["index" if name == "index" else f"index {name.removeprefix('index_')}"] = value
    return facts


def fact_name(setting: str) -> str:
    """`index epochs` of index_epochs: one name for the run's setting and for that of its index."""
    return setting.replace("_", " ", 1) if setting.startswith("index_") else setting


def index_made(run: Run | Unstarted) -> dict[str, Any]:
    """The settings of the run's index; those it would have had where it did not come so far."""
    about = run.manifest.get("index") if isinstance(run, Run) else None
    if about:
        return about.get("settings") or {}
    try:
        config = make_config(run.config)
    except ConfigError:  # of another version
        return {}
    if not config.needs_client_index or config.index_file:
        return {}
    return json.loads(json.dumps(dataclasses.asdict(index_settings(config))))


def differs(name: str, facts: list[dict[str, Any]]) -> bool:
    """Whether those groups on which a setting has an effect differ in it."""
    return len({json.dumps(fact.get(name)) for fact in facts if has_effect(name, fact)}) > 1


def has_effect(name: str, facts: dict[str, Any]) -> bool:
    """Whether the other settings let this one do something."""
    if name.startswith("index"):
        return bool(facts.get("improve")) and name in facts  # unknown: no difference
    return name not in FIELDS or unmet_need(FIELDS[name], facts.get) is None


def group_label(facts: dict[str, Any], differing: list[str]) -> str:
    """`feddyn + sampling, local; alpha 0.5`: algorithm, improvements, then whatever differs."""
    improved = facts.get("improve") or []
    label = str(facts.get("algorithm"))
    if improved:
        every = len(improved) == 3
        label += " + Client2Vec" if every else f" + {', '.join(improved)}"
    for name in differing:
        value = facts.get(name)
        said_elsewhere = name in ("algorithm", "improve", "dataset")
        if said_elsewhere or value in (None, "") or not has_effect(name, facts):
            continue
        text = ", ".join(value) or "nothing" if isinstance(value, list) else str(value)
        plain = name in ("data", "model", "partition")
        label += f"; {text}" if plain else f"; {name.replace('_', ' ')} {text}"
    return label
