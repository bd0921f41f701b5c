"""The offline encoder: deterministic, independent of company and threads, and useful."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from c2v_sim.data.sources import shapes
from c2v_sim.index.encoders import builtin as encoder_builtin
from c2v_sim.index.encoders.builtin import BuiltinEncoder
from c2v_sim.system import tensor_file


@pytest.fixture(scope="module")
def encoder():
    return BuiltinEncoder()


def rendered(n, split="test"):
    return [torch.from_numpy(a) for a in shapes.render(split, n, 3)]


@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (1, 64, 64, 3), (2, 9, 31, 3), (0, 32, 32, 3)])
def test_unit_rows_for_images_of_any_size(encoder, shape):
    images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    result = encoder.embed_images(images.to(torch.uint8))
    assert result.shape == (shape[0], 512)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.norm(dim=1), torch.ones(shape[0]))


def test_black_white_and_constant_images_have_a_direction(encoder):
    images = torch.tensor([0, 128, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 32, 32, 3)
    result = encoder.embed_images(images)
    torch.testing.assert_close(result.norm(dim=1), torch.ones(3))


def test_an_image_alone_and_in_company_has_the_same_embedding(encoder):
    images = rendered(150)[0]
    together = encoder.embed_images(images)
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(encoder.embed_images(images[order]), together[order])
    torch.testing.assert_close(encoder.embed_images(images[70:71]), together[70:71])


def test_number_of_threads_changes_no_bit(encoder, monkeypatch):
    images = rendered(200)[0]
    usual = encoder.embed_images(images)
    monkeypatch.setattr("c2v_sim.index.encoders.encoder.usable_cores", lambda: 3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(encoder.embed_images(images), usual)
    finally:
        torch.set_num_threads(before)


def test_another_process_with_one_thread_computes_the_same_bits(encoder):
    images = "torch.arange(2 * 3072).mul(7).remainder(256).to(torch.uint8).view(2, 32, 32, 3)"
    code = (
        "import torch; from c2v_sim.system import tensor_file; "
        "from c2v_sim.index.encoders.builtin import BuiltinEncoder; e = BuiltinEncoder(); "
        f"print(tensor_file.checksum({{'i': e.embed_images({images}), "
        "'t': e.embed_texts(['cat'])}))"
    )
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=os.environ | single
    )
    x = torch.arange(2 * 3072).mul(7).remainder(256).to(torch.uint8).view(2, 32, 32, 3)
    here = {"i": encoder.embed_images(x), "t": encoder.embed_texts(["cat"])}
    assert run.stdout.strip() == tensor_file.checksum(here), run.stderr


def test_features_are_the_definition(encoder):
    """Slow and literal, in float64: normalised patches, two half-waves, quadrants, root."""
    image = rendered(1)[0]
    x = image[0].permute(2, 0, 1).double() / 255
    expected = []
    for pixels, filters, stride in zip(
        (x, F.avg_pool2d(x, 2)), encoder.filters, (2, 1), strict=True
    ):
        patches = F.unfold(pixels[None], 6, stride=stride)[0].T  # [positions, 108]
        centred = patches - patches.mean(1, keepdim=True)
        p = centred / (patches.var(1, correction=0, keepdim=True) + (10 / 255) ** 2).sqrt()
        r = p @ filters.flatten(1).double().T
        side = round(len(r) ** 0.5)
        halves = torch.cat([F.relu(r - 0.5), F.relu(-r - 0.5)], 1).T.reshape(-1, side, side)
        half = -(-side // 2)  # an odd middle row belongs to both quadrants
        ends = (slice(None, half), slice(side - half, None))
        quadrants = torch.stack([halves[:, i, j].mean((1, 2)) for i in ends for j in ends], 1)
        expected.append(quadrants.flatten().sqrt())
    computed = encoder_builtin.image_features(image, encoder.filters)[0].double()
    torch.testing.assert_close(computed[:448], torch.cat(expected), atol=1e-3, rtol=1e-4)
    cells = x.reshape(3, 4, 8, 4, 8).mean((2, 4)).flatten()
    torch.testing.assert_close(computed[448:496], cells, atol=1e-6, rtol=1e-5)


def test_filters_are_the_same_everywhere(encoder):
    """Rounded, so that another processor's last bits do not matter; changes need a new VERSION."""
    rounded = [(f * 1000).round().to(torch.int16) for f in encoder.filters]
    sums = [int(f.long().abs().sum()) for f in rounded]
    assert encoder.identity == "builtin v1, shapes v2"
    assert sums == pytest.approx([184157, 227203], abs=20)


def test_other_arrays_are_refused(encoder):
    with pytest.raises(
        ValueError, match=r"builtin: images must be uint8 \[N, H, W, 3\], got .*\(2, 3, 8\)"
    ):
        encoder.embed_images(torch.zeros(2, 3, 8))


def test_linear_probe_beats_raw_pixels(encoder):
    """Drawing style from 1,000 rendered images, against ridge regression on the pixels."""
    images, _, domains = rendered(1600)

    def accuracy(features):
        x = F.pad(features.double(), (0, 1), value=1.0)
        target = F.one_hot(domains[:1000]).double()
        best = 0.0
        for ridge in (1e-2, 1.0, 100.0):
            gram = x[:1000].T @ x[:1000] + ridge * torch.eye(x.shape[1], dtype=torch.float64)
            weights = torch.linalg.solve(gram, x[:1000].T @ target)
            best = max(best, (x[1000:] @ weights).argmax(1).eq(domains[1000:]).double().mean())
        return float(best)

    small = F.avg_pool2d(images.permute(0, 3, 1, 2).float(), 2).flatten(1) / 255  # 768 numbers
    assert accuracy(encoder.embed_images(images)) > accuracy(small) + 0.2


# ---- texts ----------------------------------------------------------------------------------


def test_equal_words_are_equal_and_similar_words_similar(encoder):
    a, b, cats, dog = encoder.embed_texts(["cat", "cat", "cats", "dog"])
    assert torch.equal(a, b)
    assert a @ cats > 0.4
    assert abs(a @ dog) < 0.2


def test_prompt_words_do_not_pull_labels_together(encoder):
    plain = encoder.embed_texts(["cat", "owl", " ", "thee"])
    prompts = ["A photo of a cat", "A photo of an owl", "Character  ", "The next character of thee"]
    assert torch.equal(encoder.embed_texts(prompts), plain)


def test_every_symbol_has_its_own_direction(encoder):
    symbols = [f"Character {chr(c)}" for c in range(32, 112)]
    cosines = encoder.embed_texts(symbols)
    off = (cosines @ cosines.T).fill_diagonal_(0)
    assert off.abs().max() < 0.4


def test_a_text_does_not_depend_on_the_others(encoder):
    texts = ["zebra", "", "Ångström", "x" * 500]
    together = encoder.embed_texts(texts)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(4))
    for text, row in zip(texts, together, strict=True):
        torch.testing.assert_close(encoder.embed_texts([text])[0], row)
    assert encoder.embed_texts([]).shape == (0, 512)
