"""The accuracy of each domain round by round → the packed curves of the report."""

import math

import numpy as np

from c2v_sim.report.clients import COLUMNS, Order, PlainData, pack
from c2v_sim.run.reader import Run
from c2v_sim.simulator.records import RoundRecord
from c2v_sim.system.text import percent

UNTESTED = 10001  # in hundredths of a per cent: no client of the domain has test samples


def domain_data(run: Run, order: Order) -> PlainData | None:
    """Values [T, D] of at most COLUMNS rounds, the last one among them; None without domains."""
    evaluated = [r for r in run.evaluated if r.accuracy_domains]
    if not evaluated or order.by != "domain":
        return None
    places = np.linspace(0, len(evaluated) - 1, min(len(evaluated), COLUMNS)).round().astype(int)
    drawn = [evaluated[place] for place in places]
    values = np.array([r.accuracy_domains for r in drawn], dtype=np.float64)  # [T, D]
    levels = np.where(np.isnan(values), UNTESTED, np.round(values * 10000)).astype(np.int64)
    return {
        "rounds": pack(np.array([r.round for r in drawn])),
        "values": pack(levels),
        "caption": domain_caption(run, order, evaluated[-1], len(drawn), len(evaluated)),
    }


def domain_caption(run: Run, order: Order, last: RoundRecord, drawn: int, evaluated: int) -> str:
    """The best and the worst domain in the last evaluated round."""
    names = [order.names[domain] for domain in np.unique(order.group)]
    by_domain = zip(last.accuracy_domains or (), names, strict=True)
    known = sorted((value, name) for value, name in by_domain if math.isfinite(value))
    when = f"At the end, in round {last.round}"
    if run.state != "done":
        when = f"In round {last.round}, the last one so far"
    words = "Mean over the clients of a domain."
    if known:
        (low, worst), (high, best) = known[0], known[-1]
        words += f" {when}: best {best} with {percent(high, 1)}, worst {worst} with "
        words += f"{percent(low, 1)}, {100 * (high - low):.1f} percentage points apart."
    if drawn < evaluated:
        words += f" {drawn} of {evaluated} evaluated rounds are drawn."
    return words
