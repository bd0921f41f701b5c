"""The operators: each has a torch reference and fused backends, found under one name everywhere.

`git ls-files '*weighted_sum*'` lists an operator's interface and reference (c2v_sim/ops), its
Triton kernel (kernels), C++ and CUDA sources (csrc), tests and benchmark.
"""

from c2v_sim.ops.aggregation_weights import aggregation_weights
from c2v_sim.ops.client_scores import client_scores
from c2v_sim.ops.dropout_mask import dropout_mask
from c2v_sim.ops.fused_ffn import fused_ffn
from c2v_sim.ops.index_losses import (
    diversity_loss,
    index_losses,
    orthogonality_loss,
    similarity_loss,
)
from c2v_sim.ops.layers.convolution import convolution
from c2v_sim.ops.layers.depthwise_convolution import depthwise_convolution
from c2v_sim.ops.layers.max_pool import max_pool
from c2v_sim.ops.layers.normalize import normalize
from c2v_sim.ops.layers.pooled_convolution import pooled_convolution
from c2v_sim.ops.projection_orthogonality import (
    PreparedIndex,
    prepared_index,
    projection_orthogonality,
)
from c2v_sim.ops.sampling import sample_cohort
from c2v_sim.ops.sgd_step import sgd_options, sgd_step_
from c2v_sim.ops.short_attention import short_attention
from c2v_sim.ops.weighted_sum import weighted_sum

__all__ = [
    "PreparedIndex",
    "aggregation_weights",
    "client_scores",
    "convolution",
    "depthwise_convolution",
    "diversity_loss",
    "dropout_mask",
    "fused_ffn",
    "index_losses",
    "max_pool",
    "normalize",
    "orthogonality_loss",
    "pooled_convolution",
    "prepared_index",
    "projection_orthogonality",
    "sample_cohort",
    "sgd_options",
    "sgd_step_",
    "short_attention",
    "similarity_loss",
    "weighted_sum",
]
