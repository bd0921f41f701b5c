"""Case study iii on a Flower client: the loss that is added to its own.

    loss = cross_entropy(logits, y) + extra(model, z, logits)

The strategy sends the feature part of the index with every training message. The model has P and
g_P (`add_projection`), on the server too: they are averaged like all its parameters.
"""

import torch
from flwr.app import Message

from c2v_sim.algorithms.local_regulariser import LocalRegulariser, add_projection
from c2v_sim.config import RunConfig

__all__ = ["INDEX_KEY", "add_projection", "local_loss"]
INDEX_KEY = "client2vec-index"  # of the ArrayRecord in a training message
FEATURE = "feature"


def local_loss(message: Message, config: RunConfig) -> LocalRegulariser:
    """What `config` adds to the loss, by the index in a training message; called with the model,
    z = features(x) [B, d] and its logits [B, K]."""
    if INDEX_KEY not in message.content:
        raise ValueError(
            "local_loss: the message has no client index; the strategy sends it where its config "
            "has improve = local"
        )
    index = torch.from_numpy(message.content[INDEX_KEY][FEATURE].numpy())
    orth, dist = config.local_weights
    return LocalRegulariser(
        index,
        orth_weight=orth,
        dist_weight=dist,
        form=config.local_orth,
        direction=config.dist_direction,
        detach=config.dist_detach,
    )
