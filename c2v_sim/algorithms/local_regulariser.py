"""Case study iii: features that do not give away which client they came from.

    z_P = z P,   P [d, D] without bias, and a second classifier g_P: Linear(D, K)
    L_orth = 1/(B M) sum_{j,i} |<z_P,j, beta_i^f / |beta_i^f|>|      beta of all M clients, constant
    L_dist = mean_j KL( softmax(g(z_j)) || softmax(g_P(z_P,j)) )
    added to the loss: w_orth L_orth + w_dist L_dist

P and g_P are parameters of the model like any other; predictions are made from z. L_orth has other
forms (ops.projection_orthogonality), and L_dist the other direction of the divergence.
"""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim import ops

DIRECTIONS = ("forward", "reverse")  # KL(p_z || p_zP), KL(p_zP || p_z)


class WithProjection(Protocol):
    """A model after add_projection."""

    c2v_projection: nn.Linear
    c2v_projection_classifier: nn.Linear


class LocalRegulariser:
    """w_orth L_orth + w_dist L_dist; `index` [M, D] may be replaced between rounds."""

    def __init__(
        self,
        index: Tensor,
        *,
        weight: float = 1.0,
        orth_weight: float | None = None,
        dist_weight: float | None = None,
        form: str = "unit",
        direction: str = "forward",
        detach: bool = False,
    ) -> None:
        """`weight` is that of both terms, unless a term has its own; a weight of 0 omits it.

        With `detach` L_dist trains only P and g_P.
        """
        if direction not in DIRECTIONS:
            raise ValueError(f"unknown direction {direction!r}; known: {', '.join(DIRECTIONS)}")
        self.orth_weight = weight if orth_weight is None else orth_weight
        self.dist_weight = weight if dist_weight is None else dist_weight
        self.form, self.direction, self.detach = form, direction, detach
        self.index = index

    @property
    def index(self) -> Tensor:
        return self._index

    @index.setter
    def index(self, index: Tensor) -> None:
        """Normalised here, as far as the form asks for it, and not in every step."""
        self._index, self._rows = index, ops.prepared_index(index, self.form)

    def __call__(self, module: WithProjection, z: Tensor, logits: Tensor) -> Tensor:
        z_p = module.c2v_projection(z)
        loss = z_p.new_zeros(())
        if self.dist_weight:
            logits_p = module.c2v_projection_classifier(z_p)
            loss = loss + self.dist_weight * self._distillation(logits, logits_p)
        if self.orth_weight and len(self._rows):
            orth = ops.projection_orthogonality(z_p, self._rows, self.form, prepared=True)
            loss = loss + self.orth_weight * orth
        return loss

    def _distillation(self, logits: Tensor, logits_p: Tensor) -> Tensor:
        logits = logits.detach() if self.detach else logits
        pair = (logits, logits_p) if self.direction == "forward" else (logits_p, logits)
        return divergence(*pair)


def divergence(logits: Tensor, others: Tensor) -> Tensor:  # 2 × [B, K] -> scalar
    """The mean over rows of KL( softmax(logits) || softmax(others) ); gradients go to both."""
    log_p, log_q = logits.log_softmax(1), others.log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def add_projection(model: nn.Module, width: int, index_width: int, classes: int) -> None:
    """Give `model`, whose z has `width` columns, P and g_P."""
    model.add_module("c2v_projection", nn.Linear(width, index_width, bias=False))
    model.add_module("c2v_projection_classifier", nn.Linear(index_width, classes))
