"""Client2Vec in a Flower app: ten clients on Flower's own engine, beside this simulator.

Before training, every client sends the embeddings of its samples, and the server makes the client
index of them. It then decides who trains (case study i), how much each counts (ii), and what is
added to the clients' losses (iii). Local training is plain torch. At the end the same run is made
by c2v_sim: the cohorts, the weights and the model are the same.

    pip install 'c2v_sim[flower]'
    python examples/flower_app.py

`flwr run` takes the same two apps: name them in the pyproject.toml of your Flower app as
`serverapp = "flower_app:server_app"` and `clientapp = "flower_app:client_app"`.
"""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn
from torch.nn.functional import cross_entropy

from c2v_sim import Federation, IndexConfig, RunConfig, Simulator, build_index
from c2v_sim.flower import (
    Client2VecFedAvg,
    add_projection,
    embeddings_reply,
    gather_embeddings,
    local_loss,
)
from c2v_sim.flower.embeddings import EMBED

CLIENTS, SITES, SAMPLES, FEATURES, CLASSES, WIDTH = 10, 3, 30, 16, 4, 32
CONFIG = RunConfig(
    rounds=4,
    participation=0.3,
    local_epochs=1,
    batch_size=8,
    lr=0.05,
    improve=("sampling", "aggregation", "local"),
    tau=0.1,
)
INDEX = IndexConfig(epochs=4, hidden=64, dropout=0.0, batch_size=32, threads=1)
finished = {}  # what the server leaves for `main`


def measurements(seed=0) -> Federation:
    """Ten stations at three sites, each site with its own calibration."""
    g = torch.Generator().manual_seed(seed)
    station = torch.arange(CLIENTS).repeat_interleave(SAMPLES)
    y = torch.randint(CLASSES, (len(station),), generator=g)
    offsets = 2 * torch.randn(SITES, FEATURES, generator=g)
    signal = 0.6 * torch.randn(CLASSES, FEATURES, generator=g)
    x = offsets[station % SITES] + signal[y] + torch.randn(len(y), FEATURES, generator=g)
    return Federation.from_arrays(x, y, station, seed=seed, name="stations")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU())
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def features(self, x):
        return self.body(x)


def embed(x):
    """What the index sees of a sample: 512 numbers, here a projection that all clients know."""
    return x @ torch.randn(FEATURES, 512, generator=torch.Generator().manual_seed(0))


def class_embeddings():
    return torch.randn(CLASSES, 512, generator=torch.Generator().manual_seed(1))


def new_net():
    torch.manual_seed(CONFIG.seed)
    return Net()


def new_model():
    """The net with what case study iii adds to it."""
    model = new_net()
    torch.manual_seed(CONFIG.seed)
    add_projection(model, WIDTH, 512, CLASSES)
    return model


# ---- the clients ----------------------------------------------------------------------------

client_app = ClientApp()


def own_samples(context):
    """This client's number, samples and classes."""
    client, federation = int(context.node_config["partition-id"]), measurements()
    ids = torch.from_numpy(federation.partition.train[client])
    return client, federation.dataset.x_train[ids], federation.dataset.y_train[ids]


@client_app.query(EMBED)
def send_embeddings(message: Message, context: Context) -> Message:
    client, x, y = own_samples(context)
    return embeddings_reply(message, client, embed(x), y)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    (client, x, y), t = own_samples(context), message.content["config"]["server-round"]
    model, extra = new_model(), local_loss(message, CONFIG)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), CONFIG.lr, weight_decay=CONFIG.weight_decay)
    order = np.random.default_rng([CONFIG.seed, 3, t, client])  # the simulator's batches
    losses = []
    for batch in torch.from_numpy(order.permutation(len(y))).split(CONFIG.batch_size):
        z = model.features(x[batch])
        logits = model.classifier(z)
        loss = cross_entropy(logits, y[batch]) + extra(model, z, logits)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    metrics = MetricRecord({"num-examples": len(y), "loss": float(np.mean(losses))})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


# ---- the server -----------------------------------------------------------------------------

server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    sent = gather_embeddings(grid, CLIENTS)
    index = sent.index(class_embeddings(), INDEX)
    strategy = Client2VecFedAvg(index, sent.nodes, CONFIG, fraction_evaluate=0.0)
    start = ArrayRecord(new_model().state_dict())
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=CONFIG.rounds)
    finished.update(rounds=strategy.history, model=result.arrays.to_torch_state_dict())


# ---- both -----------------------------------------------------------------------------------


def simulate():
    """The same by c2v_sim: its records and its model."""
    federation = measurements()
    given = (embed(federation.dataset.x_train), class_embeddings())
    index = build_index(federation, INDEX, embeddings=given)
    simulator = Simulator(federation, CONFIG, model=new_net(), index=index)
    records = simulator.run().records
    simulator.close()
    return records, simulator.global_model()


def main() -> None:
    resources = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=resources)
    records, model = simulate()
    for name, rounds in (("flower", finished["rounds"]), ("c2v_sim", records)):
        for record in rounds:
            weights = " ".join(f"{weight:.9f}" for weight in record.weights)
            print(f"{name} round {record.round}: clients {record.cohort} weights {weights}")
    apart = max((model[k] - finished["model"][k]).abs().max().item() for k in model)
    print(f"the models differ by at most {apart:.1e}")


if __name__ == "__main__":
    main()
