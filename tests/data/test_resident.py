import torch

from c2v_sim.data.resident import PAD, ResidentData, crop_and_flip

CPU = torch.device("cpu")


def test_a_batch_is_normalised_and_channels_last():
    x = torch.randint(0, 256, (10, 6, 5, 3), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    data = ResidentData(x, torch.arange(10), mean, std, CPU)
    ids = torch.tensor([7, 2, 2])
    got, y = data.batch(ids)
    expected = (x[ids].double() / 255 - torch.tensor(mean)) / torch.tensor(std)
    torch.testing.assert_close(got.double(), expected.permute(0, 3, 1, 2), rtol=1e-5, atol=1e-6)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert y.tolist() == [7, 2, 2]


def test_features_are_handed_on_unchanged():
    x = torch.randn(4, 9)
    got, _ = ResidentData(x, torch.zeros(4, dtype=torch.int64), (), (), CPU).batch(torch.arange(4))
    assert torch.equal(got, x)


def test_crop_and_flip_moves_whole_images_and_is_reproducible():
    side = 12
    x = torch.arange(side * side).view(1, side, side, 1).to(torch.uint8).repeat(64, 1, 1, 3)
    one, two = (crop_and_flip(x, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, two)
    inner = slice(PAD, side - PAD)  # no reflection reaches the middle
    seen = set()
    for image in one[..., 0].int():
        matches = [
            (dy, dx, flipped)
            for flipped in (False, True)
            for dy in range(-PAD, PAD + 1)
            for dx in range(-PAD, PAD + 1)
            if torch.equal(shifted(x[0, ..., 0].int(), dy, dx, flipped)[inner, inner],
                           image[inner, inner])
        ]  # fmt: skip
        assert matches, "an image that is no shift or mirror of the original"
        seen.update(matches)
    assert {flipped for *_, flipped in seen} == {False, True}
    assert len(seen) > 20


def shifted(image, dy, dx, flipped):
    image = image.flip(1) if flipped else image
    return torch.roll(image, (-dy, -dx), (0, 1))
