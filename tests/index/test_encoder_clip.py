"""CLIP through open_clip, with a small random model saved to a checkpoint and loaded from it."""

import json
import sys

import pytest
import torch
from torch.nn import functional as F

from c2v_sim.index.encoders import clip as encoder_clip
from c2v_sim.index.encoders import make_encoder
from c2v_sim.index.encoders.clip import ClipEncoder


def test_missing_open_clip_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)  # makes the import fail
    with pytest.raises(
        RuntimeError, match=r"pip install 'c2v_sim\[clip\]'.*`builtin` needs no weights"
    ):
        make_encoder("clip")


@pytest.fixture(scope="module")
def open_clip():
    try:
        return encoder_clip._import_open_clip()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def checkpoint(open_clip, tmp_path_factory):
    """(file, model): one layer each, 512-wide embeddings, random weights."""
    folder = tmp_path_factory.mktemp("clip")
    config = {
        "embed_dim": 512,
        "vision_cfg": {"image_size": 224, "layers": 1, "width": 64, "patch_size": 32},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 64,
            "heads": 1,
            "layers": 1,
        },
    }
    for name, width in (("c2v-tiny", 512), ("c2v-wide", 640)):
        (folder / f"{name}.json").write_text(json.dumps(config | {"embed_dim": width}))
        open_clip.add_model_config(folder / f"{name}.json")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = open_clip.create_model("c2v-tiny").eval()
    torch.save(model.state_dict(), folder / "tiny.pt")
    return folder / "tiny.pt", model


@pytest.fixture(scope="module")
def encoder(checkpoint):
    return make_encoder("clip", model="c2v-tiny", pretrained=checkpoint[0], device="cpu")


def images(n, height=32, width=32):
    generator = torch.Generator().manual_seed(height + width)
    coarse = torch.rand(n, 3, 7, 7, generator=generator)  # smooth, with the full range
    smooth = F.interpolate(coarse, (height, width), mode="bilinear").permute(0, 2, 3, 1)
    return (smooth * 255).round().to(torch.uint8)


def pil_transform(open_clip, x):
    from PIL import Image

    transform = open_clip.image_transform((224, 224), is_train=False, resize_mode="shortest")
    return torch.stack([transform(Image.fromarray(image.numpy())) for image in x])


@pytest.mark.parametrize(
    ("height", "width"), [(32, 32), (64, 64), (50, 37), (300, 451), (224, 224)]
)
def test_preprocessing_is_open_clips_own(open_clip, encoder, height, width):
    x = images(2, height, width)
    ours = encoder_clip.preprocess(x, encoder.preprocessing)
    theirs = pil_transform(open_clip, x)
    assert ours.shape == theirs.shape == (2, 3, 224, 224)
    level = 1 / 255 / 0.26  # one of 256 levels after division by the std
    assert (ours - theirs).abs().max() < 1.1 * level  # PIL rounds between its two passes
    assert (ours - theirs).abs().mean() < 0.2 * level


def test_images_and_texts_as_the_model_itself_embeds_them(open_clip, checkpoint, encoder):
    _, model = checkpoint
    x, texts = images(3), ["A photo of a cat", "A photo of an owl"]
    with torch.no_grad():
        image_rows = F.normalize(model.encode_image(pil_transform(open_clip, x)), dim=1)
        text_rows = F.normalize(model.encode_text(open_clip.tokenize(texts)), dim=1)
    torch.testing.assert_close(encoder.embed_texts(texts), text_rows)
    assert F.cosine_similarity(encoder.embed_images(x), image_rows).min() > 0.9999
    torch.testing.assert_close(encoder.embed_images(x).norm(dim=1), torch.ones(3))


def test_long_texts_are_cut_to_the_context(encoder):
    long = "word " * 200
    assert torch.equal(encoder.embed_texts([long]), encoder.embed_texts([long + "more"]))


def test_name_shows_the_file_and_identity_its_content(checkpoint, encoder, tmp_path):
    assert encoder.name == "clip c2v-tiny/tiny.pt"
    state = torch.load(checkpoint[0])
    state["logit_scale"] += 1
    torch.save(state, tmp_path / "tiny.pt")
    other = ClipEncoder("c2v-tiny", tmp_path / "tiny.pt", device="cpu")
    assert other.name == encoder.name
    assert other.identity != encoder.identity


def test_unreachable_weights_name_the_ways_out(open_clip, monkeypatch):
    def unreachable(*args, **options):
        raise RuntimeError("Failed to download weights\nLast error: no route")

    monkeypatch.setattr(open_clip.factory, "download_pretrained", unreachable)
    with pytest.raises(RuntimeError, match=r"'openai' of ViT-B-32 could not be fetched") as error:
        ClipEncoder("ViT-B-32", "openai")
    assert "name the file: --index-clip-weights FILE of a run" in str(error.value)
    assert "`builtin` needs no weights" in str(error.value)


def test_tag_trained_with_quick_gelu_gets_it(open_clip, monkeypatch):
    """OpenAI's weights under the usual GELU would silently give other features."""
    asked = {}

    def create(model, **options):
        asked.update(options)
        raise RuntimeError("enough")

    monkeypatch.setattr(open_clip, "create_model", create)
    for tag, quick in (("openai", True), ("laion2b_s34b_b79k", False)):
        with pytest.raises(RuntimeError, match=r"enough"):
            ClipEncoder("ViT-B-32", tag)
        assert asked["force_quick_gelu"] is quick


def test_wrong_choices_are_refused_before_a_download(checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"ViT-L-14 has embeddings of width 768, but .* 512"):
        ClipEncoder("ViT-L-14", "openai")
    with pytest.raises(ValueError, match=r"c2v-wide has embeddings of width 640"):
        ClipEncoder("c2v-wide", checkpoint[0])
    with pytest.raises(ValueError, match=r"open_clip has no model 'ViT-X'"):
        ClipEncoder("ViT-X")
    with pytest.raises(
        ValueError, match=r"'missing.pt' is neither a file nor a tag of ViT-B-32; .*openai"
    ):
        ClipEncoder("ViT-B-32", "missing.pt")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other.pt does not hold weights of c2v-tiny"):
        ClipEncoder("c2v-tiny", tmp_path / "other.pt")
