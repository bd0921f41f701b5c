"""Federation.from_huggingface on data sets made on the spot, in memory and on disk."""

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from c2v_sim import Federation, RunConfig, Simulator

datasets = pytest.importorskip(
    "datasets", reason="datasets is not installed: pip install 'c2v_sim[huggingface]'"
)
N = 48
G = np.random.default_rng(0)
PIXELS = G.integers(0, 256, (N, 16, 16, 3), dtype=np.uint8)
KINDS = datasets.ClassLabel(names=["cat", "dog", "bird"])
OWNERS = [f"user {k % 4}" for k in range(N)]
QUICK = RunConfig(model="linear", rounds=1, cohort=2, local_epochs=1, batch_size=8)


def photos(pixels=PIXELS):
    columns = {"image": [Picture.fromarray(p) for p in pixels]}
    columns |= {"label": [k % 3 for k in range(len(pixels))], "user": OWNERS[: len(pixels)]}
    features = {"image": datasets.Image(), "label": KINDS, "user": datasets.Value("string")}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def trained(federation, **parts):
    return Simulator(federation, QUICK, **parts).run().final.accuracy


def test_images_in_memory_and_on_disk(tmp_path):
    federation = Federation.from_huggingface(photos(), label="label", client="user", name="photos")
    plain = Federation.from_arrays(PIXELS, np.arange(N) % 3, OWNERS)
    assert federation.dataset.sha256 == plain.dataset.sha256
    assert federation.partition.sha256 == plain.partition.sha256
    assert federation.dataset.class_names == ("cat", "dog", "bird")
    assert 0 <= trained(federation) <= 1
    photos().save_to_disk(tmp_path / "saved")
    kept = Federation.from_huggingface(tmp_path / "saved", label="label", client="user")
    assert kept.dataset.sha256 == plain.dataset.sha256


def test_a_given_test_part_is_the_test_set():
    both = datasets.DatasetDict({"train": photos(), "test": photos(PIXELS[:8])})
    federation = Federation.from_huggingface(both, label="label", client="user")
    assert federation.dataset.x_test.shape == (8, 16, 16, 3)
    assert [len(ids) for ids in federation.partition.test] == [2] * 4
    with pytest.raises(ValueError, match="must have a part `train`, got validation"):
        Federation.from_huggingface(
            datasets.DatasetDict({"validation": photos()}), label="label", client="user"
        )


def test_texts_with_an_own_tokenizer():
    words = [" ".join(G.choice(["a", "bb", "ccc"], 5)) for _ in range(N)]
    kinds = ["long" if "ccc" in text else "short" for text in words]
    rows = datasets.Dataset.from_dict({"text": words, "kind": kinds, "who": list(range(4)) * 12})

    def tokenizer(texts):
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}

    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.classifier = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 2)

        def features(self, x):
            return self.embedding(x).mean(1)

    federation = Federation.from_huggingface(rows, label="kind", client="who", tokenizer=tokenizer)
    assert federation.dataset.x_train.shape[1] == 5
    assert federation.dataset.class_names == ("long", "short")
    assert 0 <= trained(federation, model=Reader()) <= 1
    with pytest.raises(ValueError, match="text is text; give tokenizer=…"):
        Federation.from_huggingface(rows, label="kind", client="who")


def test_columns_of_numbers():
    values = {"age": list(range(N)), "weight": G.normal(size=N).tolist(), "sick": [0, 1] * 24}
    rows = datasets.Dataset.from_dict(values | {"clinic": OWNERS})
    federation = Federation.from_huggingface(rows, label="sick", client="clinic")
    assert federation.dataset.x_train.shape[1] == 2
    assert federation.dataset.x_train.dtype == torch.float32
    one = Federation.from_huggingface(rows, label="sick", client="clinic", inputs=["weight"])
    assert one.dataset.x_train.shape[1] == 1
    with pytest.raises(ValueError, match="no column 'ill'; there are age, weight, sick, clinic"):
        Federation.from_huggingface(rows, label="ill", client="clinic")
    with pytest.raises(ValueError, match=r"give client=… \(a column\) or partitioner=…"):
        Federation.from_huggingface(rows, label="sick")


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "natural", "pathological"])
def test_any_partitioner_of_flower_deals_the_rows(kind):
    flower = pytest.importorskip(
        "flwr_datasets.partitioner", reason="flwr-datasets is not installed"
    )

    def partitioner():
        return {
            "iid": lambda: flower.IidPartitioner(num_partitions=4),
            "dirichlet": lambda: flower.DirichletPartitioner(
                num_partitions=4, partition_by="label", alpha=1.0, min_partition_size=2
            ),
            "natural": lambda: flower.NaturalIdPartitioner(partition_by="user"),
            "pathological": lambda: flower.PathologicalPartitioner(
                num_partitions=4, partition_by="label", num_classes_per_partition=2
            ),
        }[kind]()

    rows = photos()
    federation = Federation.from_huggingface(
        rows, label="label", partitioner=partitioner(), inputs="image"
    )
    theirs = partitioner()
    theirs.dataset = rows
    for client in range(4):
        expected = theirs.load_partition(client)
        own = federation.partition.train[client], federation.partition.test[client]
        x = torch.cat([federation.dataset.x_train[own[0]], federation.dataset.x_test[own[1]]])
        mine = sorted(image.numpy().tobytes() for image in x)
        assert mine == sorted(np.asarray(image).tobytes() for image in expected["image"])


def test_images_of_different_sizes_are_resized_or_refused():
    small = Picture.fromarray(PIXELS[0]).resize((8, 8))
    rows = datasets.Dataset.from_dict(
        {
            "image": [small, *map(Picture.fromarray, PIXELS[1:])],
            "label": [0, 1] * 24,
            "user": OWNERS,
        }
    ).cast_column("image", datasets.Image())
    with pytest.raises(ValueError, match=r"differ in size \(\(8, 8\) and \(16, 16\)\); give size"):
        Federation.from_huggingface(rows, label="label", client="user")
    federation = Federation.from_huggingface(rows, label="label", client="user", size=(10, 12))
    assert federation.dataset.x_train.shape[1:] == (10, 12, 3)
    grey = rows.map(lambda row: {"image": row["image"].convert("L")})
    federation = Federation.from_huggingface(grey, label="label", client="user", size=(10, 12))
    assert federation.dataset.x_train.shape[1:] == (10, 12, 1)
