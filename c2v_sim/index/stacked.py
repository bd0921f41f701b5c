"""DSA-IGN of many clients as one computation: what FEDERATED training does on a GPU.

A client's step is many small operators, which leave a GPU idle. Stacked, the networks are rows
[k, size] of a lane's memory, the batches [k, B, 512] are padded, and each operator serves all k:
the network's own products are batched ones, ops.fused_ffn, ops.index_losses and ops.dropout_mask
have a dimension of clients. Orders, batches, seeds of dropout and Adam are those of training one
client on a lane, so the result is the same up to rounding. A CPU gains nothing: there it is never
done.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim import ops
from c2v_sim.index.dsa_ign import (
    CHANNELS,
    HEADS,
    LAYERS,
    LOSSES,
    TOKENS,
    IndexNetwork,
    draw_seeds,
    drop_by,
    losses,
    scaled,
)
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.system.seeding import torch_seed
from c2v_sim.training.lane import Step
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.local_training import CohortTraining, TrainingPath
from c2v_sim.training.optimisers import Adam, StepTerms, adam_step
from c2v_sim.training.stacked.blocks import Block, write_gradients
from c2v_sim.training.stacked.networks import rows_as
from c2v_sim.training.stacked.operations import linear
from c2v_sim.training.stacked.path import BLOCK, FEWEST

Parameters = dict[str, Tensor]  # by name, each [k, …]


class IndexLoss:
    """The objective: the weighted sum of the four losses; `sums` [M, 4] adds each up by client."""

    name = "index network"
    capturable, plain_sgd, steps_per_batch = True, False, 1
    leaves_out_padding = False  # means over a batch of all samples
    after_batch = end = staticmethod(lambda client: None)

    def __init__(self, weights: list[float], clients: int, device: torch.device) -> None:
        self.weights = torch.tensor(weights, device=device)
        self.sums = torch.zeros(clients, len(LOSSES), device=device)

    def begin(self, client: LocalClient) -> None:
        client.memory("id", 1).fill_(client.id)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {}

    def local_loss(self, client: LocalClient, d: Tensor, label: Tensor) -> Tensor:
        parts = losses(client.module, d, label)  # type: ignore[arg-type]
        own = client.memory("id").long()
        self.sums.index_add_(0, own, parts.detach().unsqueeze(0) * len(d))
        return parts @ self.weights


def choose_path(device: torch.device, cohort: int) -> TrainingPath:
    """By the kind of device and the number of clients alone. Not measured on a GPU."""
    if device.type == "cpu":
        return TrainingPath(None, "a CPU is kept busy by one client")
    if cohort < FEWEST:
        return TrainingPath(None, f"a cohort has fewer than {FEWEST} clients")
    why = "a step of one client leaves a GPU idle"
    return TrainingPath(None, why, block=BLOCK, networks=True, make_step=index_step)


def index_step(training: CohortTraining, block: Block) -> Step:
    """A step of Adam on the index network's losses, for the clients of a table [active, 1 + B]."""
    client, layout, objective = block.lane.client, training.server.layout, training.objective
    adam, network = training.local.optimiser, client.module
    assert isinstance(adam, Adam)
    assert isinstance(network, IndexNetwork)
    assert isinstance(objective, IndexLoss)
    mean, square = (block.memory(name, layout.trainable).zero_() for name in ("mean", "square"))
    count, own = block.memory("count").zero_(), block.memory("id")
    own[: len(block.clients)] = torch.tensor(block.clients, dtype=own.dtype).to(own.device)
    of_all = [torch_seed(training.local.seed, block.round, id) for id in block.clients]
    generators = client.generators_of(of_all)

    def step(table: Tensor) -> None:
        active, n, ids = len(table), table[:, 0], table[:, 1:]
        d, label = (t.view(*ids.shape, WIDTH) for t in training.data.batch(ids.flatten()))
        rows = block.rows[:active]
        leaves = [rows_as(slot, rows).detach().requires_grad_() for slot in layout.parameters]
        named = {slot.name: p for slot, p in zip(layout.parameters, leaves, strict=True)}
        seeds = None
        if network.rate > 0.0:
            seeds = torch.stack([draw_seeds(g, d.device) for g in generators[:active]], dim=-1)
        parts = stacked_losses(named, d, label, n, network.rate, seeds)  # [active, 4]
        loss = parts @ objective.weights
        write_gradients(loss.sum(), leaves, layout, block.gradients[:active])
        weighted = parts.detach() * n[:, None]
        objective.sums.index_add_(0, own[:active].long(), weighted)
        block.total[:active] += loss.detach() * n
        g, m, v, c = (t[:active] for t in (block.gradients, mean, square, count))
        adam_step(rows[:, : layout.trainable], g, m, v, c, adam.lr)

    return step


