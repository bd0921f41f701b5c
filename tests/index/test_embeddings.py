"""Stage 3: prompts, the cache (hit, damage, interruption), given encoders and tensors, errors."""

import io
import shutil
import sys

import pytest
import torch
from torch.nn import functional as F

from c2v_sim.data.dataset import Dataset, content_hash
from c2v_sim.data.text_windows import Windows
from c2v_sim.index.encoders import embed as embeddings
from c2v_sim.index.encoders import make_encoder
from c2v_sim.index.encoders.builtin import BuiltinEncoder
from c2v_sim.index.encoders.embed import embed_dataset, given_embeddings
from c2v_sim.index.encoders.prompts import character_prompt, label_prompt, next_character_prompt
from c2v_sim.system import tensor_file

CLASSES = ("cat", "ice_cream", "owl")


def dataset(n=30, channels=3, seed=0, name="toy"):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda high, *shape: torch.randint(high, shape, generator=generator)  # noqa: E731
    arrays = {
        "x_train": draw(256, n, 8, 8, channels).to(torch.uint8),
        "y_train": draw(3, n),
        "x_test": draw(256, 4, 8, 8, channels).to(torch.uint8),
        "y_test": draw(3, 4),
    }
    moments = (0.5,) * channels
    return Dataset(name, *arrays.values(), CLASSES, moments, moments, "test", content_hash(arrays))


class CountingEncoder:
    """A random projection of the pixels that counts its samples and may fail at one call."""

    name = "counting"
    identity = "counting 1"

    def __init__(self, fail_at_call=None):
        self.samples = self.calls = 0
        self.fail_at_call = fail_at_call
        self.matrix = torch.randn(192, 512, generator=torch.Generator().manual_seed(5))

    def embed_images(self, images):
        self.calls += 1
        if self.calls == self.fail_at_call:
            raise KeyboardInterrupt
        self.samples += len(images)
        return images.flatten(1).float() @ self.matrix

    def embed_texts(self, texts):
        return torch.stack([torch.arange(512.0) + sum(map(ord, text)) for text in texts])


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(embeddings, "PART", 8)


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("cat", "A photo of a cat"),
        ("airplane", "A photo of an airplane"),
        ("Owl", "A photo of an Owl"),
        ("ice_cream", "A photo of an ice cream"),
        ("the_eiffel_tower", "A photo of a the eiffel tower"),
        ("7", "A photo of a 7"),
    ],
)
def test_label_prompts(name, prompt):
    assert label_prompt(name) == prompt


def test_character_prompts_keep_every_character():
    assert next_character_prompt("to be, or ") == "The next character of to be, or "
    assert character_prompt(" ") == "Character  "


def test_rows_follow_the_data_and_have_unit_length(tmp_path):
    data, encoder = dataset(), CountingEncoder()
    result = embed_dataset(data, encoder, cache_dir=tmp_path, progress=False, batch_size=7)
    expected = F.normalize(data.x_train.flatten(1).float() @ encoder.matrix, dim=1)
    torch.testing.assert_close(result.images, expected)
    prompts = ["A photo of a cat", "A photo of an ice cream", "A photo of an owl"]
    torch.testing.assert_close(result.labels, F.normalize(encoder.embed_texts(prompts), dim=1))
    assert (result.encoder, result.data_sha256) == ("counting", data.sha256)


def test_cache_hit_gives_the_same_bits_without_the_encoder(tmp_path):
    data, first, second = dataset(), CountingEncoder(), CountingEncoder()
    a = embed_dataset(data, first, cache_dir=tmp_path, progress=False)
    b = embed_dataset(data, second, cache_dir=tmp_path, progress=False)
    assert (first.samples, second.samples) == (30, 0)
    assert torch.equal(a.images, b.images)
    assert torch.equal(a.labels, b.labels)
    assert a.sha256 == b.sha256
    assert [f.suffix for f in tmp_path.iterdir()] == [".safetensors"]  # no parts left


def test_another_encoder_data_set_or_prompt_misses(tmp_path):
    def samples(data, identity="counting 1", **options):
        encoder = CountingEncoder()
        encoder.identity = identity
        embed_dataset(data, encoder, cache_dir=tmp_path, progress=False, **options)
        return encoder.samples

    assert samples(dataset()) == 30
    assert samples(dataset()) == 0
    assert samples(dataset(seed=1)) == 30
    assert samples(dataset(), identity="counting 2") == 30
    assert samples(dataset(), label_texts=["a", "b", "c"]) == 30
    assert samples(dataset(), cache=False) == 30


