"""Images decoded in parallel: a damaged one is named, nothing else is called damaged."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from c2v_sim.data.sources.image_files import DAMAGED_IMAGE, decode, decode_all
from c2v_sim.system.errors import DataError


def image(kind="PNG", value=7):
    out = io.BytesIO()
    Image.fromarray(np.full((10, 12, 3), value, dtype=np.uint8)).save(out, kind)
    return out.getvalue()


def decoded(contents):
    return decode_all(list(contents), contents.__getitem__, (4, 5), "images", progress=False)


def test_images_in_order():
    x = decoded({str(n): image(value=n) for n in range(200)})
    assert x.shape == (200, 4, 5, 3)
    assert (x[:, 0, 0, 0] == np.arange(200)).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "PPM"])
def test_every_damaged_byte_is_named_or_does_not_matter(kind):
    content = image(kind)
    for at in range(len(content)):
        for damaged in (
            content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :],
            content[:at],
        ):
            try:
                decode(damaged, (4, 5))
            except DAMAGED_IMAGE:
                with pytest.raises(DataError, match=r"^broken: "):
                    decoded({"whole": content, "broken": damaged})
                break


@pytest.mark.parametrize("error", [OSError("gone"), zipfile.BadZipFile("gone"), KeyError("gone")])
def test_a_file_that_cannot_be_read_is_named(error):
    def read(name):
        raise error

    with pytest.raises(DataError, match=r"^photo: .*gone"):
        decode_all(["photo"], read, (4, 5), "images", progress=False)


@pytest.mark.parametrize("kind", [MemoryError, AttributeError, TypeError])
def test_what_is_no_damage_passes_through(kind):
    def read(name):
        raise kind("not the file's fault")

    with pytest.raises(kind, match="not the file's fault"):
        decode_all(["photo"], read, (4, 5), "images", progress=False)
