"""What of a sweep is not as in the paper, in plain sentences.

Each cell is compared with the cell of the same labels in the shipped sweep at the paper's scale
(its settings), and with what the paper names beyond settings: data, encoder, pre-trained weights.
Data and encoder are those of the run's manifest, so that a stand-in is called by its name.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from c2v_sim.config import FIELDS, RunConfig
from c2v_sim.index import config as index_config
from c2v_sim.run.files import JsonObject
from c2v_sim.sweep.file import Sweep, read_sweep
from c2v_sim.sweep.tables.layout import SEEDS
from c2v_sim.sweep.tables.results import CellRun
from c2v_sim.system.settings import PAPER, Affects

SMALL = "Small-scale run: not a reproduction of the paper"
SUBSTITUTES = "Run with substitutes: not a reproduction of the paper"
DATA_NAMES = {"cifar10": "CIFAR10", "domainnet": "DomainNet", "shakespeare": "Shakespeare"}
PAPER_ENCODER, CLIP = "CLIP ViT-B/32", "clip ViT-B-32/openai"
PRETRAINED = ("mobilenetv2", "resnet18-imagenet")  # start from ImageNet weights in the paper
WORDS = {
    "lr": "learning rate",
    "eval_every": "rounds between evaluations",
    "index_max_samples": "samples per client that the index sees",
    "sample_fraction": "share of the text",
}
DATA, ENCODER, MODEL, CLIENTS = "data", "encoder", "model", "clients"


@dataclass(frozen=True)
class Comparison:
    """One thing, here and in the paper."""

    what: str
    here: str
    paper: str
    cell: str

    @property
    def deviates(self) -> bool:
        return self.here != self.paper

    def __str__(self) -> str:
        return f"{self.what} {self.here} (paper: {self.paper})"


def compare(sweep: Sweep, runs: list[CellRun]) -> list[Comparison]:
    """Everything that can be compared, cell by cell; nothing without a reference."""
    if not sweep.table.reference:
        return []
    cells = read_sweep(sweep.table.reference).cells
    reference = {place(cell.labels): cell.config for cell in cells}
    out = []
    for run in runs:
        paper = reference.get(place(run.cell.labels))
        if paper is None:
            out.append(Comparison("cell", run.cell.name, "none", run.cell.name))
        else:
            pairs = compare_run(run, paper)
            out += [Comparison(what, *pair, run.cell.name) for what, pair in pairs.items()]
    return out


def place(labels: dict[str, str]) -> frozenset[tuple[str, str]]:
    """Where a cell is, whatever its seed."""
    return frozenset((axis, label) for axis, label in labels.items() if axis != SEEDS)


def compare_run(run: CellRun, paper: RunConfig) -> dict[str, tuple[str, str]]:
    """What -> here and in the paper."""
    config, manifest = run.config, run.manifest
    out = {
        MODEL: (
            starting(config.model, bool(config.pretrained)),
            starting(paper.model, paper.model in PRETRAINED),
        ),
        CLIENTS: (clients(config), clients(paper)),
    }
    data = DATA_NAMES.get(paper.dataset, paper.dataset)
    if manifest:
        name = manifest["data"]["name"]
        out[DATA] = (data if name == paper.dataset else name, data)
    elif config.dataset != paper.dataset:
        out[DATA] = (config.dataset, data)
    encoder = manifest.get("encoder")
    if encoder:
        out[ENCODER] = (PAPER_ENCODER if encoder == CLIP else encoder, PAPER_ENCODER)
    for name, setting in FIELDS.items():
        of_index = setting.affects & Affects.INDEX and not config.improve
        of_network = setting.section == index_config.of_network.title and config.index != "dsa-ign"
        if setting.compared_in(PAPER) and not (of_index or of_network):
            word = WORDS.get(name, name.replace("_", " "))
            here, there = (in_words(name, getattr(c, name)) for c in (config, paper))
            out[word] = (here, there)
    return out


def starting(model: str, pretrained: bool) -> str:
    return f"{model} {'with pre-trained weights' if pretrained else 'from scratch'}"


def clients(config: RunConfig) -> str:
    if config.partition == "natural":
        return "those of the data"
    each = config.clients_per_domain
    return f"{each} per domain" if each else f"{config.clients}"


def in_words(name: str, value: object) -> str:
    """A setting for people."""
    if isinstance(value, tuple):
        return " + ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "index_max_samples" and value == 0:
        return "all"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def headline(comparisons: list[Comparison]) -> str:
    """The sentence that no reader may miss; empty where nothing deviates."""
    what = {c.what for c in comparisons if c.deviates}
    if not what:
        return ""
    models = [(c.here.split()[0], c.paper.split()[0]) for c in comparisons if c.what == MODEL]
    same_models = all(here == paper for here, paper in models)  # perhaps without their weights
    substitutes = {DATA, ENCODER} | ({MODEL} if same_models else set())
    return SUBSTITUTES if what <= substitutes else SMALL


def sentences(sweep: Sweep, runs: list[CellRun], comparisons: list[Comparison]) -> list[str]:
    """What deviated, for the reader of the table."""
    out = []
    for what, form in (
        (DATA, "The data is {here}, not {paper}"),
        (ENCODER, "The encoder of the index is {here}, not {paper}"),
        (MODEL, "The network is {here}, not {paper}"),
    ):
        of_this = [c for c in comparisons if c.what == what]
        pairs = Counter((c.here, c.paper) for c in of_this if c.deviates)
        for (here, paper), count in pairs.items():
            out.append(form.format(here=here, paper=paper) + part(count, len(of_this)))
    out += standins(runs)
    if settings := deviating_settings(comparisons):
        out.append(f"Other settings than the paper's: {'; '.join(settings)}")
    if sweep.table.reference:
        out += left_out(sweep, read_sweep(sweep.table.reference))
    return [f"{sentence}." for sentence in out]


def part(count: int, total: int) -> str:
    return "" if count == total else f" (in {count} of {total} cells)"


def standins(runs: list[CellRun]) -> list[str]:
    data = [run.manifest["data"] for run in runs if run.manifest]
    found = {(d["name"], d["stand_in_for"]) for d in data if d["stand_in_for"]}
    return [
        f"{name} is a stand-in: its numbers say nothing about {DATA_NAMES.get(real, real)}"
        for name, real in sorted(found)
    ]


def deviating_settings(comparisons: Iterable[Comparison]) -> list[str]:
    """`rounds 20 (paper: 100)`, each once, in the order of the settings."""
    by_word: dict[str, list[Comparison]] = {}
    for c in comparisons:
        if c.what not in (DATA, ENCODER, MODEL):
            by_word.setdefault(c.what, []).append(c)
    out = []
    for word, of_word in by_word.items():
        odd = [c for c in of_word if c.deviates]
        if odd:
            here = " or ".join(dict.fromkeys(c.here for c in odd))
            paper = " or ".join(dict.fromkeys(c.paper for c in odd))
            text = f"{word} {here} (paper: {paper})"
            out.append(text + part(len(odd), len(of_word)))
    return out


def left_out(sweep: Sweep, reference: Sweep) -> list[str]:
    """Labels of the paper's table that this sweep does not have."""
    absent = []
    for axis, labels in reference.axes.items():
        missing = [label for label in labels if label not in sweep.axes.get(axis, ())]
        absent += [f"{axis} {', '.join(missing)}"] if missing else []
    return [f"Not in this sweep, of the paper's: {'; '.join(absent)}"] if absent else []


