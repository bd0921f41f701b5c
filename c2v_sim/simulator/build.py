"""What a run trains with, made before its first round: data on the device, arenas and lanes."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from c2v_sim.algorithms import ALGORITHMS, Algorithm
from c2v_sim.config import RunConfig
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.models import logits
from c2v_sim.models.common import treats_samples_alone
from c2v_sim.simulator.model import Assembled, assemble
from c2v_sim.simulator.objective import Regularised
from c2v_sim.system.machine import (
    choose_device,
    give_back_memory,
    in_own_thread,
    nothing_kept,
)
from c2v_sim.training.aggregation import CohortSum, sums_suffice
from c2v_sim.training.arena import Arena, Layout, layout_of
from c2v_sim.training.at_once import steps_at_once
from c2v_sim.training.lanes import Lanes, lane_count
from c2v_sim.training.local_training import CohortTraining, LocalTraining
from c2v_sim.training.memory import check_fits, lane_bytes
from c2v_sim.training.optimisers import Optimiser, Sgd, of_torch
from c2v_sim.training.samplers import Sampler
from c2v_sim.training.stacked import choose_path

LEFT = 1 << 20  # bytes; once in a run even little is worth the call


def resident_data(dataset: Dataset, device: torch.device) -> tuple[ResidentData, ResidentData]:
    """Training and test samples on the device."""
    scale = (dataset.mean, dataset.std, device)
    train = ResidentData(dataset.x_train, dataset.y_train, *scale)
    return train, ResidentData(dataset.x_test, dataset.y_test, *scale)


def some_inputs(data: ResidentData, count: int) -> Tensor:  # [count, …]
    """The first sample `count` times, on the CPU, where models are built."""
    ids = torch.zeros(count, dtype=torch.int64, device=data.device)
    return data.batch(ids)[0].cpu()


def different_inputs(data: ResidentData, count: int = 8) -> Tensor:  # [count, …]
    """Samples from all over the data, on the CPU."""
    ids = torch.linspace(0, len(data) - 1, min(count, len(data))).long().to(data.device)
    return data.batch(ids)[0].cpu()


Own = Optimiser | Callable[..., torch.optim.Optimizer]  # a user's own optimiser


def optimiser_of(config: RunConfig, own: Own | None) -> Optimiser:
    """The fused SGD, or a user's own: a class of torch.optim, a function that makes one of a list
    of parameters, or what is an Optimiser already."""
    settings = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    if own is None:
        return Sgd(**settings)
    return own if hasattr(own, "start") else of_torch(own, **settings)


def local_training(config: RunConfig, optimiser: Own | None = None) -> LocalTraining:
    return LocalTraining(
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        optimiser=optimiser_of(config, optimiser),
        seed=config.seed,
        augment=config.augment == "crop-flip",
        shuffle=config.shuffle,
    )


@nothing_kept()
def build_training(
    config: RunConfig,
    federation: Federation,
    data: ResidentData,
    built: Assembled,
    cohort: int,
    sampler: Sampler,
    stop: threading.Event,
    optimiser: Own | None = None,
) -> CohortTraining:
    """Arenas and lanes for cohorts of `cohort` clients; refused where they do not fit in memory."""
    model, layout, device = built.model, layout_of(built.model), data.device
    x, local = some_inputs(data, 2), local_training(config, optimiser)

    def one_lane() -> int:
        return lane_bytes(model, lambda: logits(model, x), len(x), config.batch_size)

    lanes = lane_count(config.lanes, device, one_lane, cohort)
    path = choose_path(model, x, local, built.objective, cohort, config.stacked, device)
    check_memory(layout, device, cohort, lanes, stacked=path.networks)
    server = Arena(layout, 1, device)
    server.read(model, 0)
    if device.type == "cpu":  # one copy of the global model is enough
        parameters = dict(model.named_parameters())
        for slot in layout.parameters:
            parameters[slot.name].data = slot.view(server.data[0])
    averaged = only_averaged(built.objective) and not sampler.needs_rows
    summable = averaged and not path.stacked and algorithm_of(built.objective).sums_at_once
    lanes_made = Lanes(model, layout, lanes, device, stop)
    pads = lanes_made.pads and treats_samples_alone(model, different_inputs(data))
    summed = summable and sums_suffice(cohort, lanes, device)
    plain = built.objective.plain_sgd and isinstance(local.optimiser, Sgd) and not path.stacked
    at_once = plain and in_own_thread(
        lambda: steps_at_once(model, layout, device, lambda module: logits(module, x))
    )
    training = CohortTraining(
        server=server,
        cohort=CohortSum(layout, device) if summed else Arena(layout, cohort, device),
        lanes=lanes_made,
        data=data,
        samples=federation.partition.train,
        local=local,
        objective=built.objective,
        path=path,
        only_averaged=averaged,
        at_once=at_once,
        longest=min(config.batch_size, int(federation.partition.sizes.max())) if pads else 0,
    )
    give_back_memory(LEFT)  # where the model was before it came into its row
    return training


def algorithm_of(objective: Algorithm | Regularised) -> Algorithm:
    return objective.algorithm if isinstance(objective, Regularised) else objective


def only_averaged(objective: Algorithm | Regularised) -> bool:
    """Whether nobody looks at what each client ended with, beyond the average."""
    grows = isinstance(objective, Regularised) and objective.index_grows
    return not grows and not algorithm_of(objective).needs_rows


def check_memory(
    layout: Layout, device: torch.device, cohort: int, lanes: int, stacked: bool
) -> None:
    row = 4 * layout.size
    parts = {
        f"{cohort} models of the cohort": row * cohort,
        f"{lanes} lanes": 4 * row * lanes,  # row, gradients, momentum, activations at least
        "the global model": row,
    }
    if stacked:  # in blocks, of which there are at least two: a row, gradients and momentum
        parts["models that train together"] = 3 * row * (cohort + 1)
    check_fits(device, parts)


def trains_stacked(federation: Federation, config: RunConfig) -> bool:
    """Whether the run that `config` describes would train its cohorts stacked."""
    data, _ = resident_data(federation.dataset, torch.device("cpu"))
    algorithm = ALGORITHMS[config.algorithm](config)
    built = assemble(config, federation.dataset, algorithm, None, some_inputs(data, 1), None)
    cohort = config.cohort_of(federation.partition.clients)
    x, local = some_inputs(data, 2), local_training(config)
    device = choose_device(config.device)
    path = choose_path(built.model, x, local, built.objective, cohort, config.stacked, device)
    return path.stacked
