"""CCT-7/3x1 (Hassani et al. 2021), a small transformer on convolutional tokens: → [B, K].

One 3×3 convolution and a max-pool turn [B, C, H, W] into T = H/2 · W/2 tokens of 256 (rounded
up); learnable positions are added; seven blocks

    s = s + DP(Attn(LN1 s));   s = LN2 s;   s = s + DP(MLP s)

(the second norm replaces the stream), a last norm, and z [B, 256] is the mean of the tokens with
learnt softmax weights. Attention dropout 0.1, stochastic depth DP from 0 to 0.1.
"""

import torch
from torch import Tensor, nn

from c2v_sim.models.attention import attention
from c2v_sim.models.common import InputShape, image_shape
from c2v_sim.models.dropout import Dropout, DropPath

WIDTH, BLOCKS, HEADS, MLP_RATIO = 256, 7, 4, 2
ATTENTION_DROPOUT, STOCHASTIC_DEPTH = 0.1, 0.1


class Attention(nn.Module):
    """Self-attention of HEADS heads; qkv without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.dropout = Dropout(ATTENTION_DROPOUT)  # of the weights; applied inside `attention`
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, s: Tensor) -> Tensor:  # [B, T, 256], same out
        batch, tokens, _ = s.shape
        qkv = self.qkv(s).view(batch, tokens, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [B, heads, T, 64]
        p = self.dropout.p if self.training else 0.0
        out = attention(q, k, v, p, self.dropout.generator)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    """The module's docstring has the formula."""

    def __init__(self, stochastic_depth: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        inner = MLP_RATIO * WIDTH
        self.mlp = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))
        self.drop_path = DropPath(stochastic_depth)

    def forward(self, s: Tensor) -> Tensor:  # [B, T, 256], same out
        s = s + self.drop_path(self.attention(self.norm1(s)))
        s = self.norm2(s)
        return s + self.drop_path(self.mlp(s))


class CCT(nn.Module):
    """CCT-7/3x1 for images of one size."""

    def __init__(self, classes: int, input_shape: InputShape) -> None:
        super().__init__()
        height, width, channels = image_shape("cct", input_shape)
        self.tokenizer = nn.Sequential(
            nn.Conv2d(channels, WIDTH, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        tokens = ((height + 1) // 2) * ((width + 1) // 2)
        self.positions = nn.Parameter(torch.empty(1, tokens, WIDTH))
        depths = (STOCHASTIC_DEPTH * block / (BLOCKS - 1) for block in range(BLOCKS))
        self.blocks = nn.Sequential(*map(Block, depths))
        self.norm = nn.LayerNorm(WIDTH)
        self.pool = nn.Linear(WIDTH, 1)
        self.classifier = nn.Linear(WIDTH, classes)
        nn.init.kaiming_normal_(self.tokenizer[0].weight)  # type: ignore[arg-type]
        nn.init.trunc_normal_(self.positions, std=0.2)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def features(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, 256]
        s = self.tokenizer(x).flatten(2).transpose(1, 2) + self.positions  # [B, T, 256]
        s = self.norm(self.blocks(s))
        weights = torch.softmax(self.pool(s), dim=1)  # [B, T, 1]
        return (weights.transpose(1, 2) @ s).squeeze(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
