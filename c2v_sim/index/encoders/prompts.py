"""What an encoder is given of a data set: images or texts of the samples, texts of the classes.

A class is "A photo of a {name}" ("an" before a vowel letter). Of next-character data both are
texts: "The next character of {window}" for a sample and "Character {symbol}" for a class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from c2v_sim.data.load import Dataset
from c2v_sim.data.text_windows import Windows


def label_prompt(name: str) -> str:
    name = name.replace("_", " ")
    article = "an" if name[:1].lower() in tuple("aeiou") else "a"
    return f"A photo of {article} {name}"


def next_character_prompt(window: str) -> str:
    return f"The next character of {window}"


def character_prompt(symbol: str) -> str:
    return f"Character {symbol}"


@dataclass(frozen=True)
class WindowPrompts:
    """The prompts of all windows, written out part by part: a slice is a list of texts."""

    windows: Windows
    alphabet: str

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, part: slice) -> list[str]:
        return list(map(next_character_prompt, self.windows.take(part).strings(self.alphabet)))


Samples = Tensor | Sequence[str] | WindowPrompts


def embeddable(dataset: Dataset) -> bool:
    """Whether encoders can see its samples: windows of a text, grey or RGB images."""
    x = dataset.x_train
    images = x.dtype == torch.uint8 and x.ndim == 4 and x.shape[-1] in (1, 3)
    return isinstance(x, Windows) or images


def samples_to_embed(dataset: Dataset, texts: Sequence[str] | None) -> Samples:
    """The given texts, the windows' prompts, or the images, uint8 [N, H, W, 3]."""
    x = dataset.x_train
    if texts is not None:
        if len(texts) != len(x):
            raise ValueError(
                f"embed_dataset: sample_texts must have one text for each of the {len(x)} "
                f"training samples, got {len(texts)}"
            )
        return texts
    if isinstance(x, Windows):
        return WindowPrompts(x, "".join(dataset.class_names))
    if not embeddable(dataset):
        raise ValueError(
            f"embed_dataset: {dataset.name} has no images to embed: x_train must be uint8 "
            f"[N, H, W, 3] or [N, H, W, 1], got {x.dtype} {tuple(x.shape)}; give sample_texts, or "
            "the embeddings themselves as encoder=(images, labels)"
        )
    return x.expand(-1, -1, -1, 3)  # grey becomes colour


def labels_to_embed(dataset: Dataset, texts: Sequence[str] | None = None) -> list[str]:
    """The given texts, or the classes' prompts."""
    if texts is None:
        prompt = character_prompt if isinstance(dataset.x_train, Windows) else label_prompt
        return list(map(prompt, dataset.class_names))
    if len(texts) != dataset.classes:
        raise ValueError(
            f"embed_dataset: label_texts must have one text for each of the {dataset.classes} "
            f"classes, got {len(texts)}"
        )
    return list(texts)
