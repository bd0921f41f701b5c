"""The configuration of a run: one frozen dataclass that reproduces it.

Values come from a preset, then a TOML file, then flags; each later one wins. Every field of
RunConfig is a key of the TOML file and a flag of the same name (`local_epochs` is
`--local-epochs`). Defaults are the specification's; the presets change them. The fields are in
the other files of this room, by subject.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from c2v_sim.config.algorithms import AlgorithmSettings
from c2v_sim.config.data import DataSettings
from c2v_sim.config.improvements import ImprovementSettings
from c2v_sim.config.machine import MachineSettings
from c2v_sim.config.training import TrainingSettings
from c2v_sim.data.load import DATASETS
from c2v_sim.data.weights import check_weights
from c2v_sim.index import config as index_config
from c2v_sim.index.config import IndexConfig
from c2v_sim.system import settings
from c2v_sim.system.errors import ConfigError, naming
from c2v_sim.system.parse import read_toml
from c2v_sim.training.sampling import cohort_size

COHORT = "cohort = {} and participation = {} both say how many clients train; leave one of them out"


@dataclass(frozen=True)
class RunConfig(  # a dataclass has the fields of its last base first
    MachineSettings, ImprovementSettings, AlgorithmSettings, TrainingSettings, DataSettings
):
    """One federated run."""

    def __post_init__(self) -> None:
        settings.check_all(self)
        if self.clients == 0 and self.partition != "natural":
            raise ConfigError(
                f"clients must be at least 1 with partition = {self.partition}, got 0"
            )
        if (self.train_size or self.test_size) and self.dataset != "shapes":
            raise ConfigError(f"train_size and test_size are for shapes, not {self.dataset}")
        if self.cohort and self.participation != RunConfig.participation:
            raise ConfigError(COHORT.format(self.cohort, self.participation))
        check_weights(self.pretrained, self.model, self.norm)
        self.check_index(self.sampling)
        self.check_clusters(self.algorithm, self.sampling, self.hold_out_clients)

    def cohort_of(self, clients: int) -> int:
        """Of `clients` as many as train in a round."""
        if self.cohort > clients:
            raise ConfigError(f"cohort must be at most the {clients} clients, got {self.cohort}")
        return self.cohort or cohort_size(self.participation, clients)

    def clusters_of(self, clients: int) -> int:
        """Into how many clusters `clients` are divided; 0: as the silhouette says."""
        if self.clusters > clients:
            raise ConfigError(
                f"clusters must be at most the {clients} clients, got {self.clusters}"
            )
        return self.clusters

    def evaluates(self, t: int) -> bool:
        """Whether the accuracy is taken after round `t`."""
        return self.eval_every > 0 and (t % self.eval_every == 0 or t == self.rounds)

    @property
    def needs_client_index(self) -> bool:
        """Whether an index must be there before the first round."""
        return bool(self.improve) and self.index != "local-model-weights"

    @property
    def temperature(self) -> float:
        """tau of similarity-steered sampling."""
        return self.tau or (0.1 if self.index_strategy == "federated" else 1.0)

    @property
    def regulariser_weight(self) -> float:
        """w_r of the local loss."""
        if self.local_weight:
            return self.local_weight
        if self.local_weight_rule == "appendix":
            own = {"moon": self.moon_mu, "feddyn": self.feddyn_alpha}
            own["fediir"] = self.fediir_penalty
            return own.get(self.algorithm, 1.0)
        in_caption = self.local_weight_rule == "caption" and self.index_strategy == "global"
        return 5.0 if in_caption else 1.0

    @property
    def local_weights(self) -> tuple[float, float]:
        """Of L_orth and of L_dist."""
        given = (self.local_orth_weight, self.local_dist_weight)
        orth, dist = (self.regulariser_weight if w < 0.0 else w for w in given)
        return (0.0 if self.omit_local_orth else orth), dist


FIELDS = settings.facts_of(RunConfig)
# What a saved run does not say, because the setting did not exist yet.
OF_OLDER_RUNS = {name: s.before for name, s in FIELDS.items() if s.before is not None}


def index_settings(config: RunConfig) -> IndexConfig:
    """The index that a run needs."""
    names = {name: index_config.name_in_run(name) for name in settings.facts_of(IndexConfig)}
    return IndexConfig(**{name: getattr(config, in_run) for name, in_run in names.items()})


def make_config(
    given: Mapping[str, object],
    base: RunConfig | None = None,
    flags: Collection[str] = (),
    shared: Collection[str] = (),
) -> RunConfig:
    """`base` with the user's settings on top; unknown, wrong or contradictory ones are refused.

    `flags` are the settings typed by hand: one without effect is refused even at its default
    value, while a file that lists every field may hold such defaults. `shared` are those that
    other runs need as well: one without effect here goes back to its default, as do the preset's
    own, or the saved configuration would be refused later.
    """
    base = base or RunConfig()
    config = settings.overlay(base, _as_the_data_comes(given, base))
    if "clients" in flags and config.clients_per_domain:
        raise ConfigError(
            f"clients = {config.clients} has no effect with clients_per_domain = "
            f"{config.clients_per_domain}: leave one of them out"
        )
    if config.cohort and "participation" in flags:
        raise ConfigError(COHORT.format(config.cohort, config.participation))
    return settings.without_idle(config, given, flags, shared)


def _as_the_data_comes(given: Mapping[str, object], base: RunConfig) -> Mapping[str, object]:
    """Data with its own clients is dealt to them, as many as there are, and text is read by a
    model for text, unless told otherwise."""
    dataset = given.get("dataset", base.dataset)
    source = DATASETS.get(str(dataset))  # an unknown one is refused later, by name
    if source is not None and dataset != base.dataset:
        own = {"partition": "natural" if source.own_clients else None, "model": source.model}
        given = {**{name: value for name, value in own.items() if value}, **given}
    if given.get("partition", base.partition) == "natural" != base.partition:
        given = {"clients": 0, **given}
    return given


def saved_config(path: Path) -> RunConfig:
    """The configuration of a run; what had no effect, and was once accepted, is the default."""
    with naming(path):
        return make_config(OF_OLDER_RUNS | read_toml(path), shared=FIELDS)
