"""Flower's grid without an engine: a client app is called where it stands, node by node.

For what the engine cannot be told to do: clients that fail, and nodes that go.
"""

from flwr.app import Context, Message, RecordDict
from flwr.app import Error as FlowerError
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class LocalGrid(Grid):
    """`clients` nodes whose ids have no order; `fails(message type, client, call)`: who fails."""

    def __init__(self, app, clients, fails=lambda kind, client, call: False):
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # as an engine does
        self.app, self.fails, self.calls = app, fails, 0
        self.client_of = {7919 * (i + 3) % 1009 + 1: i for i in range(clients)}
        self.connected = list(self.client_of)

    def get_node_ids(self):
        return list(self.connected)

    def send_and_receive(self, messages, *, timeout=None):
        self.calls += 1
        return [self.answer(message) for message in reversed(list(messages))]

    def answer(self, message):
        client = self.client_of[message.metadata.dst_node_id]
        if self.fails(message.metadata.message_type, client, self.calls):
            return Message(FlowerError(code=1, reason="out of memory"), reply_to=message)
        node = {"partition-id": client, "num-partitions": len(self.client_of)}
        context = Context(1, message.metadata.dst_node_id, node, RecordDict(), {})
        return self.app(message, context)

    def set_run(self, run):
        raise NotImplementedError

    run = property(lambda self: None)

    def create_message(self, *arguments, **named):
        raise NotImplementedError

    push_messages = pull_messages = create_message
