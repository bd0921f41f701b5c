"""distillation_loss, forward and backward, against torch's log_softmax and kl_div."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import distillation_loss


@pytest.mark.parametrize("classes", [10, 50, 1000])
def test_distillation_loss(compare, classes):
    g = torch.Generator().manual_seed(0)
    logits, logits_p = (torch.randn(128, classes, generator=g).requires_grad_() for _ in range(2))

    def eager():
        log_p, log_q = F.log_softmax(logits, 1), F.log_softmax(logits_p, 1)
        return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)

    compare(
        lambda: torch.autograd.grad(distillation_loss(logits, logits_p), (logits, logits_p)),
        {"eager": lambda: torch.autograd.grad(eager(), (logits, logits_p))},
        bytes=4 * 128 * classes * 4,
        rounds=100,
    )
