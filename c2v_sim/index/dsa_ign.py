"""Stage 4: DSA-IGN, the index-generation network, and its losses.

Enters: unit embeddings of samples D [B, 512] and of their labels L [B, 512]. Leaves: the data
encoding z [B, 512], which follows the label, and the sample feature index u [B, 512].

    x = √512 D;   [x, x] -> 32 tokens of 32, plus a learnable position E [32, 32]
    three post-norm transformer encoder layers (8 heads, 2048 hidden units, dropout) -> [z, u]
    x~ = decoder([z, u])

    L = L_sim(z, L) + L_orth(z, u) + L_recon(x~, x) + L_div(u)        each may be left out

Layers have the names, shapes and initial weights of torch's encoder layers, so that weights can
be exchanged, each layer with weights of its own. The computation is ours: the hidden activations
are never in memory, and dropout draws from a generator that local training sets for each client.
On a GPU the generator gives seeds alone, one for each dropout of a step; what is dropped depends on
a seed and the element's place in its sample (ops.dropout_mask). So it is the same whether a client
trains alone or stacked with others in padded batches (index/stacked.py).
"""

import math
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim import ops
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.ops.fused_ffn import dropout_threshold
from c2v_sim.system.seeding import seeded_construction

TOKENS, CHANNELS, HEADS, LAYERS, HIDDEN = 32, 32, 8, 3, 2048
LOSSES = ("sim", "orth", "recon", "div")
DECODERS = ("linear", "mlp")
# Of a layer's dropouts: attention shares, their result, hidden units, the feed-forward result.
Seeds = Sequence[Tensor | None]
NO_SEEDS = (None,) * 4


class EncoderLayer(nn.TransformerEncoderLayer):
    """x [B, 32, 32] -> same, as torch's post-norm layer; its nn.Dropout modules are not used."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__(CHANNELS, HEADS, hidden, dropout, batch_first=True)
        self.rate = dropout
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor, seeds: Seeds = NO_SEEDS) -> Tensor:  # type: ignore[override]
        x = self.norm1(x + self._drop(self._attention(x, seeds[0]), seeds[1]))
        return self.norm2(x + self._drop(self._feed_forward(x, seeds[2]), seeds[3]))

    def _attention(self, x: Tensor, seed: Tensor | None) -> Tensor:
        attention, width = self.self_attn, CHANNELS // HEADS
        qkv = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        if not (self.training and self.rate > 0.0):
            return attention.out_proj(ops.short_attention(qkv, HEADS))
        q, k, v = qkv.view(-1, TOKENS, 3, HEADS, width).permute(2, 0, 3, 1, 4)  # [B, H, T, 4]
        # Scaling q costs an eighth of scaling the scores.
        shares = torch.softmax((q / math.sqrt(width)) @ k.transpose(2, 3), dim=3)
        mixed = (self._drop(shares, seed) @ v).transpose(1, 2).reshape(x.shape)
        return attention.out_proj(mixed)

    def _feed_forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        drops = self.training and self.rate > 0.0
        weights = (self.linear1.weight, self.linear1.bias, self.linear2.weight, self.linear2.bias)
        if not drops:
            return ops.fused_ffn(x, *weights)
        if seed is None:
            seed = torch.randint(2**62, (), generator=self.generator, device=x.device)
        return ops.fused_ffn(x, *weights, dropout=self.rate, seed=seed)

    def _drop(self, x: Tensor, seed: Tensor | None) -> Tensor:
        if not (self.training and self.rate > 0.0):
            return x
        return drop(x, self.rate, self.generator) if seed is None else drop_by(x, self.rate, seed)


def by_seeds(device: torch.device) -> bool:
    """Whether masks are functions of seeds there. On a CPU drawing them is faster."""
    return device.type != "cpu"


def drop_by(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Dropout by a seed [], or of k clients, x [k, …] by seeds [k]; samples come next in x."""
    threshold, scale = dropout_threshold(rate)
    rows = x.numel() // max(1, seed.numel() * x.shape[-1])
    keep = ops.dropout_mask(rows, x.shape[-1], threshold, seed).view(x.shape)
    return x * keep.to(x.dtype).mul_(scale)


