"""What a resumed run must have in common with its beginning: the manifest says what that was.

    config.toml    the settings that a resume may not change
    data           the hash of its samples
    partition.npz  the hash of its ids
    pretrained     the hash of the file
    index          the hash of its vectors

Anything else is refused by name. Other versions of the packages are a warning. A run that began
before the manifest kept one of these is not asked for it. The number of rounds may change, as
nothing before depends on it, but not to fewer than are done.
"""

import dataclasses
import sys
from pathlib import Path

from c2v_sim.config import RunConfig, saved_config
from c2v_sim.data.federation import Federation
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.models import Pretrained
from c2v_sim.run import files as run_directory
from c2v_sim.run.checkpoint import generations
from c2v_sim.run.files import CONFIG, INDEX, MANIFEST, PARTITION, RESULTS, JsonObject, read_json
from c2v_sim.run.manifest import kept_settings, versions
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import ConfigError

BACK = "put back what the run began with, or start a new run"


def began_with(folder: Path, section: str) -> JsonObject:
    """A section of the manifest; empty where the run has none."""
    found = read_json(folder / MANIFEST).get(section) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"--resume {folder}: {section!r} of {MANIFEST} is damaged: {found!r:.40}")
    return found


def check_settings(folder: Path, config: RunConfig) -> None:
    """Refuse a config.toml, from which `config` was read, that was changed since the run began."""
    began, now = began_with(folder, "settings"), kept_settings(config)
    changed = [name for name in began if name in now and began[name] != now[name]]
    if changed:
        told = "; ".join(f"{name} (was {began[name]}, now {now[name]})" for name in changed)
        raise ConfigError(f"--resume {folder}: {CONFIG} was changed: {told}; {BACK}")


def check_rounds(folder: Path, saved: RunConfig, wanted: RunConfig) -> None:
    """Refuse fewer rounds than are done; the last one is always evaluated, so it must be still to
    come where it would not be otherwise."""
    found = generations(folder / run_directory.CHECKPOINTS)
    done = int(found[-1].name) if found else 0
    every = wanted.eval_every
    as_ever = wanted.rounds == saved.rounds or every == 0 or done % every == 0
    least = done if as_ever else done + 1
    if wanted.rounds < least:
        raise ConfigError(
            f"--resume {folder}: {done} rounds are done, so rounds must be at least {least}, got "
            f"{wanted.rounds}"
        )


def check_federation(folder: Path, federation: Federation) -> None:
    """Refuse other data, or another partition of it."""
    began, now = began_with(folder, "data"), federation.dataset
    if began.get("sha256") != now.sha256:
        raise ConfigError(
            f"--resume {folder}: the run began on {began.get('name')} "
            f"({str(began.get('sha256'))[:12]}), but {now.name} ({now.sha256[:12]}) was found now. "
            "Give the same --data-dir"
        )
    was = began_with(folder, "partition").get("sha256")
    _refuse(folder, PARTITION, was, federation.partition.sha256)


def check_pretrained(folder: Path, now: Pretrained | None) -> None:
    """Refuse another file of weights."""
    was = began_with(folder, "model").get("pretrained")
    if isinstance(was, dict) and now is not None:
        _refuse(folder, f"the pretrained file {now.file}", was.get("sha256"), now.sha256)


def check_index(folder: Path, index: ClientIndex) -> None:
    """Refuse another index than the one that the run has had since its first round."""
    _refuse(folder, INDEX, began_with(folder, "index").get("sha256"), index.sha256)


def _refuse(folder: Path, what: str, was: object, now: str) -> None:
    if was is not None and was != now:
        raise ConfigError(
            f"--resume {folder}: {what} is another one than the run began with (SHA-256 was "
            f"{str(was)[:12]}, now {now[:12]}); {BACK}"
        )


def warn_of_versions(folder: Path) -> None:
    """Say which packages are not those of the beginning: the last bits may come out otherwise."""
    began, now = began_with(folder, "versions"), versions()
    other = [f"{k} was {began[k]}, is {now[k]}" for k in now if began.get(k, now[k]) != now[k]]
    if other:
        print(
            f"c2v_sim: warning: the run began with other versions: {', '.join(other)}; the bits "
            "may differ from those of a run that was never stopped",
            file=sys.stderr,
        )


def go_on(folder: Path, simulator: Simulator) -> None:
    """Before more rounds are trained: results of fewer are removed, another number is kept."""
    rounds = simulator.config.rounds
    if simulator.round < rounds:
        for name in RESULTS:
            (folder / name).unlink(missing_ok=True)
    saved = saved_config(folder / CONFIG)
    if saved.rounds == rounds:
        return
    facts = read_json(folder / MANIFEST)
    change = f"{saved.rounds} to {rounds} after round {simulator.round}"
    facts["rounds_changed"] = [*facts.get("rounds_changed", []), change]
    facts["client_state"] = simulator.row_plan.sentence
    run_directory.write_text(folder / MANIFEST, run_directory.to_json(facts))
    text = run_directory.config_text(simulator, dataclasses.replace(saved, rounds=rounds))
    run_directory.write_text(folder / CONFIG, text)
