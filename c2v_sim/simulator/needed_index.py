"""The client index of a run to which none was given: read from a file, or built."""

import threading

from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import obtain_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.encoders.prompts import embeddable


def needed_index(federation: Federation, config: RunConfig, stop: threading.Event) -> ClientIndex:
    """What the improvements of `config` use; refused where no encoder can see the samples."""
    if not config.index_file and not embeddable(federation.dataset):
        raise ValueError(
            f"improve = {', '.join(config.improve)} needs a client index, and encoders see "
            f"images and texts only, not features {list(federation.dataset.x_train.shape)}; give "
            "one with Simulator(…, index=build_index(federation, embeddings=(samples [N, 512], "
            "classes [K, 512])))"
        )
    return obtain_index(
        federation,
        index_settings(config),
        file=config.index_file,
        data_dir=config.data_dir,
        stop=stop,
    )
