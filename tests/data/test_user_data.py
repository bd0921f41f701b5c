"""Federations from what people have: tables, sequences, bytes, channels first, names as labels."""

import numpy as np
import pytest
import torch

from c2v_sim import Federation, RunConfig, Simulator

N = 60
G = np.random.default_rng(0)
X = G.normal(size=(N, 5)).astype(np.float32)
Y = np.arange(N) % 3
NAMES = np.array(["cat", "bird", "dog"])[Y]
CLIENTS = np.arange(N) % 6
QUICK = RunConfig(model="linear", rounds=1, cohort=2, local_epochs=1, batch_size=8)


def accuracy(federation, **parts):
    return Simulator(federation, QUICK, **parts).run().final.accuracy


def test_a_table_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(X, columns=list("abcde"))
    table["whole"], table["animal"] = np.arange(N), NAMES
    table["hospital"] = [f"hospital {i}" for i in CLIENTS]
    features = table[["a", "b", "c", "d", "e", "whole"]]
    federation = Federation.from_arrays(features, table["animal"], table["hospital"])
    assert federation.dataset.class_names == ("bird", "cat", "dog")
    assert federation.dataset.x_train.shape == (48, 6)
    assert federation.partition.clients == 6
    assert 0 <= accuracy(federation) <= 1
    with pytest.raises(
        ValueError, match=r"columns of x must be numbers, got animal \(\w+\); leave"
    ):
        Federation.from_arrays(table[["a", "animal"]], table["whole"] % 2, table["hospital"])
    ordered = table["animal"].astype(pandas.CategoricalDtype(["dog", "cat", "bird", "fish"]))
    kept = Federation.from_arrays(features, ordered, table["hospital"]).dataset
    assert kept.class_names == ("dog", "cat", "bird", "fish")
    assert torch.bincount(kept.y_train, minlength=4).tolist() == [16, 16, 16, 0]


def test_all_kinds_of_arrays_give_the_same_federation():
    given = Federation.from_arrays(X, Y, CLIENTS)
    for x, y, clients in (
        (torch.tensor(X), torch.tensor(Y), torch.tensor(CLIENTS)),
        (X.tolist(), Y.tolist(), CLIENTS.tolist()),
        (list(torch.tensor(X)), list(torch.tensor(Y)), CLIENTS),
    ):
        same = Federation.from_arrays(x, y, clients)
        assert same.dataset.sha256 == given.dataset.sha256
        assert same.partition.sha256 == given.partition.sha256
    with pytest.raises(ValueError, match="x must have samples of one shape: pad or cut them"):
        Federation.from_arrays([[1, 2], [3]], [0, 1], [0, 1])


class Reader(torch.nn.Module):
    """A user's network for sequences."""

    def __init__(self):
        super().__init__()
        self.embedding, self.classifier = torch.nn.Embedding(1000, 4), torch.nn.Linear(4, 3)

    def features(self, x):
        assert x.dtype == torch.int64
        return self.embedding(x).mean(1)


def test_integer_sequences_reach_the_model_as_symbol_numbers():
    tokens = G.integers(0, 1000, (N, 7))
    federation = Federation.from_arrays(tokens, Y, CLIENTS)
    assert 0 <= accuracy(federation, model=Reader()) <= 1
    with pytest.raises(ValueError, match=r"reach a model as symbol numbers.*must be floats"):
        Simulator(federation, QUICK)
    with pytest.raises(ValueError, match=r"whole numbers -1\.\.\d+; sequences are symbol numbers"):
        Federation.from_arrays(tokens - 1 - tokens.min(), Y, CLIENTS)


def test_bytes_are_features_of_the_same_value():
    x = G.integers(0, 256, (N, 5), dtype=np.uint8)
    federation = Federation.from_arrays(x, Y, CLIENTS)
    assert federation.dataset.x_train.dtype == torch.uint8  # a quarter of the memory
    simulator = Simulator(federation, QUICK)
    batch, _ = simulator.train_data.batch(torch.arange(4))
    assert batch.dtype == torch.float32
    assert torch.equal(batch, federation.dataset.x_train[:4].float())
    assert 0 <= simulator.run().final.accuracy <= 1


def test_images_with_channels_first():
    images = G.integers(0, 256, (N, 16, 16, 3), dtype=np.uint8)
    first = torch.tensor(images).permute(0, 3, 1, 2)
    federation = Federation.from_arrays(first, Y, CLIENTS, layout="NCHW")
    assert federation.dataset.sha256 == Federation.from_arrays(images, Y, CLIENTS).dataset.sha256
    with pytest.raises(ValueError, match=r'looks like \[N, C, H, W\]; give layout="NCHW"'):
        Federation.from_arrays(first, Y, CLIENTS)
    with pytest.raises(ValueError, match=r"layout = NCHW is for uint8 images .*as they are"):
        Federation.from_arrays(X, Y, CLIENTS, layout="NCHW")
    with pytest.raises(ValueError, match="layout must be NHWC or NCHW, got 'HWC'"):
        Federation.from_arrays(images, Y, CLIENTS, layout="HWC")


def test_labels_that_are_names_or_begin_elsewhere():
    named = Federation.from_arrays(X, NAMES, CLIENTS).dataset
    assert named.class_names == ("bird", "cat", "dog")
    own = Federation.from_arrays(
        X, NAMES.tolist(), CLIENTS, class_names=["dog", "fish", "cat", "bird"]
    )
    counts = torch.bincount(own.dataset.y_train, minlength=4).tolist()
    assert counts == [16, 0, 16, 16]
    years = Federation.from_arrays(X, Y * 2 + 2001, CLIENTS, map_labels=True).dataset
    assert years.class_names == ("2001", "2003", "2005")
    test = {"x_test": X, "y_test": np.full(N, 7), "client_ids_test": CLIENTS}
    both = Federation.from_arrays(X, Y + 4, CLIENTS, map_labels=True, **test).dataset
    assert both.class_names == ("4", "5", "6", "7")
    assert both.y_test.tolist() == [3] * N
    assert Federation.from_arrays(X, Y > 0, CLIENTS).dataset.class_names == ("False", "True")
    with pytest.raises(ValueError, match="y has classes that class_names has not: bird"):
        Federation.from_arrays(X, NAMES, CLIENTS, class_names=["cat", "dog"])
    with pytest.raises(ValueError, match="must name the 3 classes of y in ascending order, got 2"):
        Federation.from_arrays(X, Y + 1, CLIENTS, map_labels=True, class_names=["a", "b"])
