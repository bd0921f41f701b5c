// projection_orthogonality: 1/(B·M) sum_{j,i} |<z_j, index_i>|, or |cos(z_j, index_i)|, and its
// gradient for z.
//
// The index streams by in chunks that are packed while they are in the cache, so memory does not
// grow with M. Of a cosine it has unit rows, and `lengths` [M] are those before that.
#include <optional>
#include <tuple>

#include "index/orthogonality.h"
#include "index/tiny_rows.h"

namespace c2v {

std::tuple<Tensor, Tensor> projection_orthogonality_cpu(const Tensor& z_p, const Tensor& index,
                                                        const std::optional<Tensor>& lengths,
                                                        bool with_grad) {
  constexpr int64_t kChunk = 12 * kTile;
  const int64_t rows = z_p.size(0), clients = index.size(0);
  Tensor loss = torch::stable::new_zeros(z_p, {}, ScalarType::Float);
  Tensor grad = torch::stable::new_zeros(z_p, {with_grad ? rows : 0, z_p.size(1)},
                                         ScalarType::Float);
  if (rows == 0 || clients == 0) return {loss, grad};
  const double pairs = static_cast<double>(rows) * clients;
  const float scale = static_cast<float>(1 / pairs);
  const bool cosine = lengths.has_value();
  const Tensor known = cosine ? float_rows(*lengths) : loss;
  const UnitRows z(z_p, kLeft, cosine);
  const FloatArray g = zeros(with_grad ? z.padded_rows * z.padded_dim : 0);
  FloatArray tiny;  // the gradient that does not go through the normalisation, if there is any
  double total = 0;
  for (int64_t first = 0; first < clients; first += kChunk) {
    Tensor all = index;
    const Tensor part = torch::stable::narrow(all, 0, first, std::min(kChunk, clients - first));
    const float* own = cosine ? known.const_data_ptr<float>() + first : nullptr;
    const UnitRows beta(part, kRight, cosine, own);
    if (cosine && has_tiny_pairs(z, beta)) {
      total += absolute_sum_of_tiny(z, beta);
      if (with_grad && !tiny) tiny = zeros(z.rows * z.dim);
      if (with_grad) absolute_gradient_of_tiny(z, beta, scale, tiny.get());
    } else {
      total += orthogonality(z, beta, with_grad ? g.get() : nullptr, nullptr);
    }
  }
  *loss.mutable_data_ptr<float>() = static_cast<float>(total / pairs);
  if (with_grad) {
    float* out = grad.mutable_data_ptr<float>();
    z.through_normalisation(g.get(), scale, out);
    for (int64_t i = 0; tiny && i < z.rows * z.dim; ++i) out[i] += tiny[i];
  }
  return {loss, grad};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("projection_orthogonality", TORCH_BOX(&c2v::projection_orthogonality_cpu));
}
