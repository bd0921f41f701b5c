"""The embedded data set: same bytes everywhere, balanced, and its objects really differ."""

import hashlib

import numpy as np
import pytest

from c2v_sim.data.sources import shapes


@pytest.fixture(scope="module")
def block():
    return shapes.render("train", shapes.BLOCK)


def test_shapes_and_types(block):
    x, y, domain = block
    assert x.shape == (600, 32, 32, 3)
    assert x.dtype == np.uint8
    assert y.dtype == domain.dtype == np.int64
    assert len(shapes.CLASS_NAMES) == 10
    assert len(shapes.DOMAIN_NAMES) == 6


def test_every_class_in_every_style_equally_often(block):
    _, y, domain = block
    assert (np.bincount(domain * 10 + y, minlength=60) == shapes.REPEATS).all()


def test_order_within_a_block_is_mixed(block):
    _, y, domain = block
    assert len(set(y[:60].tolist())) == 10
    assert len(set(domain[:60].tolist())) == 6


def test_bytes_are_fixed(block):
    """The recipe uses exactly rounded arithmetic only, so this holds on every machine.

    Should a change of the pictures be meant: raise RENDERER_VERSION, measure MEAN and STD anew,
    and write the new hash here.
    """
    digest = hashlib.sha256(b"".join(a.tobytes() for a in block)).hexdigest()
    assert (shapes.RENDERER_VERSION, digest) == (
        2,
        "8b65915e148eafa8028eaa30c465828e2e77a8df2b129fc8eeef368dc7a2d568",
    )


def test_threads_do_not_change_the_bytes():
    one, three = (shapes.render("train", 1300, threads=t) for t in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert np.array_equal(a, b)


def test_a_smaller_set_is_a_prefix(block):
    for small, large in zip(shapes.render("train", 37), block, strict=True):
        assert np.array_equal(small, large[:37])


def test_splits_and_seeds_give_other_images(block):
    x = block[0]
    assert not np.array_equal(shapes.render("test", 600)[0], x)
    assert not np.array_equal(shapes.render("train", 600, seed=1)[0], x)
    # Nor does any image of the test split occur in the training split.
    train = {image.tobytes() for image in shapes.render("train", 3000)[0]}
    assert not any(image.tobytes() in train for image in shapes.render("test", 1200)[0])


def test_normalisation_constants_describe_the_images():
    x = shapes.render("train", 6000)[0].reshape(-1, 3) / 255.0
    np.testing.assert_allclose(x.mean(0), shapes.MEAN, atol=0.01)
    np.testing.assert_allclose(x.std(0), shapes.STD, atol=0.01)


def _own_coordinates(n=201):
    line = np.linspace(-1.1, 1.1, n, dtype=np.float32)
    return np.meshgrid(line, line)


@pytest.mark.parametrize("name", shapes.CLASS_NAMES)
def test_distance_is_a_distance(name):
    """Inside and outside exist, and f grows no faster than the way walked (else edges alias)."""
    u, v = _own_coordinates()
    f = shapes.OBJECTS[name](u, v)
    assert f.dtype == np.float32
    assert 0.1 < (f < 0).mean() < 0.6
    assert (f[[0, -1]] > 0).all()
    assert (f[:, [0, -1]] > 0).all()
    step = 2.2 / 200
    assert np.abs(np.diff(f, axis=0)).max() < 1.01 * step
    assert np.abs(np.diff(f, axis=1)).max() < 1.01 * step


def test_objects_differ_from_each_other():
    u, v = _own_coordinates()
    masks = [f(u, v) < 0 for f in shapes.OBJECTS.values()]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert (a & b).sum() / (a | b).sum() < 0.9


def test_styles_shift_the_features(block):
    """Brightness and contrast alone tell most styles apart, while classes have none of it."""
    x, y, domain = block
    luminance = x.mean(axis=(1, 2, 3))

    def spread_of_means(group, kinds):
        return np.std([luminance[group == k].mean() for k in range(kinds)])

    assert spread_of_means(domain, 6) > 5 * spread_of_means(y, 10)


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match="split must be one of train, test, got 'dev'"):
        shapes.render("dev", 10)
    with pytest.raises(ValueError, match="number of train images must be at least 1, got 0"):
        shapes.render("train", 0)
