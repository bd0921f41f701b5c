"""The index of local model weights: v_i = client i's classifier after its latest participation.

It exists only while a run trains, and serves case study iii alone: the regulariser's index is the
stack of all participants so far, in the order of their ids, and empty in the first round.
"""

import torch
from torch import Tensor, nn

from c2v_sim.algorithms.fediir import classifier_parameters
from c2v_sim.training.arena import Layout
from c2v_sim.training.client_rows import ClientRows


def classifier_width(model: nn.Module) -> int:
    """Parameters of the classifier: the width of this index."""
    return sum(p.numel() for p in classifier_parameters(model))


class ClassifierIndex:
    """Keeps the clients' classifiers in `rows`."""

    def __init__(self, model: nn.Module, layout: Layout, rows: ClientRows) -> None:
        own = {id(p) for p in classifier_parameters(model)}
        names = {name for name, p in model.named_parameters() if id(p) in own}
        self._slots = [slot for slot in layout.parameters if slot.name in names]
        self._rows = rows

    def keep(self, client: int, row: Tensor) -> None:
        """`client` ended at the arena row `row`."""
        self._rows.write(client, torch.cat([slot.view(row).flatten() for slot in self._slots]))

    def stacked(self) -> Tensor:  # [participants, width]
        """The classifiers that are kept now, in the order of the clients' ids."""
        rows = self._rows
        index = torch.empty(len(rows), rows.width, device=rows.device)
        present = (i for i in range(rows.clients) if i in rows)
        for row, client in zip(index, present, strict=True):
            rows.read(client, row)
        return index