def stacked_losses(
    p: Parameters, d: Tensor, label: Tensor, counts: Tensor, rate: float, seeds: Tensor | None
) -> Tensor:  # [k, 4]
    """dsa_ign.losses of each client's first `counts` [k] samples; d and label are [k, B, 512].

    seeds: [LAYERS, 4, k], or None without dropout, the rate then being 0.
    """
    k, batch, _ = d.shape
    x = scaled(d)
    tokens = torch.cat([x, x], dim=2).view(k, batch, TOKENS, CHANNELS) + p["position"][:, None]
    tokens = tokens.view(k, batch * TOKENS, CHANNELS)
    for number in range(LAYERS):
        prefix = f"layers.{number}."
        own = {name.removeprefix(prefix): t for name, t in p.items() if name.startswith(prefix)}
        tokens = encoder_layer(own, tokens, rate, None if seeds is None else seeds[number])
    encoding = tokens.view(k, batch, 2 * WIDTH)
    z, u = encoding.split(WIDTH, dim=2)
    sim, orth, div = ops.index_losses(z, u, label, counts)
    real = torch.arange(batch, device=d.device) < counts[:, None]  # [k, B]
    errors = (decoded(p, encoding) - x).square().sum(2)
    recon = torch.where(real, errors, 0.0).sum(1) / (WIDTH * counts.clamp(min=1))
    return torch.stack([sim, orth, recon, div], dim=1)


def decoded(p: Parameters, encoding: Tensor) -> Tensor:  # [k, B, 1024] -> [k, B, 512]
    if "decoder.weight" in p:
        return linear(encoding, p["decoder.weight"], None)
    hidden = F.relu(linear(encoding, p["decoder.0.weight"], p["decoder.0.bias"]))
    return linear(hidden, p["decoder.2.weight"], p["decoder.2.bias"])


def encoder_layer(p: Parameters, x: Tensor, rate: float, seeds: Tensor | None) -> Tensor:
    """dsa_ign.EncoderLayer of k clients: x [k, B·32, 32], seeds [4, k]."""

    def dropped(y: Tensor, which: int) -> Tensor:
        return y if seeds is None else drop_by(y, rate, seeds[which])

    def norm(y: Tensor, name: str) -> Tensor:
        weight, bias = p[f"{name}.weight"], p[f"{name}.bias"]
        return torch.addcmul(bias[:, None], F.layer_norm(y, (CHANNELS,)), weight[:, None])

    qkv = linear(x, p["self_attn.in_proj_weight"], p["self_attn.in_proj_bias"])
    width = CHANNELS // HEADS
    q, k, v = qkv.view(len(x), -1, TOKENS, 3, HEADS, width).permute(3, 0, 1, 4, 2, 5)
    shares = torch.softmax((q / math.sqrt(width)) @ k.transpose(-1, -2), dim=-1)  # [k, B, H, T, T]
    mixed = (dropped(shares, 0) @ v).transpose(2, 3).reshape(x.shape)
    mixed = linear(mixed, p["self_attn.out_proj.weight"], p["self_attn.out_proj.bias"])
    x = norm(x + dropped(mixed, 1), "norm1")
    weights = (p[f"linear{i}.{part}"] for i in (1, 2) for part in ("weight", "bias"))
    seed = 0 if seeds is None else seeds[2]
    y = ops.fused_ffn(x, *weights, dropout=0.0 if seeds is None else rate, seed=seed)
    return norm(x + dropped(y, 3), "norm2")
