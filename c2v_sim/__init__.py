"""c2v_sim: federated learning, simulated fast and exactly.

The way of the data, and the file for each stage:

  1  data/load.py              images and labels, with their source and hash
  2  data/partition.py         labels → sample ids of each client
  3  index/encoders/embed.py   samples and labels → unit vectors, cached
  4  index/dsa_ign.py          the network that makes indices; index/training.py trains it
  5  index/build.py            one vector per client, with its provenance and quality
  6  training/sampling.py      who trains this round, or one of training/samplers;
                               simulator/steering.py where an index decides
  7a training/arena.py         client models as rows of one buffer
  7b training/local_client.py  one client while it trains
  7c training/cohort.py        trains a cohort, on the lanes of training/lanes.py
  8  training/aggregation.py   the cohort's rows → the next global model; algorithms/ build on it
  9  simulator/evaluation.py   accuracy on every client
  10 run/files.py              what a result needs to be believed and repeated; report/ shows it

simulator/ is the loop over 6 to 9, run/ its command; `python -m c2v_sim.index` is the command for
stages 3 to 5, which give every client a vector before training. ops/ holds the fused operators.
"""

from c2v_sim.system import starting as starting  # before the slow imports
from c2v_sim.system import waiting as waiting  # it decides how torch is loaded

# isort: split
from c2v_sim.algorithms import Algorithm
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.data.load import Dataset, load_dataset
from c2v_sim.data.partition import Partition, make_partition
from c2v_sim.index.build import build_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.sent import index_from_embeddings
from c2v_sim.run.presets import preset
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.training.samplers import Sampler

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
    "Sampler",
    "Simulator",
    "build_index",
    "index_from_embeddings",
    "load_dataset",
    "make_partition",
    "preset",
]