def progress(runs: list[CellRun]) -> list[str]:
    """How many cells are done, and which failed; nothing where all are done."""
    done = sum(run.status == "done" for run in runs)
    out = [] if done == len(runs) else [f"{done} of {len(runs)} cells are done."]
    failed = [run for run in runs if run.status == "failed"]
    return out + [f"{run.cell.name} failed: {run.reason}." for run in failed]


def origins(runs: list[CellRun]) -> list[str]:
    """Data, machine, versions and commit of the runs; that they differ where they do."""
    manifests = [run.manifest for run in runs if run.manifest]
    if not manifests:
        return ["No cell has run."]
    kinds = {
        "data": [data_text(m["data"]) for m in manifests],
        "machine": [machine_text(m["machine"], m["backend"]["device"]) for m in manifests],
        "version": [", ".join(f"{k} {v}" for k, v in m["versions"].items()) for m in manifests],
        "commit": [m["commit"] or "unknown" for m in manifests],
    }
    out = []
    for kind, texts in kinds.items():
        counts = Counter(texts)
        if len(counts) == 1:
            out.append(f"{kind.capitalize()}: {texts[0]}.")
        else:
            listed = "; ".join(f"{text} ({n} cells)" for text, n in counts.items())
            out.append(f"The cells differ in their {kind}: {listed}.")
    return out


def data_text(data: JsonObject) -> str:
    sizes = f"{data['train']:,} training and {data['test']:,} test samples"
    return f"{data['name']}, {sizes}, {data['source']}"


def machine_text(machine: JsonObject, device: str) -> str:
    gpu = f", {machine['gpu']}" if machine["gpu"] else ""
    memory = f"{machine['memory_gib']} GiB"
    return f"{machine['cpu']}, {machine['cores']} cores, {memory}{gpu}, trained on {device}"