def drop(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout by 16 random bits per element, four elements per draw; torch draws each alone.

    The probability is a multiple of 1/65536 as in fused_ffn; kept values are scaled to match.
    """
    threshold, scale = dropout_threshold(rate)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    bits = draws.random_(-(2**63), None, generator=generator).view(torch.int16)
    keep = (bits[: x.numel()] >= threshold - 32768).view(x.shape)
    return x * keep.to(x.dtype).mul_(scale)


class IndexNetwork(nn.Module):
    """DSA-IGN: 937,824 parameters with the linear decoder."""

    def __init__(
        self, *, decoder: str = "linear", hidden: int = HIDDEN, dropout: float = 0.1
    ) -> None:
        super().__init__()
        if decoder not in DECODERS:
            raise ValueError(
                f"IndexNetwork: decoder must be one of {', '.join(DECODERS)}; got {decoder!r}"
            )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"IndexNetwork: dropout must be in [0, 1), got {dropout}")
        self.rate = dropout
        # Without a position, tokens k and k + 16 are the same input and z = u exactly.
        self.position = nn.Parameter(torch.randn(TOKENS, CHANNELS))
        self.layers = nn.ModuleList(EncoderLayer(hidden, dropout) for _ in range(LAYERS))
        if decoder == "linear":
            self.decoder: nn.Module = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        else:
            first, second = nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            self.decoder = nn.Sequential(first, nn.ReLU(), second)

    def encode(self, d: Tensor) -> Tensor:  # [B, 512] -> [B, 1024]
        """[z, u] of sample embeddings."""
        if d.dim() != 2 or d.shape[1] != WIDTH:
            raise ValueError(f"IndexNetwork: embeddings must be [B, {WIDTH}], got {tuple(d.shape)}")
        x = scaled(d)
        tokens = torch.cat([x, x], dim=1).view(-1, TOKENS, CHANNELS) + self.position
        if self.training and self.rate > 0.0 and by_seeds(d.device):
            drawn = draw_seeds(self.layers[0].generator, d.device)  # type: ignore[arg-type]
            seeds: Sequence[Seeds] = [layer.unbind() for layer in drawn]
        else:
            seeds = [NO_SEEDS] * LAYERS
        for layer, own in zip(self.layers, seeds, strict=True):
            tokens = layer(tokens, own)
        return tokens.reshape(-1, 2 * WIDTH)

    def forward(self, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [B, 512] -> 3 × [B, 512]
        """(z, u, x~)."""
        encoding = self.encode(d)
        return encoding[:, :WIDTH], encoding[:, WIDTH:], self.decoder(encoding)


def draw_seeds(generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Those of one step, [LAYERS, 4]."""
    return torch.randint(2**62, (LAYERS, 4), generator=generator, device=device)


def scaled(d: Tensor) -> Tensor:
    """x = √512 D: elements of variance about one, so that L_recon is of the others' size."""
    return d * math.sqrt(WIDTH)


def build_network(decoder: str, hidden: int, dropout: float, seed: int) -> IndexNetwork:
    """The network with the initial weights of a run's seed; same seed, same bits."""
    with seeded_construction(seed + 1):
        return IndexNetwork(decoder=decoder, hidden=hidden, dropout=dropout)


def losses(network: IndexNetwork, d: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """The four losses in the order of LOSSES, [4]; d and l are [B, 512]."""
    z, u, restored = network(d)
    sim, orth, div = ops.index_losses(z, u, l)
    return torch.stack([sim, orth, F.mse_loss(restored, scaled(d)), div])


def loss_weights(omitted: Collection[str]) -> list[float]:
    """1 for every loss, 0 for the `omitted`."""
    for name in omitted:
        if name not in LOSSES:
            raise ValueError(f"unknown loss {name!r}; known: {', '.join(LOSSES)}")
    if set(omitted) == set(LOSSES):
        raise ValueError("all four losses are omitted; nothing would be trained")
    return [0.0 if name in omitted else 1.0 for name in LOSSES]
