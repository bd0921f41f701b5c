"""Whether the clients of a run are stacked, by shapes and the kind of device alone."""

import torch
from torch import Tensor, nn

from c2v_sim.models.linear_chain import NoChain, linear_chain
from c2v_sim.system.errors import ConfigError
from c2v_sim.training.local_training import LocalTraining, Objective, TrainingPath
from c2v_sim.training.optimisers import Sgd
from c2v_sim.training.stacked.networks import CannotStack, work_of

# Measured (CPU seconds of a round against one lane, 784 inputs): 10 clients, linear 2.3–2.9 times
# faster, hidden layer of 64 1.3–1.9, of 200 1.3–1.5, of 512 1.2; 100 clients of 20 samples: 6.5,
# 3.7, 2.0. Beyond this size the gain is less than what uneven blocks may lose on two lanes.
LARGEST = 200_000  # parameters of a model
FEWEST = 4  # clients in a cohort
BLOCK = 32  # clients in a block; more gain little, and fewer blocks keep fewer lanes busy
# Not measured: a GPU of 10 TFLOP/s does this in 0.2 ms. A larger step fills it by itself, and then
# one client after another, recorded, needs no patches in memory (bench/gpu_rounds.py).
MOST_WORK = 2e9  # operations of one client's step, there and back
BLOCK_BYTES = 2**31  # of patches, the largest thing in memory


def choose_path(
    model: nn.Module,
    x: Tensor,
    local: LocalTraining,
    objective: Objective,
    cohort: int,
    wish: str = "auto",
    device: torch.device | str = "cpu",
) -> TrainingPath:
    """Stacked where train_stacked does what train_cohort does, and does it faster.

    x: a batch [B, …] that the model takes, both on the CPU; cohort: clients in a round; wish: one
    of STACKING, of which `always` takes a path that may be slower, and raises where there is none.
    """
    if wish == "never":
        return TrainingPath(None, "stacking is not wanted")
    faster = wish == "auto"
    if reason := not_plain(local, objective, cohort if faster else FEWEST):
        path = TrainingPath(None, reason)
    elif torch.device(device).type == "cpu":
        path = chain_path(model, x, faster)
        if not path.stacked and not faster:
            path = network_path(model, x, local.batch_size, faster)
    else:
        path = network_path(model, x, local.batch_size, faster)
    if wish == "always" and not path.stacked:
        raise ConfigError(f"stacked = always: clients cannot be stacked here: {path.why}")
    return path


def chain_path(model: nn.Module, x: Tensor, faster: bool) -> TrainingPath:
    """What a CPU does: chains of Linear layers. Patches of convolutions are slower there."""
    try:
        chain = linear_chain(model, x)
    except NoChain as error:
        return TrainingPath(None, f"the model is no chain of Linear and ReLU: {error}")
    size = sum(p.numel() for p in model.parameters())
    if faster and size > LARGEST:
        reason = f"{size:,} parameters, and above {LARGEST:,} stacking gains little"
        return TrainingPath(None, reason)
    layers = f"{len(chain)} Linear layers" if len(chain) > 1 else "one Linear layer"
    return TrainingPath(chain, f"the model is nothing but {layers} and ReLU", block=BLOCK)


def network_path(model: nn.Module, x: Tensor, batch: int, faster: bool) -> TrainingPath:
    """What a GPU does: any network of layers that can be stacked, if one client leaves it idle."""
    try:
        products, patches = work_of(model, x)
    except CannotStack as error:
        return TrainingPath(None, f"the model cannot be stacked: {error}")
    work = 2 * 3 * products * batch  # forward, and two gradients
    if faster and work > MOST_WORK:
        reason = f"a step of one client is {work / 1e9:.1f} GFLOP, which keep a GPU busy"
        return TrainingPath(None, reason)
    block = max(1, min(BLOCK, int(BLOCK_BYTES / max(1.0, 4 * patches * batch))))
    why = (
        f"a step of one client is {work / 1e9:.2g} GFLOP, too few for a GPU" if faster else "wanted"
    )
    return TrainingPath(None, why, block=block, networks=True)


def not_plain(local: LocalTraining, objective: Objective, cohort: int) -> str:
    """What else than the model stands against stacking, in words."""
    if not isinstance(local.optimiser, Sgd):
        name = getattr(local.optimiser, "name", type(local.optimiser).__name__)
        return f"the optimiser is {name}, not the fused SGD, which is faster"
    if not objective.plain_sgd:
        return f"local training is more than SGD on cross entropy ({objective.name})"
    if local.augment:
        return "images are augmented"
    return f"a cohort has fewer than {FEWEST} clients" if cohort < FEWEST else ""
