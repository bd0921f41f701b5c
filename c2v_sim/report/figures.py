"""The report's figures as Vega-Lite specifications, built and checked by altair.

A specification has no data: the page fills in the data sets that it names, the parameters `rows`
(how many rows of clients), `middles` and `names` (where the names of groups of clients go on an
axis) and the height, for the run that is looked at. Colours come from the page's theme; those of
groups, series and stages are in the data (`colour`), so that they stay when some are hidden.
"""

import altair as alt

GIVEN_COLOUR = alt.Color("colour:N", legend=None, scale=None)
COSINES = alt.Scale(domain=[-1, 1], range="diverging", interpolate="rgb")


def client_rows() -> alt.Y:
    """Rows of clients from top to bottom."""
    scale = alt.Scale(domainMin=0, domainMax=alt.ExprRef("rows"), reverse=True, nice=False)
    return alt.Y("row:Q", title="client", scale=scale, axis=group_names())


def group_names() -> alt.Axis:
    """A name at the middle of each group of clients."""
    return alt.Axis(
        values=alt.ExprRef("middles"),
        labelExpr="names[indexof(middles, datum.value)]",
        labelOverlap="greedy",
        labelLimit=90,
        ticks=False,
        grid=False,
    )


def with_rows(chart: alt.Chart) -> alt.Chart:
    return chart.add_params(
        alt.param(name="rows", value=1),
        alt.param(name="middles", value=[]),
        alt.param(name="names", value=[]),
    )


def rounds_axis(field: str, *, grid: bool = False, padding: int = 0) -> alt.X:
    """Rounds from left to right; Vega also marks halves, and a round 0, which have no name."""
    whole = "datum.value % 1 || datum.value < 1 ? '' : datum.label"
    axis = alt.Axis(tickMinStep=1, format="d", labelExpr=whole, grid=grid)
    scale = alt.Scale(nice=False, zero=False, padding=padding)
    return alt.X(field, title="round", scale=scale, axis=axis)


def tips(*fields: str) -> list[alt.Tooltip]:
    """Tooltips of fields given as `field:type` or `field:type:format`; the field is its title."""
    out = []
    for text in fields:
        name, kind, *form = text.split(":")
        out.append(alt.Tooltip(f"{name}:{kind}", format=form[0] if form else alt.Undefined))
    return out


def colour_bar(title: str) -> alt.Legend:
    return alt.Legend(title=title, orient="top", direction="horizontal", gradientLength=180)


def curves(y: alt.Y, *shown: str) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """What the lines are made of, the lines and their dots; colour and dash tell them apart."""
    x = rounds_axis("round:Q", grid=True)
    base = alt.Chart(alt.NamedData("curves")).encode(x=x, color=GIVEN_COLOUR, detail="series:N")
    line = base.mark_line().encode(
        y=y,
        strokeDash=alt.StrokeDash("dash:N", legend=None, scale=None),
        strokeWidth=alt.StrokeWidth("width:Q", legend=None, scale=None),
    )
    dot = alt.Opacity("dot:Q", scale=None, legend=None)  # 0 in long runs: for tooltips alone
    point = base.mark_point(filled=True, size=28).encode(y=y, opacity=dot, tooltip=tips(*shown))
    return base, line, point


def accuracy_curves() -> alt.LayerChart:
    """Mean over seeds with a band."""
    y = alt.Y("mean:Q", title="test accuracy (%)", scale=alt.Scale(zero=False))
    shown = ("series:N", "round:Q", "mean:Q:.2f", "low:Q:.2f", "high:Q:.2f", "runs:Q")
    base, line, point = curves(y, *shown)
    faint = alt.Opacity("band:Q", scale=None, legend=None)  # the fainter, the more there are
    band = base.mark_area(interpolate="linear").encode(
        y=alt.Y("low:Q", title="test accuracy (%)"), y2="high:Q", opacity=faint
    )
    return band + line + point


