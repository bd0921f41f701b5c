"""Case study iii: features that do not give away which client they came from.

    z_P = z P,   P [d, D] without bias, and a second classifier g_P: Linear(D, K)
    L_orth = 1/(B M) sum_{j,i} |<z_P,j, beta_i^f / |beta_i^f|>|      beta of all M clients, constant
    L_dist = mean_j KL( softmax(g(z_j)) || softmax(g_P(z_P,j)) )
    added to the loss: w_orth L_orth + w_dist L_dist

P and g_P are parameters of the model like any other; predictions are made from z. L_orth has other
forms (ops.projection_orthogonality), and L_dist the other direction of the divergence.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim import ops

DIRECTIONS = ("forward", "reverse")  # KL(p_z || p_zP), KL(p_zP || p_z)


@dataclass(frozen=True, eq=False)
class LocalRegulariser:
    """w_orth L_orth + w_dist L_dist; a weight of 0 leaves its term out."""

    index: Tensor  # beta^f, [M, D]; [0, D] before there is an index
    orth_weight: float = 1.0
    dist_weight: float = 1.0
    form: str = "unit"  # of L_orth: one of ops.FORMS
    direction: str = "forward"  # of L_dist: one of DIRECTIONS
    detach: bool = False  # True: L_dist trains only P and g_P
    prepared: ops.PreparedIndex = field(init=False, repr=False)  # once, as the form asks

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            known = ", ".join(DIRECTIONS)
            raise ValueError(f"unknown direction {self.direction!r}; known: {known}")
        object.__setattr__(self, "prepared", ops.prepared_index(self.index, self.form))

    def __call__(
        self, module: nn.Module, z: Tensor, logits: Tensor, real: Tensor | None = None
    ) -> Tensor:
        """`real` [B]: which rows are samples and no padding; all, if it is not given."""
        z_p = only(real, module.c2v_projection(z))  # type: ignore[operator]
        loss = z_p.new_zeros(())
        if self.dist_weight:
            logits_p = module.c2v_projection_classifier(z_p)  # type: ignore[operator]
            pair = only(real, logits), only(real, logits_p)
            loss = loss + self.dist_weight * self._distillation(*pair)
        if self.orth_weight and len(self.index):
            orth = ops.projection_orthogonality(z_p, self.prepared, self.form)
            loss = loss + self.orth_weight * orth
        return loss if real is None else loss * (len(z) / real.sum())  # means were of all rows

    def _distillation(self, logits: Tensor, logits_p: Tensor) -> Tensor:
        logits = logits.detach() if self.detach else logits
        pair = (logits, logits_p) if self.direction == "forward" else (logits_p, logits)
        return divergence(*pair)


def only(real: Tensor | None, rows: Tensor) -> Tensor:  # [B], [B, n]
    """Zeros, for which both terms are 0, in place of the rows that are not `real`."""
    return rows if real is None else torch.where(real[:, None], rows, 0.0)


def divergence(logits: Tensor, others: Tensor) -> Tensor:  # 2 × [B, K] -> scalar
    """The mean over rows of KL( softmax(logits) || softmax(others) ); gradients go to both."""
    log_p, log_q = logits.log_softmax(1), others.log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def add_projection(model: nn.Module, width: int, index_width: int, classes: int) -> None:
    """Give `model`, whose z has `width` columns, P and g_P."""
    model.add_module("c2v_projection", nn.Linear(width, index_width, bias=False))
    model.add_module("c2v_projection_classifier", nn.Linear(index_width, classes))
