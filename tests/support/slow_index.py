"""Training DSA-IGN the slow, obvious way: torch's encoder, torch.optim.Adam, eager losses.

Shares nothing with c2v_sim but the initial weights and the specification's random streams. No
dropout: its bits are a matter of implementation.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class SlowNetwork(nn.Module):
    def __init__(self, state, hidden):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 8, hidden, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.position = nn.Parameter(state["position"].clone())
        self.decoder = nn.Linear(1024, 512, bias=False)
        self.encoder.load_state_dict({k: v for k, v in state.items() if k.startswith("layers.")})
        self.decoder.weight.data.copy_(state["decoder.weight"])

    def losses(self, d, label):
        x = 512**0.5 * d
        out = self.encoder(torch.cat([x, x], 1).view(-1, 32, 32) + self.position).reshape(-1, 1024)
        z, u = F.normalize(out[:, :512], dim=1), F.normalize(out[:, 512:], dim=1)
        others = ~torch.eye(len(d), dtype=torch.bool)
        div = torch.stack([(u[j] @ u.T)[others[j]].logsumexp(0) for j in range(len(d))]).mean()
        recon = (self.decoder(out) - x).square().mean()
        sim = (1 - (z * F.normalize(label, dim=1)).sum(1)).mean()
        return sim + (z @ u.T).abs().mean() + recon + div


def batches(ids, size):
    for start in range(0, len(ids), size):
        if len(batch := ids[start : start + size]) > 1:
            yield batch


def train_global(network, images, labels, y, clients, config):
    pool = np.concatenate(
        [
            np.random.default_rng([config.seed, 4, i]).choice(
                ids, min(config.upload, len(ids)), replace=False
            )
            for i, ids in enumerate(clients)
        ]
    )
    adam = torch.optim.Adam(network.parameters(), lr=config.index_lr)
    for epoch in range(1, config.epochs + 1):
        order = np.random.default_rng([config.seed, 5, epoch]).permutation(len(pool))
        for batch in batches(pool[order], config.batch_size):
            adam.zero_grad()
            network.losses(images[batch], labels[y[batch]]).backward()
            adam.step()
    return network


def train_federated(network, images, labels, y, clients, config):
    k = max(1, int(config.participation * len(clients) + 1e-9))
    for t in range(1, -(-config.epochs // config.local_epochs) + 1):
        chosen = np.random.default_rng([config.seed, 6, t]).choice(len(clients), k, replace=False)
        chosen = sorted(chosen)
        shares = np.array([len(clients[i]) for i in chosen], dtype=float)
        shares /= shares.sum()
        states = []
        for i in chosen:
            local = copy.deepcopy(network)
            adam = torch.optim.Adam(local.parameters(), lr=config.index_lr)
            order = np.random.default_rng([config.seed, 5, t, i])
            for _ in range(config.local_epochs):
                shuffled = clients[i][order.permutation(len(clients[i]))]
                for batch in batches(shuffled, config.batch_size):
                    adam.zero_grad()
                    local.losses(images[batch], labels[y[batch]]).backward()
                    adam.step()
            states.append(local.state_dict())
        network.load_state_dict(
            {
                name: sum(w * s[name].double() for w, s in zip(shares, states, strict=True)).float()
                for name in states[0]
            }
        )
    return network
