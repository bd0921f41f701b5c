"""Embeddings that clients sent: the index has the bits of the one that is built of all data."""

import pytest
import torch
from federations import image_federation

from c2v_sim import IndexConfig, build_index, index_from_embeddings

CONFIGS = {
    "dsa-ign": IndexConfig(
        epochs=2, hidden=16, dropout=0.0, batch_size=16, upload=9, threads=1, seed=3
    ),
    "feature-average": IndexConfig(index="feature-average"),
    "label-histogram": IndexConfig(index="label-histogram"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_bits_are_those_of_build_index(kind):
    federation, config = image_federation(), CONFIGS[kind]
    g = torch.Generator().manual_seed(0)
    x = torch.randn(len(federation.dataset.y_train), 512, generator=g)
    classes = torch.randn(4, 512, generator=g)
    own = [torch.from_numpy(ids) for ids in federation.partition.train]
    labels = [federation.dataset.y_train[ids] for ids in own]
    names = federation.dataset.class_names
    sent = index_from_embeddings(
        [x[ids] for ids in own], labels, classes, config, class_names=names
    )
    built = build_index(federation, config, embeddings=(x, classes))
    assert torch.equal(sent.feature, built.feature)
    assert torch.equal(sent.label, built.label)
    assert torch.equal(sent.label_counts, built.label_counts)
    assert sent.sizes.tolist() == federation.partition.sizes.tolist()
    assert sent.provenance["class_names"] == list(names)
    assert sent.provenance["federation"]["partition"]["name"] == "sent by the clients"


def test_an_index_that_was_sent_can_be_saved_and_read(tmp_path):
    x, y = torch.eye(512)[:6], torch.tensor([0, 1, 0])
    sent = ([x[:3], x[3:]], [y, y], torch.eye(512)[:2])
    index = index_from_embeddings(*sent, CONFIGS["feature-average"])
    index.save(tmp_path / "index.safetensors")
    assert type(index).load(tmp_path / "index.safetensors").sha256 == index.sha256


ROWS, LABELS = torch.ones(3, 512), torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("samples", "labels", "wrong"),
    [
        ([], [], "the same clients (at least one), got 0 and 0"),
        ([ROWS], [LABELS, LABELS], "got 1 and 2"),
        ([ROWS, ROWS], [LABELS, LABELS[:2]], "client 1 must send samples [n, D] and labels [n]"),
        ([ROWS[:0]], [LABELS[:0]], "n > 0, got [0, 512] and [0]"),
        ([ROWS], [LABELS + 1], "the labels of client 0 must be integers in 0..1, got torch.int64"),
        ([ROWS], [LABELS.float()], "must be integers in 0..1, got torch.float32"),
        ([ROWS[:, :7]], [LABELS], "must be a float tensor [3, 512], got torch.float32 (3, 7)"),
    ],
)
def test_what_cannot_be_is_refused_with_the_client(samples, labels, wrong):
    with pytest.raises(ValueError, match=r"index_from_embeddings|embeddings:") as error:
        index_from_embeddings(samples, labels, torch.ones(2, 512))
    assert wrong in str(error.value)
