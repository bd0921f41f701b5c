"""Settings of the data and of the clients that it is dealt to."""

from dataclasses import dataclass

from c2v_sim.data.dirichlet import LDA
from c2v_sim.data.load import DATASETS
from c2v_sim.data.partition import PARTITIONERS
from c2v_sim.system.settings import PAPER, POSITIVE, Affects, Section

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects

of_data = Section("data", DATA)
of_text = of_data.needing(dataset=[name for name, source in DATASETS.items() if source.text])
of_clients = Section("clients", RESULT | CLIENTS)
of_dirichlet = of_clients.needing(partition="dirichlet")
of_shards, of_domains = (of_clients.needing(partition=name) for name in ("shards", "by-domain"))


@dataclass(frozen=True)
class DataSettings:
    """Which samples there are, and whose they are."""

    dataset: str = of_data("shapes", "data set", RESULT | PACE, DATASETS, common=True, told=PAPER)
    data_dir: str = of_data("", "folder of data files; empty: the user's cache folder", PLACE)
    require_real_data: bool = of_data(False, "refuse a stand-in for data that is not there", PLACE)
    train_size: int = of_data(
        0, "training images of `shapes` (0: 50,000)", RESULT | PACE, least=0, told=PAPER
    )
    test_size: int = of_data(
        0, "test images of `shapes` (0: 10,000)", RESULT | WORK, least=0, told=PAPER
    )
    sample_fraction: float = of_text(
        0.1, "share of the samples that is used", RESULT | PACE, above=0.0, most=1.0
    )
    min_samples: int = of_text(40, "fewest samples of a client", RESULT | WORK, least=0)
    train_fraction: float = of_text(
        0.8, "share of a client's samples that trains", RESULT | WORK, above=0.0, below=1.0
    )

    clients: int = of_clients(
        100, "how many; 0: those of the data", PACE | MEMORY, least=0, common=True, told=PAPER
    )
    partition: str = of_clients(
        "dirichlet", "how samples are dealt to clients", PACE, PARTITIONERS, common=True
    )
    alpha: float = of_dirichlet(0.1, "Dirichlet; small: few classes", common=True, **POSITIVE)
    lda: str = of_dirichlet("per_client", "Dirichlet convention", choices=LDA)
    shards_per_client: int = of_shards(2, "label shards per client", least=1)
    clients_per_domain: int = of_domains(0, "0: from clients", PACE | MEMORY, least=0, told=PAPER)
    hold_out_clients: float = of_clients(
        0.0, "share of the clients that never train, and are tested apart", least=0.0, below=1.0
    )
