"""Case study iii: features that do not give away which client they came from.

    z_P = z P,   P [d, D] without bias, and a second classifier g_P: Linear(D, K)
    L_orth = 1/(B M) sum_{j,i} |cos(z_P,j, beta_i^f)|                beta of all M clients, constant
    L_dist = mean_j KL( softmax(g(z_j)) || softmax(g_P(z_P,j)) )
    added to the loss: w_r [ L_orth + L_dist ]

P and g_P are parameters of the model like any other; predictions are made from z.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from c2v_sim import ops


@dataclass(frozen=True, eq=False)
class LocalRegulariser:
    """w_r [ L_orth + L_dist ]."""

    weight: float  # w_r
    index: Tensor  # beta^f, [M, D]; [0, D] before there is an index
    orthogonality: bool = True  # False: the ablation that keeps only L_dist
    detach: bool = False  # True: L_dist trains only P and g_P

    def __call__(self, module: nn.Module, z: Tensor, logits: Tensor) -> Tensor:
        z_p = module.c2v_projection(z)  # type: ignore[operator]
        logits_p = module.c2v_projection_classifier(z_p)  # type: ignore[operator]
        loss = ops.distillation_loss(logits.detach() if self.detach else logits, logits_p)
        if self.orthogonality and len(self.index):
            loss = loss + ops.projection_orthogonality(z_p, self.index)
        return self.weight * loss


def add_projection(model: nn.Module, width: int, index_width: int, classes: int) -> None:
    """Give `model`, whose z has `width` columns, P and g_P."""
    model.add_module("c2v_projection", nn.Linear(width, index_width, bias=False))
    model.add_module("c2v_projection_classifier", nn.Linear(index_width, classes))
