"""Image files → one uint8 array [N, H, W, 3], decoded in parallel.

Threads are enough: Pillow releases the interpreter lock while it decodes and resizes.
"""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import numpy as np
from PIL import Image
from tqdm import tqdm

from c2v_sim.system.archive import DAMAGED_ZIP
from c2v_sim.system.errors import DataError
from c2v_sim.system.machine import usable_cores

# What Pillow raises on damaged images; those too large to be meant are among them.
DAMAGED_IMAGE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm")
CHUNK = 64  # images per task: enough to make its overhead nothing


def decode(content: bytes, size: tuple[int, int] | None) -> np.ndarray:
    """One image as uint8 [H, W, 3]; `size` = (H, W) resizes (bilinear), None keeps its own."""
    with Image.open(io.BytesIO(content)) as image:
        rgb = image.convert("RGB")
    if size is not None and rgb.size != (size[1], size[0]):
        rgb = rgb.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(rgb)


def decode_all(
    names: Sequence[str],
    read: Callable[[str], bytes],
    size: tuple[int, int],
    what: str,
    progress: bool,
) -> np.ndarray:
    """All images in the order of `names`, uint8 [N, H, W, 3]; DataError names a damaged one.

    `read` gives the content of a file, from a folder or a zip archive; it is called from threads.
    """
    out = np.empty((len(names), *size, 3), dtype=np.uint8)

    def decode_chunk(begin: int) -> int:
        chunk = names[begin : begin + CHUNK]
        for row, name in enumerate(chunk, begin):
            try:
                out[row] = decode(read(name), size)
            except (*DAMAGED_IMAGE, *DAMAGED_ZIP) as error:
                raise DataError(f"{name}: {str(error) or type(error).__name__}") from error
        return len(chunk)

    tasks: list[Future[int]] = []
    with (
        tqdm(desc=what, total=len(names), unit="image", disable=None if progress else True) as bar,
        ThreadPoolExecutor(usable_cores(), "decode") as pool,
    ):
        try:
            tasks += [pool.submit(decode_chunk, begin) for begin in range(0, len(names), CHUNK)]
            for task in as_completed(tasks):
                bar.update(task.result())
        finally:  # after an error or Ctrl-C nothing more is started
            for task in tasks:
                task.cancel()
    return out
