"""c2v_sim: federated learning, simulated fast and exactly.

The way of the data, a file a stage:

  1  datasets.py     images and labels, with their source and hash
  2  partition.py    labels → sample ids of each client
  3  embeddings.py   samples and labels → unit vectors, cached
  4  dsa_ign.py      the network that makes indices; index_training.py trains it
  5  client_index.py one vector a client, with its provenance and quality
  6  sampling.py     who trains this round; steering.py where a client index decides
  7a arena.py        client models as rows of one buffer
  7b local_client.py one client while it trains
  7c cohort.py       trains a cohort, on the lanes of lanes.py
  8  aggregation.py  the cohort's rows → the next global model; algorithms/ build on it
  9  evaluation.py   accuracy on every client
  10 run_directory.py what a result needs to be believed and repeated; report.py shows it

simulator.py is the loop over 6 to 9, run.py its command; index.py is the command for stages 3 to 5,
which give every client a vector before training. ops/ holds the fused operators.
"""

from c2v_sim.algorithms import Algorithm
from c2v_sim.client_index import ClientIndex, build_index
from c2v_sim.config import RunConfig, preset
from c2v_sim.datasets import Dataset, load_dataset
from c2v_sim.federation import Federation
from c2v_sim.index_config import IndexConfig
from c2v_sim.partition import Partition, make_partition
from c2v_sim.records import Result, RoundRecord
from c2v_sim.simulator import Simulator

__all__ = [
    "Algorithm",
    "ClientIndex",
    "Dataset",
    "Federation",
    "IndexConfig",
    "Partition",
    "Result",
    "RoundRecord",
    "RunConfig",
    "Simulator",
    "build_index",
    "load_dataset",
    "make_partition",
    "preset",
]