def domain_curves() -> alt.LayerChart:
    """A line per domain."""
    y = alt.Y("accuracy:Q", title="test accuracy (%)", scale=alt.Scale(zero=False))
    _, line, point = curves(y, "series:N", "round:Q", "accuracy:Q:.2f")
    return alt.LayerChart(layer=[line, point])


def time_of_groups() -> alt.Chart:
    """Seconds per run, by stage, a bar per group."""
    return (
        alt.Chart(alt.NamedData("times"))
        .mark_bar()
        .encode(
            y=alt.Y("label:N", title=None, sort=None, axis=alt.Axis(labelLimit=150)),
            x=alt.X("seconds:Q", title="seconds per run"),
            color=GIVEN_COLOUR,
            order=alt.Order("place:Q"),
            tooltip=tips("label:N", "stage:N", "seconds:Q:.2f"),
        )
    )


def cohort_timeline() -> alt.Chart:
    """A mark for every client and round it took part in."""
    return with_rows(
        alt.Chart(alt.NamedData("cells"))
        .mark_rect()
        .encode(
            x=rounds_axis("begin:Q"),
            x2="end:Q",
            y=client_rows(),
            y2="next:Q",
            color=GIVEN_COLOUR,
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            tooltip=tips("round:N", "client:N", "group:N", "times:Q", "weight:Q:.2f"),
        )
    )


def weights() -> alt.LayerChart:
    """The weight of every sampled client, the range of a round, and equal shares."""
    data = alt.Chart(alt.NamedData("cells"))
    x = rounds_axis("middle:Q", padding=8)  # no dot on the frame
    title = "aggregation weight (%)"
    span = data.mark_rule(opacity=0.35).encode(
        x=x, y=alt.Y("min(weight):Q", title=title), y2="max(weight):Q"
    )
    point = data.mark_circle(size=40, opacity=0.8).encode(
        x=x,
        y=alt.Y("weight:Q", title=title, scale=alt.Scale(zero=False)),
        color=GIVEN_COLOUR,
        tooltip=tips("round:N", "client:N", "group:N", "weight:Q:.2f"),
    )
    equal = data.mark_line(strokeWidth=1.5, strokeDash=[5, 3]).encode(
        x=x, y=alt.Y("mean(equal):Q", title=title)
    )
    return span + point + equal


def client_accuracy() -> alt.Chart:
    """How many clients reach which accuracy."""
    return (
        alt.Chart(alt.NamedData("bins"))
        .mark_bar(binSpacing=1)
        .encode(
            x=alt.X(
                "begin:Q",
                bin="binned",
                title="accuracy of a client (%)",
                scale=alt.Scale(domain=[0, 100], nice=False),
                axis=alt.Axis(grid=False, values=list(range(0, 101, 20))),
            ),
            x2="end:Q",
            y=alt.Y("clients:Q", title="clients", axis=alt.Axis(tickMinStep=1)),
            tooltip=tips("begin:Q", "end:Q", "clients:Q"),
        )
    )


def projection() -> alt.Chart:
    """Clients on the principal axes of the index, coloured by cluster."""
    points = alt.Chart(alt.NamedData("points")).mark_circle(size=60, opacity=0.85)
    return points.encode(
        x=alt.X("x:Q", title="first principal axis", scale=alt.Scale(zero=False)),
        y=alt.Y("y:Q", title="second principal axis", scale=alt.Scale(zero=False)),
        color=GIVEN_COLOUR,
        tooltip=tips("client:N", "cluster:N"),
    )


def before_and_after() -> alt.LayerChart:
    """A client's accuracy by its own model over that by the model it is made of."""
    whole, data = alt.Scale(domain=[0, 100], nice=False), alt.Chart(alt.NamedData("clients"))
    titles = ("not personal (%)", "personal (%)")
    x, y = (alt.X("before:Q", title=titles[0], scale=whole), alt.Y("after:Q", title=titles[1]))
    dots = data.mark_circle(size=45, opacity=0.7).encode(
        x=x, y=y, color=GIVEN_COLOUR, tooltip=tips("client:N", "before:Q:.1f", "after:Q:.1f")
    )
    edge = (alt.X("edge:Q", title=titles[0]), alt.Y("edge:Q", title=titles[1], scale=whole))
    return data.mark_line(strokeDash=[5, 3]).encode(*edge) + dots


