"""What the runs of a sweep took, in a sentence below its table."""

import json

from c2v_sim.run.files import JsonObject
from c2v_sim.sweep.tables.results import CellRun


def time_taken(runs: list[CellRun]) -> list[str]:
    """Seconds of the rounds of all runs so far, and of every index, which several runs share, once
    with what it took when it was built."""
    begun = [run.run for run in runs if run.run and run.run.records]
    if not begun:
        return []
    rounds = sum(run.cost.rounds for run in begun)
    text = f"Time: {rounds:.1f} s in the rounds of {len(begun)} run{'s' if len(begun) > 1 else ''}"
    made = {identity(run.manifest): run.cost.index for run in begun if run.manifest["index"]}
    if made:
        known = [seconds for seconds in made.values() if seconds is not None]
        noun = "client index" if len(known) == 1 else "client indices"
        text += f", {sum(known):.1f} s for {len(known)} {noun} (each once, what it took "
        text += f"when it was built), {rounds + sum(known):.1f} s in all"
        if len(known) < len(made):
            text += f"; the time of {len(made) - len(known)} more is not recorded"
    return [f"{text}."]


def identity(manifest: JsonObject) -> str:
    """The same for runs that share an index."""
    about = manifest["index"]
    facts = [about.get("embeddings_sha256"), about.get("settings"), manifest["partition"]["sha256"]]
    return json.dumps(facts)
