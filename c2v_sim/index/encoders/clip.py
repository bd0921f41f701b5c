"""CLIP through open_clip: images and texts -> unit rows [n, 512] of one shared space.

Enters: uint8 images [N, H, W, 3] of any size, or texts (cut to the model's 77 tokens).
Leaves: float32 rows [n, 512] on the CPU, L2-normalised.

Preprocessing is CLIP's own, on batches of tensors instead of one PIL image at a time: shorter side
to the model's size (bicubic, antialiased, rounded to 8 bits as PIL does), centre crop, mean and
std. Weights come from the hub by tag, or from a local checkpoint file.
"""

import hashlib
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from c2v_sim.index.encoders.encoder import WIDTH, encoder_device

MODEL, TAG = "ViT-B-32", "openai"  # those that came with CLIP
OFFLINE = "the encoder `builtin` needs no weights"


class ClipEncoder:
    """An open_clip model.

    model: any open_clip name whose embedding is 512 wide ("ViT-B-32", "ViT-B-16", "hf-hub:…").
    pretrained: a tag that open_clip knows for it, or a checkpoint file.
    device: default the GPU where there is one.
    """

    def __init__(
        self,
        model: str = MODEL,
        pretrained: str | Path = TAG,
        *,
        device: str | torch.device | None = None,
    ) -> None:
        open_clip = _import_open_clip()
        pretrained = str(pretrained)
        file = Path(pretrained).expanduser()
        config = open_clip.get_model_config(model) if ":" not in model else None
        _check_choice(open_clip, model, pretrained, file, config)
        self.device = encoder_device(device)
        self.model = _load(open_clip, model, str(file) if file.is_file() else pretrained)
        self.model.eval().to(self.device)
        self.tokenizer = open_clip.get_tokenizer(model)
        self.preprocessing = open_clip.get_model_preprocess_cfg(self.model)
        if ":" in model:  # such a name carries its weights
            self.name = self.identity = f"clip {model}"
        elif file.is_file():
            self.name = f"clip {model}/{file.name}"
            with file.open("rb") as handle:
                digest = hashlib.file_digest(handle, "sha256")
            self.identity = f"clip {model}/sha256:{digest.hexdigest()}"
        else:
            self.name = self.identity = f"clip {model}/{pretrained}"
        _check_width(model, self.embed_texts(["width"]).shape[1])

    @torch.inference_mode()
    def embed_images(self, images: Tensor) -> Tensor:
        pixels = preprocess(images.to(self.device), self.preprocessing)
        return F.normalize(self.model.encode_image(pixels).float(), dim=1).cpu()

    @torch.inference_mode()
    def embed_texts(self, texts: list[str]) -> Tensor:
        tokens = self.tokenizer(texts).to(self.device)
        return F.normalize(self.model.encode_text(tokens).float(), dim=1).cpu()


def preprocess(images: Tensor, config: dict[str, Any]) -> Tensor:
    """uint8 [N, H, W, 3] -> float32 [N, 3, size, size] as open_clip's transform of each image."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    wanted = {"resize_mode": "shortest", "interpolation": "bicubic"}
    if any(config.get(k) != v for k, v in wanted.items()) or height != width:
        raise ValueError(
            f"clip: the preprocessing {config} is not implemented; it must be square with {wanted}"
        )
    x = images.permute(0, 3, 1, 2).float()
    shorter = min(x.shape[2:])
    if shorter != height:
        # The longer side is cut down to an integer, as torchvision does.
        sides = [int(height * side / shorter) for side in x.shape[2:]]
        x = F.interpolate(x, sides, mode="bicubic", antialias=True, align_corners=False)
        x = x.round_().clamp_(0, 255)
    top, left = round((x.shape[2] - height) / 2), round((x.shape[3] - width) / 2)
    x = x[:, :, top : top + height, left : left + width]
    mean, std = (torch.tensor(config[k], device=x.device).view(3, 1, 1) for k in ("mean", "std"))
    return (x / 255 - mean) / std


def _check_choice(
    open_clip: ModuleType, model: str, pretrained: str, file: Path, config: dict | None
) -> None:
    """Refuse what cannot work before anything is downloaded."""
    if ":" in model:
        return
    if config is None:
        raise ValueError(
            f"clip: open_clip has no model {model!r}; open_clip.list_models() names them, "
            f"the default is {MODEL}"
        )
    _check_width(model, config["embed_dim"])
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not file.is_file() and not open_clip.get_pretrained_cfg(model, pretrained):
        raise ValueError(
            f"clip: pretrained {pretrained!r} is neither a file nor a tag of {model}; "
            f"its tags: {', '.join(tags) or 'none'}"
        )


def _check_width(model: str, width: int) -> None:
    if width != WIDTH:
        raise ValueError(
            f"clip: {model} has embeddings of width {width}, but the index network needs {WIDTH}; "
            "choose one of that width, for example ViT-B-32 or ViT-B-16"
        )


def _load(open_clip: ModuleType, model: str, pretrained: str) -> Any:
    # Tags trained with QuickGELU (OpenAI's) give other features under the usual GELU.
    quick = bool((open_clip.get_pretrained_cfg(model, pretrained) or {}).get("quick_gelu"))
    own = {} if ":" in model else {"pretrained": pretrained, "require_pretrained": True}
    try:
        return open_clip.create_model(model, force_quick_gelu=quick, **own)
    except Exception as error:  # open_clip and the hub raise many kinds
        if Path(pretrained).is_file():
            raise ValueError(
                f"clip: {pretrained} does not hold weights of {model} ({_first_line(error)}); "
                "give the model that it was saved from, or another file"
            ) from error
        raise RuntimeError(
            f"clip: the weights {pretrained!r} of {model} could not be fetched "
            f"({_first_line(error)}). Download the checkpoint on a connected machine (open_clip "
            "caches it in ~/.cache/huggingface) and name the file: --index-clip-weights FILE of a "
            "run, --clip-weights FILE of c2v_sim.index; a file of OpenAI's goes with the model "
            f"ViT-B-32-quickgelu. Without it, {OFFLINE}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _import_open_clip() -> ModuleType:
    _declare_torchvision_operators()
    try:
        return importlib.import_module("open_clip")
    except ImportError as error:
        raise RuntimeError(
            f"clip: open_clip is not installed ({error}); pip install 'c2v_sim[clip]' gives it, "
            f"and {OFFLINE}"
        ) from error


def _declare_torchvision_operators() -> None:
    """Let torchvision be imported beside a torch that its compiled library was not built for.

    torchvision's Python code registers fake versions of `nms` and `qnms` at import, and fails
    where its library (built for CUDA) cannot load beside a CPU-only torch and so never declared
    them. open_clip imports torchvision for transforms alone and never calls either operator: a
    declaration without an implementation is enough. Where the library does load it must declare
    them itself, so ours are made only after an import has failed for this very reason.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # not installed: the import of open_clip says so
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