def partition() -> alt.Chart:
    """Training samples of each class that each client holds."""
    legend = colour_bar("training samples")
    legend["tickCount"] = 4
    return with_rows(
        alt.Chart(alt.NamedData("held"))
        .mark_rect()
        .encode(
            x=alt.X(
                "class:N",
                sort=None,
                title="class",
                scale=alt.Scale(domain=["-"], paddingInner=0.06),
                axis=alt.Axis(labelAngle=-45, labelOverlap=True, labelLimit=80),
            ),
            y=client_rows(),
            y2="next:Q",
            color=alt.Color(
                "samples:Q",
                scale=alt.Scale(type="sqrt", range="ramp", domainMin=0, interpolate="rgb"),
                legend=legend,
            ),
            tooltip=tips("client:N", "group:N", "class:N", "samples:Q"),
        )
    )


def cosine_colour(field: str) -> alt.Color:
    legend = colour_bar("cosine")
    legend["values"] = [-1, 0, 1]
    return alt.Color(field, scale=COSINES, legend=legend)


def index_map() -> alt.Chart:
    """Cosine of every two rows of clients."""
    scale, names = alt.Scale(domainMin=0, domainMax=alt.ExprRef("rows"), nice=False), group_names()
    names["labelAngle"] = -45
    return with_rows(
        alt.Chart(alt.NamedData("cosines"))
        .mark_rect()
        .encode(
            x=alt.X("column:Q", title="client", scale=scale, axis=names),
            x2="right:Q",
            y=client_rows(),
            y2="next:Q",
            color=cosine_colour("cosine:Q"),
            tooltip=tips("client:N", "other:N", "cosine:Q:.2f"),
        )
    )


def group_map() -> alt.LayerChart:
    """Mean cosine between groups of clients, with the number in each cell."""
    base = alt.Chart(alt.NamedData("pairs")).encode(
        x=alt.X("b:N", sort=None, title=None, axis=alt.Axis(labelAngle=-45, labelLimit=90)),
        y=alt.Y("a:N", sort=None, title=None, axis=alt.Axis(labelLimit=90)),
    )
    cells = base.mark_rect().encode(
        color=cosine_colour("cosine:Q"), tooltip=tips("a:N", "b:N", "cosine:Q:.3f")
    )
    numbers = base.mark_text().encode(
        text=alt.Text("cosine:Q", format=".2f"),
        opacity=alt.condition("datum.written", alt.value(1), alt.value(0)),
        color=GIVEN_COLOUR,
    )
    return (cells + numbers).resolve_scale(color="independent")


def round_times() -> alt.Chart:
    """Seconds of each stage, round by round."""
    return (
        alt.Chart(alt.NamedData("times"))
        .mark_bar(binSpacing=0.5)
        .encode(
            x=rounds_axis("begin:Q").bin("binned"),
            x2="end:Q",
            y=alt.Y("seconds:Q", title="seconds per round", stack="zero"),
            color=GIVEN_COLOUR,
            order=alt.Order("place:Q"),
            tooltip=tips("round:N", "stage:N", "seconds:Q:.4f"),
        )
    )


FIGURES = {
    "curves": accuracy_curves,
    "group-times": time_of_groups,
    "domains": domain_curves,
    "timeline": cohort_timeline,
    "weights": weights,
    "histogram": client_accuracy,
    "projection": projection,
    "changes": before_and_after,
    "partition": partition,
    "index": index_map,
    "index-feature": index_map,
    "groups": group_map,
    "times": round_times,
}


def specifications() -> dict[str, object]:
    """All figures by name; altair raises on a specification that Vega-Lite would not take."""
    out: dict[str, object] = {}
    for name, make in FIGURES.items():
        spec = make().properties(width="container").to_dict()
        del spec["config"]  # altair's own sizes; the page has a theme
        out[name] = spec
    return out
