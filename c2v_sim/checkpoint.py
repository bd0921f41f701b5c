"""The checkpoint from which a run goes on bit-exactly.

All randomness of a round is drawn from (seed, round, client), so the global model and the number
of finished rounds are the whole state of a FedAvg run.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from c2v_sim.atomic import write_atomically
from c2v_sim.simulator import Simulator


def save_checkpoint(path: Path, simulator: Simulator) -> None:
    """The state after `simulator.round` rounds."""
    tensors = {"server": simulator.server.data.cpu(), "integers": simulator.server.integers.cpu()}
    state = {"round": str(simulator.round), "layout": layout_name(simulator)}
    state["dataset"] = simulator.federation.dataset.name
    write_atomically(path, lambda p: save_file(tensors, str(p), metadata=state))


def load_checkpoint(path: Path, simulator: Simulator) -> None:
    """Put `simulator` back to the state that was saved."""
    try:
        with safe_open(str(path), framework="pt") as file:
            state = file.metadata()
            if state["layout"] != layout_name(simulator):
                raise ValueError(f"{path} belongs to another model than {simulator.config.model}")
            with torch.no_grad():
                simulator.server.data.copy_(file.get_tensor("server"))
                simulator.server.integers.copy_(file.get_tensor("integers"))
    except (SafetensorError, KeyError, OSError) as error:
        raise ValueError(f"the checkpoint {path} cannot be read: {error}") from error
    simulator.round = int(state["round"])


def layout_name(simulator: Simulator) -> str:
    """Names and shapes of the model's tensors in order, to recognise a foreign checkpoint."""
    layout = simulator.layout
    slots = layout.parameters + layout.buffers
    return json.dumps([[s.name, list(s.shape)] for s in slots] + [list(layout.integers)])
