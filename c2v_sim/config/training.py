"""Settings of the model and of its training."""

from dataclasses import dataclass

from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.data.load import DATASETS
from c2v_sim.data.weights import KNOWN
from c2v_sim.models import MODELS, NORMED_MODELS, NORMS
from c2v_sim.system.settings import PAPER, POSITIVE, Affects, Section
from c2v_sim.training.samplers import SAMPLERS

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects
AUGMENTATIONS = ("none", "crop-flip")

of_model = Section("model", RESULT)
of_norm = of_model.needing(model=NORMED_MODELS)
of_training = Section("training", RESULT)
of_power_of_choice = of_training.needing(sampling="power-of-choice")
of_last_updates = of_training.needing(sampling=("clustered-similarity", "divfl"))
of_images = of_training.needing(dataset=[name for name in DATASETS if not DATASETS[name].text])


@dataclass(frozen=True)
class TrainingSettings:
    """What is trained, and how."""

    model: str = of_model("cnn", "model", PACE | MEMORY, MODELS, common=True, told=PAPER)
    norm: str = of_norm(
        "batch", "normalisation of the residual networks and mobilenetv2", PACE | MEMORY, NORMS
    )
    pretrained: str = of_model(
        "",
        f"weights that the model starts from: a state-dict file, or {' or '.join(KNOWN)}",
        told=PAPER,
    )
    algorithm: str = of_training(
        "fedavg", "federated algorithm", PACE | MEMORY, ALGORITHMS, common=True
    )
    rounds: int = of_training(100, "communication rounds", MEMORY | LENGTH, least=1, common=True)
    participation: float = of_training(
        0.1, "share of the clients in a round", PACE | MEMORY, above=0.0, most=1.0, common=True
    )
    cohort: int = of_training(
        0, "clients in a round, as a number; 0: by participation", PACE | MEMORY, least=0
    )
    local_epochs: int = of_training(5, "epochs per client and round", WORK, least=1, common=True)
    batch_size: int = of_training(128, "samples per step", PACE | MEMORY, least=1, common=True)
    lr: float = of_training(0.01, "learning rate of local SGD", common=True, **POSITIVE)
    momentum: float = of_training(0.0, "momentum of local SGD", least=0.0, below=1.0)
    weight_decay: float = of_training(5e-5, "weight decay of local SGD", least=0.0)
    shuffle: bool = of_training(True, "a client's samples in a new order in every epoch")
    augment: str = of_images(
        "none", "training-image augmentation, on the device", PACE, AUGMENTATIONS
    )
    sampling: str = of_training(
        "uniform", "who takes part, where no index decides", WORK | MEMORY, SAMPLERS
    )
    power_of_choice_candidates: int = of_power_of_choice(
        0, "clients whose loss is asked for; 0: twice the cohort", WORK, least=0
    )
    update_sketch: int = of_last_updates(
        0, "numbers kept of a client's last update; 0: the whole", MEMORY, least=0
    )
    eval_every: int = of_training(
        1, "rounds between evaluations, of which the last is one; 0: none", WORK, least=0
    )
