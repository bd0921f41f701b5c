"""What the run command says at its start and at its end."""

import shlex
import sys
from pathlib import Path

from c2v_sim.ops._dispatch import native_missing
from c2v_sim.run.files import ACCURACIES
from c2v_sim.simulator.records import Result
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.text import percent

COMMAND = ["python", "-m", "c2v_sim.run"]


def show_start(simulator: Simulator, out: Path, label: str) -> None:
    """On standard error: what is trained, with which settings, and where."""
    config, federation = simulator.config, simulator.federation
    lines = [
        f"c2v_sim: {federation.dataset.name}, {federation.partition.convention}, "
        f"{federation.partition.clients} clients, cohort {simulator.cohort_size}",
        f"  {config.model} ({simulator.layout.trainable:,} parameters), {config.algorithm}, "
        f"rounds: {config.rounds} × {config.local_epochs} local epochs, seed {config.seed}, "
        f"{simulator.lanes.count} lanes on {simulator.device}",
        f"  {simulator.row_plan.sentence}" + improved(simulator),
        f"  settings: {label}" + (" (a short run, not the paper's)" if "quick" in label else ""),
        f"  run directory: {out}",
    ]
    if simulator.pretrained is not None:
        start = simulator.pretrained
        lines.append(f"  starts from {start.file}; classifier {start.classifier}")
    if simulator.device.type == "cpu" and native_missing:
        lines.append(f"  torch references run instead of the native operators: {native_missing}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def improved(simulator: Simulator) -> str:
    """What the client index does in this run, in words."""
    config, index = simulator.config, simulator.index
    if not config.improve:
        return ""
    encoder = f", {index.provenance['encoder']} encoder" if index else ""
    return f"; {config.index} index{encoder} improves {', '.join(config.improve)}"


def show_result(simulator: Simulator, result: Result, out: Path, label: str) -> None:
    """On standard output: the accuracies of the best and of the last round."""
    best, final = result.best, result.final
    dataset, config = simulator.federation.dataset, simulator.config
    print(f"\n{dataset.name}, {config.model}, {config.algorithm}, seed {config.seed}, {label}")
    print(f"{'test accuracy':<24}{f'best (round {best.round})':>18}{f'last ({final.round})':>12}")
    for name, words in ACCURACIES.items():
        at_best, at_end = percent(getattr(best, name)), percent(getattr(final, name))
        print(f"{words:<24}{at_best:>18}{at_end:>12}")
    print(f"run directory: {out}")


def resume_command(out: Path) -> str:
    return shlex.join([*COMMAND, "--resume", str(out)])
