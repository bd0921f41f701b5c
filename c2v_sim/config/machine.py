"""Settings of the seed and of the machine."""

from dataclasses import dataclass

from c2v_sim.index.config import of_machine
from c2v_sim.models.faster.layers import CONVOLUTIONS
from c2v_sim.system import settings
from c2v_sim.system.machine import DEVICES
from c2v_sim.system.settings import PAPER, Affects
from c2v_sim.training.local_training import STACKING

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects
STATE_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class MachineSettings:
    """Where and how safely the work is done."""

    state_dtype: str = of_machine(
        "float32", "how clients' state is stored", RESULT | PACE | MEMORY, STATE_DTYPES
    )
    state_memory: float = of_machine(
        0.0, "GB for clients' state; 0: half of what is free", PLACE | MEMORY, least=0.0, most=1e9
    )
    seed: int = of_machine(0, "of all that is drawn", BITS | CLIENTS, common=True, **settings.SEEDS)
    lanes: int = of_machine(
        0,
        "clients at once; 0 or auto: as fits",
        PLACE | WORK | MEMORY,
        least=0,
        auto=True,
        common=True,
    )
    device: str = of_machine("auto", "where to train", BITS | PLACE | PACE, DEVICES)
    deterministic: bool = of_machine(
        True, "only operators that give the same bits every time", RESULT | PACE, told=PAPER
    )
    conv: str = of_machine(
        "auto",
        "convolutions with fewer products where they are faster, or torch's",
        BITS | PACE,
        CONVOLUTIONS,
        before="torch",
    )
    stacked: str = of_machine(
        "auto",
        "many clients in one computation: where that is faster, always (or an error), never",
        BITS | PACE | MEMORY,
        STACKING,
    )
    checkpoint_every: int = of_machine(5, "rounds between checkpoints", PLACE, least=1)
