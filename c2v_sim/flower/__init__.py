"""Client2Vec in Flower: the same steering as the simulator's, on Flower's clients and engine.

    sent = gather_embeddings(grid, clients=10)         # what clients answered (embeddings_reply)
    index = sent.index(classes)
    strategy = Client2VecFedAvg(index, sent.nodes, RunConfig(improve=("sampling",), …))

embeddings.py    clients send embeddings, the server makes the client index of them
strategy.py      case studies i and ii: FedAvg that samples and weighs by the index
local_loss.py    case study iii: the loss that a client adds to its own
"""

try:
    import flwr as flwr
except ImportError as error:
    raise ImportError(
        f"c2v_sim.flower needs Flower, which is not there ({error}); "
        "install it with: pip install 'c2v_sim[flower]'"
    ) from error

from c2v_sim.flower.embeddings import Sent, embeddings_reply, gather_embeddings
from c2v_sim.flower.local_loss import add_projection, local_loss
from c2v_sim.flower.strategy import Client2VecFedAvg, SteeredRound

__all__ = [
    "Client2VecFedAvg",
    "Sent",
    "SteeredRound",
    "add_projection",
    "embeddings_reply",
    "gather_embeddings",
    "local_loss",
]