def test_encoder_without_identity_is_never_cached(tmp_path):
    encoder = CountingEncoder()
    encoder.identity = None
    for _ in range(2):
        embed_dataset(dataset(), encoder, cache_dir=tmp_path, progress=False)
    assert encoder.samples == 60
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_damaged_cache_is_rebuilt_with_a_notice(tmp_path, capsys, damage):
    data = dataset()
    good = embed_dataset(data, CountingEncoder(), cache_dir=tmp_path, progress=False)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes({"flip": content, "cut": content[:-5000], "empty": b""}[damage])
    again = CountingEncoder()
    result = embed_dataset(data, again, cache_dir=tmp_path, progress=False)
    assert again.samples == 30
    assert result.sha256 == good.sha256
    assert f"{file} is damaged" in capsys.readouterr().err
    third = CountingEncoder()
    embed_dataset(data, third, cache_dir=tmp_path, progress=False)
    assert third.samples == 0


def test_a_cache_of_something_else_is_made_anew(tmp_path):
    """A sound file, with the right checksum of the wrong tensors."""
    data = dataset()
    good = embed_dataset(data, CountingEncoder(), cache_dir=tmp_path, progress=False)
    (file,) = tmp_path.iterdir()
    for wrong in ({"images": good.images}, {"images": good.images[:3], "labels": good.labels}):
        tensor_file.write(file, {name: t.clone() for name, t in wrong.items()})
        again = CountingEncoder()
        result = embed_dataset(data, again, cache_dir=tmp_path, progress=False)
        assert (again.samples, result.sha256) == (30, good.sha256)


def test_interrupted_work_goes_on_from_the_finished_parts(tmp_path, small_parts):
    data, options = dataset(), {"cache_dir": tmp_path, "progress": False, "batch_size": 4}
    with pytest.raises(KeyboardInterrupt):  # in the third part: two of 8 are done
        embed_dataset(data, CountingEncoder(fail_at_call=6), **options)
    rest = CountingEncoder()
    resumed = embed_dataset(data, rest, **options)
    assert rest.samples == 30 - 16
    whole = embed_dataset(data, CountingEncoder(), cache=False, progress=False, batch_size=4)
    assert resumed.sha256 == whole.sha256


def test_damaged_part_is_done_again(tmp_path, small_parts, capsys):
    data, options = dataset(), {"cache_dir": tmp_path, "progress": False, "batch_size": 4}
    with pytest.raises(KeyboardInterrupt):
        embed_dataset(data, CountingEncoder(fail_at_call=6), **options)
    part = sorted(tmp_path.glob("*.parts/*"))[0]
    part.write_bytes(part.read_bytes()[:-1])
    rest = CountingEncoder()
    embed_dataset(data, rest, **options)
    assert rest.samples == 30 - 8
    assert "is damaged" in capsys.readouterr().err


def test_parts_that_another_process_removes_are_no_loss(tmp_path, small_parts, capsys):
    class Meanwhile(CountingEncoder):
        def embed_images(self, images):
            for folder in tmp_path.glob("*.parts"):  # another process was done first
                shutil.rmtree(folder)
            return super().embed_images(images)

    data, options = dataset(), {"cache_dir": tmp_path, "progress": False, "batch_size": 8}
    writes, write = [], tensor_file.save_file

    def vanishing(tensors, path, **about):
        """The folder of the second part goes away while it is written."""
        writes.append(path)
        if len(writes) == 2:
            shutil.rmtree(path.parent)
        write(tensors, path, **about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "save_file", vanishing)
        result = embed_dataset(data, Meanwhile(), **options)
    assert len(writes) == 4 + 1 + 1  # the second part twice, and the whole
    assert torch.equal(result.images, embed_dataset(data, CountingEncoder(), cache=False).images)
    assert capsys.readouterr().err == ""
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_folder_that_cannot_be_written_is_one_warning(tmp_path, small_parts, capsys):
    file = tmp_path / "file"
    file.touch()
    result = embed_dataset(dataset(), CountingEncoder(), cache_dir=file / "below", progress=False)
    assert result.images.shape == (30, 512)
    assert capsys.readouterr().err.count("cannot cache embeddings") == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_a_progress_bar_counts_samples_in_a_terminal_only(tmp_path, monkeypatch, stream, shown):
    monkeypatch.setattr(sys, "stderr", stream)
    embed_dataset(dataset(), CountingEncoder(), cache_dir=tmp_path)
    assert ("embed (counting): 100%" in stream.getvalue()) == shown


