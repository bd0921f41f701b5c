"""`python -m c2v_sim.index --compare`: one table of several indices."""

import json

import pytest
import torch
from planted import planted

from c2v_sim.index import __main__ as command
from c2v_sim.index.build import build_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.quality import separation
from c2v_sim.index.similarity.compare import CANDIDATES, chosen, lines_of
from c2v_sim.index.similarity.measures import measures, uploaded

TINY = ["--train-size", "360", "--test-size", "60", "--partition", "by-domain"]
TINY += ["--clients-per-domain", "2", "--epochs", "2", "--hidden", "32", "--threads", "1"]


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))


def test_all_kinds_in_one_table(tmp_path, capsys):
    out = tmp_path / "all"
    assert command.main([*TINY, "--compare", "all", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    facts = json.loads((out / "comparison.json").read_text())
    names = [line["name"] for line in facts["indices"]]
    assert [name for name in names if "," not in name] == list(CANDIDATES)
    assert "dsa-ign-federated, label part" in names
    assert facts["encoder"] == "builtin"
    assert facts["settings"]["dsa-ign-federated"]["hidden"] == 32
    table = (out / "comparison.md").read_text()
    assert table in captured.out
    assert len(table.splitlines()) == 2 + len(names)
    assert all(name in table for name in names)
    assert {p.name for p in out.iterdir()} == {
        f"comparison.{s}" for s in ("md", "json", "png", "svg")
    }
    assert "index 15/15: private-average" in captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nothing-such"], "--compare takes all, or some of dsa-ign-global"),
        (["random", "--index", "random"], "--index has no effect with --compare"),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.chdir(tmp_path)
    assert command.main([*TINY, "--compare", *flags]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_measures_know_domains():
    federation, images, labels = planted(clients_per_domain=3, samples=40)
    made = {
        kind: build_index(federation, IndexConfig(index=kind), embeddings=(images, labels))
        for kind in ("centred-average", "label-histogram", "random")
    }
    of = {kind: measures(index) for kind, index in made.items()}
    assert of["centred-average"]["rand"] == 1.0
    assert abs(of["random"]["rand"]) < 0.4
    assert of["label-histogram"]["spearman"] > 0.8 > of["centred-average"]["spearman"]
    slow = separation(made["centred-average"].feature, made["centred-average"].domains)
    for name in ("within", "between", "silhouette"):
        assert of["centred-average"][name] == pytest.approx(slow[name], abs=1e-5)
    (line,) = lines_of("random", made["random"])
    assert line.bytes == 0
    alone = measures(
        build_index(federation, IndexConfig(index="random"), embeddings=(images, labels))
    )
    assert alone == of["random"]


def test_without_domains_there_is_nothing_to_compare_with():
    federation, images, labels = planted(clients_per_domain=2, samples=10, domains=2, classes=3)
    index = build_index(federation, IndexConfig(index="random"), embeddings=(images, labels))
    object.__setattr__(index, "domains", None)
    assert measures(index)["within"] is None
    assert measures(index)["spearman"] is not None


def test_bytes_that_a_client_uploads():
    sizes = torch.tensor([100, 300]).numpy()
    assert uploaded(IndexConfig(index="label-histogram"), sizes, 10) == 40
    assert uploaded(IndexConfig(index="principal-angles"), sizes, 10) == 4 * 5 * 512
    own = 4 * (512 + 10)
    pairs = (100 + 128) / 2 * (4 * 512 + 8)
    assert uploaded(IndexConfig(), sizes, 10) == own + pairs
    federated = IndexConfig(strategy="federated", epochs=500, participation=0.5)
    assert uploaded(federated, sizes, 10) == own + 50 * 1 / 2 * 4 * 937_824


def test_names_are_taken_once():
    assert chosen(["random", "random", "feature-average"]) == ["random", "feature-average"]
