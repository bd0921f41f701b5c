"""Settings of what a client index improves. Those of the index itself are IndexConfig's, here as
`index_<name>`."""

from dataclasses import dataclass

from c2v_sim.algorithms.local_regulariser import DIRECTIONS
from c2v_sim.index import config as index_config
from c2v_sim.index.config import IMPROVEMENTS, field_in_run
from c2v_sim.index.matching import MATCHING
from c2v_sim.index.naive import WITHOUT_FEATURE
from c2v_sim.ops.projection_orthogonality import FORMS
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import POSITIVE, REPORT, Affects, Section

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects
# local-model-weights changes while the run trains and serves `improve = local` alone.
INDICES = (*index_config.KINDS, "local-model-weights")
INDEX_PARTS = ("both", "feature", "label")
STEERING_DTYPES = ("float32", "bfloat16")
WEIGHT_RULES = ("one", "caption", "appendix")
OF_BOTH = -1.0  # the weight of one local term, where it is that of both

of_improvement = Section("improvements by a client index", RESULT)
of_sampling, of_aggregation, of_local, of_clustering, of_personalization = (
    of_improvement.needing(improve=name) for name in IMPROVEMENTS
)
of_steering = of_improvement.needing(improve=("sampling", "aggregation"))
of_similarity = of_improvement.needing(improve=[n for n in IMPROVEMENTS if n != "local"])
# Algorithms by whose models clients are tested, and why some of them have no clusters.
FROM_ONE = "trains a second model of each client from the one global model"
NOT_CLUSTERED = {
    "ditto": FROM_ONE,
    "pfedme": FROM_ONE,
    "fine-tuning": FROM_ONE,
    "fedproto": "has no global model, and clusters would have one each",
}
OWN_MODELS = ("fedrep", *NOT_CLUSTERED)
CLUSTERED = ("ifca", "cfl")  # algorithms that have several global models by themselves
# Samplers that compare clients by the one global model that all begin from.
BY_ONE_MODEL = ("power-of-choice", "clustered-similarity", "divfl")
of_index = Section(index_config.of_index.title, RESULT | INDEX).needing(improve=IMPROVEMENTS)


@dataclass(frozen=True)
@index_config.with_index_settings
class ImprovementSettings:
    """What the index is for, which one it is, and how strongly it steers."""

    improve: tuple[str, ...] = of_improvement(
        (), "what the client index improves, or none", MEMORY, IMPROVEMENTS, common=True
    )
    index: str = field_in_run(
        "index", PACE | MEMORY, help="client index that they use", choices=INDICES, common=True
    )
    # What was in the file is in the manifest, where the report finds it.
    index_file: str = of_index("", "a saved index, instead of building one", told=REPORT)
    index_strategy: str = field_in_run("strategy")  # the rest of IndexConfig follows by itself
    index_part: str = of_index("both", "part of the index that is used", choices=INDEX_PARTS)
    index_shuffled: bool = of_similarity(
        False, "a control: the index's vectors change their owners"
    )
    steering_dtype: str = of_steering(
        "float32", "how the index is read that steers", PACE | MEMORY, STEERING_DTYPES
    )
    tau: float = of_sampling(0.0, "temperature; 0: 1 (global) or 0.1 (federated)", least=0.0)
    gamma: float = of_aggregation(0.5, "discount of past similarity", least=0.0, most=1.0)
    lambda1: float = of_aggregation(
        1.0, "pull of the weights to the sizes; inf: the sizes", above=0.0
    )
    local_weight: float = of_local(0.0, "w_r of the local loss; 0: by local_weight_rule", least=0.0)
    local_weight_rule: str = of_local(
        "one", "1; or as the paper's caption: 5 (global), 1; or its appendix", choices=WEIGHT_RULES
    )
    local_orth: str = of_local("unit", "form of L_orth", choices=FORMS, before="cosine")
    local_orth_weight: float = of_local(OF_BOTH, "weight of L_orth; -1: w_r", least=OF_BOTH)
    local_dist_weight: float = of_local(OF_BOTH, "weight of L_dist; -1: w_r", least=OF_BOTH)
    dist_direction: str = of_local("forward", "of the KL in L_dist", choices=DIRECTIONS)
    omit_local_orth: bool = of_local(False, "leave L_orth out of the local loss")
    dist_detach: bool = of_local(False, "no gradient from L_dist into the model's own logits")

    clusters: int = of_clustering(
        0, "models, one for each cluster of clients; 0: by the silhouette", MEMORY, least=0
    )

    personal_temperature: float = of_personalization(
        0.1, "tau of the mixture; small: a client is given what it has learned itself", **POSITIVE
    )

    def check_models(self, algorithm: str, sampling: str, held_out: float) -> None:
        """Refuse what does not go with several global models, or with personal ones."""
        if "personalization" in self.improve and algorithm in OWN_MODELS:
            raise ConfigError(
                f"improve = personalization: clients have models of their own by algorithm = "
                f"{algorithm} already"
            )
        if "clustering" in self.improve and algorithm in NOT_CLUSTERED:
            raise ConfigError(
                f"improve = clustering: algorithm = {algorithm} {NOT_CLUSTERED[algorithm]}"
            )
        matched = {"clustering", "personalization"} & set(self.improve)
        if held_out and matched and self.index not in MATCHING:
            raise ConfigError(
                f"hold_out_clients: a new client cannot be matched by index = {self.index}; use "
                f"one of {', '.join(MATCHING)}"
            )
        if "clustering" in self.improve and algorithm in CLUSTERED:
            raise ConfigError(
                f"improve = clustering: algorithm = {algorithm} forms its clusters by itself"
            )
        if "clustering" in self.improve and sampling != "uniform":
            raise ConfigError(
                f"sampling = {sampling} does not go with improve = clustering: cohorts are drawn "
                "evenly from the clusters, or by improve = sampling"
            )
        if algorithm in CLUSTERED and sampling in BY_ONE_MODEL:
            raise ConfigError(
                f"sampling = {sampling} compares clients by one global model, and algorithm = "
                f"{algorithm} has several"
            )

    def check_index(self, sampling: str) -> None:
        """Refuse an index that cannot serve what it is to improve."""
        if "sampling" in self.improve and sampling != "uniform":
            raise ConfigError(
                f"sampling = {sampling} has no effect with improve = sampling: the index "
                "decides who takes part"
            )
        steered = [name for name in self.improve if name != "local"]
        if self.index == "local-model-weights" and steered:
            raise ConfigError(
                f"improve = {', '.join(steered)} needs an index from before training; "
                "local-model-weights serves improve = local alone"
            )
        if self.index == "local-model-weights" and self.index_file:
            raise ConfigError("index = local-model-weights takes no index_file")
        if "local" in self.improve and self.index in WITHOUT_FEATURE:
            raise ConfigError(f"improve = local: index = {self.index} has no feature part for it")
        if self.index_part == "label" and ("local" in self.improve or self.index != "dsa-ign"):
            raise ConfigError(
                "index_part = label goes with index = dsa-ign and without improve = local, which "
                "needs the feature part"
            )
