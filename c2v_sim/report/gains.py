"""What a client index gained: groups of runs → the best accuracy over that of the original.

The original of a group is the one without an index that has the same settings otherwise. Gains are
taken seed by seed, of finished runs, in percentage points.
"""

from collections.abc import Sequence

import numpy as np

from c2v_sim.report.groups import Group, has_effect, seed_of
from c2v_sim.report.one_run import best_and_last

MINUS = "\N{MINUS SIGN}"


def original_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """The same without an index; None where it is not among the groups."""
    if not group.facts.get("improve"):
        return None
    for other in groups:
        alike = (n for n in other.facts if n != "improve" and has_effect(n, other.facts))
        if not other.facts.get("improve") and all(
            other.facts[name] == group.facts.get(name) for name in alike
        ):
            return other
    return None


def gains(group: Group, groups: Sequence[Group]) -> list[float]:
    """One number per seed that both have finished."""
    original = original_of(group, groups)
    if original is None:
        return []
    before, after = (
        {seed_of(run): scores[0] for run in one.finished if (scores := best_and_last(run))}
        for one in (original, group)
    )
    return [100 * (after[seed] - before[seed]) for seed in after if seed in before]


def gain_text(values: Sequence[float]) -> str:
    """`+3.9`, of several seeds `+3.9 ± 0.4`; a dash without any."""
    if not values:
        return "–"
    text = f"{np.mean(values):+.1f}".replace("-", MINUS)
    return text if len(values) == 1 else f"{text} ± {np.std(values):.1f}"


def gain_words(groups: Sequence[Group]) -> list[str]:
    """A sentence for every group that has an original."""
    out = []
    for group in groups:
        values, original = gains(group, groups), original_of(group, groups)
        if values and original:
            seeds = "" if len(values) == 1 else f" (mean of {len(values)} seeds)"
            out.append(
                f"{group.label}: {gain_text(values)} points over {original.label}, best over "
                f"best{seeds}."
            )
    return out
