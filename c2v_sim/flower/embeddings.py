"""Clients send the embeddings of their samples once, and the server makes the client index.

The server asks with messages of the type `query.client2vec`; a client answers them so:

    @app.query(EMBED)
    def embed(message, context):
        return embeddings_reply(message, context.node_config["partition-id"], samples, labels)

Flower's node ids are drawn anew for every run; the client's own number, 0 … M-1, says which row of
the index is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from torch import Tensor

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.sent import index_from_embeddings

EMBED = "client2vec"  # the action of the query


@dataclass(frozen=True, eq=False)
class Sent:
    """What all clients sent, in the order of their numbers."""

    nodes: dict[int, int]  # Flower's node id -> the client's number, its row in the index
    samples: list[Tensor]  # M × [N_i, D]
    labels: list[Tensor]  # M × [N_i]

    def index(
        self,
        classes: Tensor,
        config: IndexConfig | None = None,
        *,
        class_names: Sequence[str] | None = None,
    ) -> ClientIndex:
        """The index of these clients; `classes` [K, D] are the embeddings of the class names."""
        return index_from_embeddings(
            self.samples, self.labels, classes, config, class_names=class_names
        )


def embeddings_reply(message: Message, client: int, samples: Tensor, labels: Tensor) -> Message:
    """A client's answer: its number, its samples' embeddings [n, D] and their classes [n]."""
    sent = {"samples": samples.detach().cpu().float(), "labels": labels.detach().cpu().long()}
    arrays = ArrayRecord({name: Array(tensor.numpy()) for name, tensor in sent.items()})
    content = {"embeddings": arrays, "client": MetricRecord({"number": int(client)})}
    return Message(RecordDict(content), reply_to=message)


def gather_embeddings(grid: Grid, clients: int, *, timeout: float | None = None) -> Sent:
    """Wait until `clients` nodes are connected, ask each, and put the answers in order.

    ValueError where one does not answer in `timeout` seconds, fails, or the numbers are not
    0 … M-1: an index without some clients would leave them out of every round.
    """
    _, nodes = sample_nodes(grid, clients, clients)
    kind = f"{MessageType.QUERY}.{EMBED}"
    asked = [Message(RecordDict(), message_type=kind, dst_node_id=node) for node in nodes]
    replies = list(grid.send_and_receive(asked, timeout=timeout))
    answered = [reply for reply in replies if not reply.has_error()]
    if len(answered) < len(nodes):
        failed = [r.error.reason for r in replies if r.has_error()]
        why = f"; the first failure: {failed[0]}" if failed else ""
        raise ValueError(
            f"gather_embeddings: {len(nodes) - len(answered)} of {len(nodes)} clients did not send "
            f"embeddings{why}. A client answers with @app.query({EMBED!r}) and embeddings_reply"
        )
    return in_order(answered)


def in_order(replies: Sequence[Message]) -> Sent:
    """The replies by the clients' numbers."""
    of = {int(r.content["client"]["number"]): r for r in replies}
    numbers, expected = sorted(of), list(range(len(replies)))
    if numbers != expected:
        raise ValueError(
            f"gather_embeddings: the {len(expected)} clients must be numbered "
            f"0..{len(expected) - 1}, each once, got {numbers}"
        )
    arrays = [of[i].content["embeddings"] for i in numbers]
    return Sent(
        nodes={of[i].metadata.src_node_id: i for i in numbers},
        samples=[torch.from_numpy(sent["samples"].numpy()) for sent in arrays],
        labels=[torch.from_numpy(sent["labels"].numpy()) for sent in arrays],
    )
