"""Networks of other people, small and with random weights; where theirs is missing, a skip."""

import pytest
import torch
from torch import nn
from torchvision_models import torchvision_models

from c2v_sim.index.encoders.clip import _declare_torchvision_operators

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
WORDS = torch.arange(24).view(2, 12)
TEXT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 3,
    "pad_token_id": 0,
}
VISION = {k: v for k, v in TEXT.items() if k not in ("vocab_size", "pad_token_id")}


def of_torchvision(name, **options):
    return lambda: getattr(torchvision_models(), name)(num_classes=3, **options)


def of_timm(name, **options):
    def make():
        torchvision_models()  # which timm imports
        return pytest.importorskip("timm").create_model(name, num_classes=3, **options)

    return make


def of_transformers(kind, config, **settings):
    def make():
        _declare_torchvision_operators()  # transformers looks whether torchvision is there
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, kind)(getattr(transformers, config)(**settings))

    return make


NETWORKS = {
    "resnet18": (of_torchvision("resnet18"), IMAGES, "fc"),
    "mobilenet_v2": (of_torchvision("mobilenet_v2"), IMAGES, "classifier.1"),
    "timm mobilenetv3": (of_timm("mobilenetv3_small_050"), IMAGES, "classifier"),
    "timm vit": (
        of_timm("vit_tiny_patch16_224", img_size=32, depth=1, drop_path_rate=0.1),
        IMAGES,
        "head",
    ),
    "bert": (
        of_transformers("BertForSequenceClassification", "BertConfig", **TEXT),
        WORDS,
        "classifier",
    ),
    "roberta": (
        of_transformers("RobertaForSequenceClassification", "RobertaConfig", **TEXT),
        WORDS,
        "classifier.out_proj",
    ),
    "llama, whose logits are one position of many": (
        of_transformers("LlamaForSequenceClassification", "LlamaConfig", **TEXT),
        WORDS,
        "score",
    ),
    "vit": (
        of_transformers(
            "ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **VISION
        ),
        IMAGES,
        "classifier",
    ),
    "sequential": (
        lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Linear(3072, 3))),
        IMAGES,
        "1.1",
    ),
    "one layer": (lambda: nn.Linear(12, 3), WORDS.float(), ""),
}


class LowRank(nn.Module):
    """A frozen layer and what is learned beside it."""

    def __init__(self, linear, rank=2):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))