def test_next_character_data_goes_through_the_text_encoder(tmp_path):
    texts = [next_character_prompt(f"window {i}") for i in range(30)]
    labels = [character_prompt(c) for c in "ab "]
    options = {"sample_texts": texts, "label_texts": labels, "progress": False}
    result = embed_dataset(dataset(), "builtin", cache_dir=tmp_path, **options)
    encoder = make_encoder("builtin")
    assert torch.equal(result.images, encoder.embed_texts(texts))
    assert torch.equal(result.labels, encoder.embed_texts(labels))


def test_grey_images_become_colour():
    grey = dataset(channels=1)
    result = embed_dataset(grey, CountingEncoder(), cache=False, progress=False)
    colour = grey.x_train.repeat(1, 1, 1, 3)
    expected = F.normalize(CountingEncoder().embed_images(colour), dim=1)
    torch.testing.assert_close(result.images, expected)


def test_given_tensors_are_normalised_and_named():
    images, labels = torch.rand(30, 512, dtype=torch.float64), torch.rand(3, 512)
    result = embed_dataset(dataset(), (images, labels))
    torch.testing.assert_close(result.images, F.normalize(images, dim=1).float())
    assert result.encoder == "given"
    again = given_embeddings(dataset(), result.images, result.labels, name="mine")
    assert again.encoder == "mine"
    assert again.sha256 == result.sha256  # normalising twice changes nothing


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(29, 512), r"images must be a float tensor \[30, 512\], got .* \(29, 512\)"),
        (torch.rand(30, 768), r"\[30, 512\], got torch.float32 \(30, 768\)"),
        (torch.ones(30, 512, dtype=torch.int64), "float tensor"),
        ("text", "float tensor .* got <class 'str'>"),
        (torch.rand(30, 512).index_fill(0, torch.tensor([4]), torch.nan), "1 rows .* is row 4"),
        (torch.rand(30, 512).index_fill(0, torch.tensor([2, 9]), 0), "2 rows .* is row 2"),
    ],
)
def test_bad_tensors_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        given_embeddings(dataset(), images, torch.rand(3, 512))


def test_wrong_result_of_an_encoder_is_refused(tmp_path):
    encoder = CountingEncoder()
    encoder.matrix = encoder.matrix[:, :100]
    with pytest.raises(ValueError, match=r"must be a float tensor \[30, 512\], got torch.float32"):
        embed_dataset(dataset(), encoder, cache_dir=tmp_path, progress=False)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_bad_choices_are_refused_before_any_work():
    data = dataset()
    with pytest.raises(
        ValueError, match=r"unknown encoder 'bert'; known: builtin, pretrained-lite, clip"
    ):
        embed_dataset(data, "bert")
    with pytest.raises(ValueError, match=r"has no embed_images and no embed_texts"):
        embed_dataset(data, type("Half", (), {"name": "half"})())
    with pytest.raises(ValueError, match=r"one text for each of the 3 classes, got 1"):
        embed_dataset(data, label_texts=["one"])
    with pytest.raises(ValueError, match=r"each of the 30 training samples, got 2"):
        embed_dataset(data, sample_texts=["a", "b"])
    with pytest.raises(ValueError, match=r"batch_size must be at least 1"):
        embed_dataset(data, batch_size=0)
    features = torch.rand(4, 7)
    y = torch.tensor([0, 1, 2, 0])
    plain = Dataset("features", features, y, features, y, CLASSES, (), (), "test", "0" * 64)
    with pytest.raises(ValueError, match=r"features has no images to embed"):
        embed_dataset(plain)


def test_windows_of_a_text_are_embedded_as_prompts(tmp_path):
    text = torch.tensor([0, 1, 2, 1, 0, 2, 1, 0], dtype=torch.uint8)
    starts = {"train": torch.tensor([4, 0, 1]), "test": torch.tensor([2])}
    arrays = {f"x_{k}": Windows(text, s, 3) for k, s in starts.items()}
    arrays |= {f"y_{k}": text[s + 3].long() for k, s in starts.items()}
    data = Dataset("abc", class_names=("a", "b", " "), mean=(), std=(), source="", sha256="1",
                   **arrays)  # fmt: skip
    seen = []

    class Listener(BuiltinEncoder):
        def embed_texts(self, texts):
            seen.extend(texts)
            return super().embed_texts(texts)

    got = embed_dataset(data, Listener(), cache_dir=tmp_path, batch_size=2)
    windows = [f"The next character of {w}" for w in ("a b", "ab ", "b b")]
    symbols = [f"Character {s}" for s in ("a", "b", " ")]
    assert seen == windows + symbols
    torch.testing.assert_close(got.images, BuiltinEncoder().embed_texts(windows))
    again = embed_dataset(data, Listener(), cache_dir=tmp_path)
    assert len(seen) == 6  # from the cache
    assert torch.equal(again.images, got.images)
