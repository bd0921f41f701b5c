"""What embeds samples and labels for the index: a new encoder is a file here and a line below."""

from collections.abc import Callable

from c2v_sim.index.encoders.builtin import BuiltinEncoder
from c2v_sim.index.encoders.clip import ClipEncoder
from c2v_sim.index.encoders.encoder import Encoder
from c2v_sim.index.encoders.pretrained_lite import PretrainedLiteEncoder

ENCODERS: dict[str, Callable[..., Encoder]] = {
    "builtin": BuiltinEncoder,
    "pretrained-lite": PretrainedLiteEncoder,
    "clip": ClipEncoder,
}


def make_encoder(name: str, **options: object) -> Encoder:
    """ENCODERS[name](**options), for example make_encoder("clip", pretrained="ViT-B-32.pt")."""
    if name not in ENCODERS:
        raise ValueError(f"unknown encoder {name!r}; known: {', '.join(ENCODERS)}")
    return ENCODERS[name](**options)
