// index_losses: L_sim, L_orth, L_div of a batch and the gradient of each, O(B·D) memory.
//
// The losses' upstream gradients differ, so each gradient is returned alone, for unit upstream.
// Clients [k, B, D] with counts [k] go one after another, each with its first rows alone.
#include <optional>
#include <tuple>

#include "index/diversity.h"
#include "index/tiny_rows.h"

namespace c2v {
namespace {

enum Term : int64_t { kSim = 1, kOrth = 2, kDiv = 4 };  // as in c2v_sim/ops/index_losses.py

Tensor rows_like(const Tensor& x, bool wanted) {
  const int64_t rows = wanted ? x.size(-2) : 0, dim = x.size(-1);
  if (x.dim() == 2) return torch::stable::new_empty(x, {rows, dim}, ScalarType::Float);
  return torch::stable::new_zeros(x, {x.size(0), rows, dim}, ScalarType::Float);  // for padding
}

// The mean of 1 - cos(z_j, l_j); gradients unless null.
double similarity_loss(const Tensor& z, const Tensor& l, float* grad_z, float* grad_l) {
  const int64_t rows = z.size(0), dim = z.size(1), padded = round_up(dim, 16);
  const float *z_ptr = z.const_data_ptr<float>(), *l_ptr = l.const_data_ptr<float>();
  std::vector<float> loss(rows);
  torch::stable::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    const FloatArray a = zeros(padded), b = zeros(padded);
    for (int64_t j = begin; j < end; ++j) {
      std::copy(z_ptr + j * dim, z_ptr + (j + 1) * dim, a.get());
      std::copy(l_ptr + j * dim, l_ptr + (j + 1) * dim, b.get());
      const float aa = dot(a.get(), a.get(), padded), bb = dot(b.get(), b.get(), padded);
      const float norms = std::sqrt(aa) * std::sqrt(bb);
      const float below = std::isinf(norms) ? NAN : std::max(kSmallest, norms);
      const float cosine = dot(a.get(), b.get(), padded) / below;
      loss[j] = 1 - cosine;
      if (!grad_z) continue;
      const bool zero = aa == 0 || bb == 0, clamped = norms < kSmallest;
      const float scale = zero ? 0 : -1 / (static_cast<float>(rows) * below);
      const float along_a = clamped ? 0 : cosine * below / aa;
      const float along_b = clamped ? 0 : cosine * below / bb;
      for (int64_t k = 0; k < dim; ++k) {
        grad_z[j * dim + k] = scale * (b[k] - along_a * a[k]);
        grad_l[j * dim + k] = scale * (a[k] - along_b * b[k]);
      }
    }
  });
  double total = 0;
  for (float x : loss) total += x;
  return total / rows;
}

// The mean of |cos(z_j, u_k)|; gradients unless null.
double orthogonality_loss(const UnitRows& z, const UnitRows& u, float* grad_z, float* grad_u) {
  const double pairs = static_cast<double>(z.rows) * u.rows;
  const float scale = static_cast<float>(1 / pairs);
  if (has_tiny_pairs(z, u)) {
    if (grad_z) {
      std::fill_n(grad_z, z.rows * z.dim, 0.0f);
      std::fill_n(grad_u, u.rows * u.dim, 0.0f);
      absolute_gradient_of_tiny(z, u, scale, grad_z);
      absolute_gradient_of_tiny(u, z, scale, grad_u);
    }
    return absolute_sum_of_tiny(z, u) / pairs;
  }
  if (!grad_z) return orthogonality(z, u, nullptr, nullptr) / pairs;
  const FloatArray g_z = zeros(z.padded_rows * z.padded_dim);
  const FloatArray g_u = zeros(u.padded_rows * u.padded_dim);
  const double total = orthogonality(z, u, g_z.get(), g_u.get());
  z.through_normalisation(g_z.get(), scale, grad_z);
  u.through_normalisation(g_u.get(), scale, grad_u);
  return total / pairs;
}

// The mean of log sum_{k≠j} exp cos(u_j, u_k), at least two rows; gradient unless null.
double diversity_loss(const UnitRows& u, float* grad) {
  const float scale = static_cast<float>(1.0 / u.rows);
  if (has_tiny_pairs(u, u)) {
    const auto value = [](int64_t j, int64_t k, float c) { return j == k ? 0 : std::exp(c); };
    const std::vector<double> sums = sums_of_tiny(u, u, value);
    double loss = 0;
    for (double s : sums) loss += std::log(s);
    const auto weight = [&](int64_t j, int64_t k, float c) {
      return value(j, k, c) * static_cast<float>(1 / sums[j] + 1 / sums[k]);
    };
    if (grad) {
      std::fill_n(grad, u.rows * u.dim, 0.0f);
      gradient_of_tiny(u, u, scale, weight, grad);
    }
    return loss / u.rows;
  }
  const FloatArray g = zeros(grad ? u.padded_rows * u.padded_dim : 0);
  const double loss = Diversity(u).run(grad ? g.get() : nullptr);
  if (grad) u.through_normalisation(g.get(), scale, grad);
  return loss;
}

// Where the results of one client go; gradients may be null.
struct Results {
  float *loss, *sim_z, *sim_l, *orth_z, *orth_u, *div_u;
};

void losses_of(const Tensor& z, const Tensor& u, const Tensor& l, int64_t terms,
               const Results& out) {
  const bool sim = terms & kSim, orth = terms & kOrth, div = terms & kDiv;
  const int64_t rows = z.size(0);
  if (rows == 0) return;
  if (sim)
    out.loss[0] = static_cast<float>(
        similarity_loss(float_rows(z), float_rows(l), out.sim_z, out.sim_l));
  if (!orth && !div) return;
  const UnitRows unit_u(u, div ? kBoth : kRight);
  if (orth)
    out.loss[1] = static_cast<float>(
        orthogonality_loss(UnitRows(z, kLeft), unit_u, out.orth_z, out.orth_u));
  if (div && rows > 1)
    out.loss[2] = static_cast<float>(diversity_loss(unit_u, out.div_u));
  else if (div && out.div_u)
    std::fill_n(out.div_u, u.size(1), 0.0f);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> index_losses_cpu(
    const Tensor& z, const Tensor& u, const Tensor& l, const std::optional<Tensor>& counts,
    int64_t terms, bool with_grad) {
  const bool sim = terms & kSim, orth = terms & kOrth, div = terms & kDiv;
  const int64_t clients = counts ? z.size(0) : 1, rows = z.size(-2), dim = z.size(-1);
  Tensor losses = counts ? torch::stable::new_zeros(z, {clients, 3}, ScalarType::Float)
                         : torch::stable::new_zeros(z, {3}, ScalarType::Float);
  Tensor sim_z = rows_like(z, sim && with_grad), sim_l = rows_like(l, sim && with_grad);
  Tensor orth_z = rows_like(z, orth && with_grad), orth_u = rows_like(u, orth && with_grad);
  Tensor div_u = rows_like(u, div && with_grad);
  for (int64_t i = 0; i < clients; ++i) {
    const auto wanted = [&](Tensor& grad, bool term) {
      return term && with_grad ? grad.mutable_data_ptr<float>() + i * rows * dim : nullptr;
    };
    const Results out{losses.mutable_data_ptr<float>() + 3 * i, wanted(sim_z, sim),
                      wanted(sim_l, sim), wanted(orth_z, orth), wanted(orth_u, orth),
                      wanted(div_u, div)};
    if (!counts) {
      losses_of(z, u, l, terms, out);
      continue;
    }
    const int64_t count = torch::stable::contiguous(*counts).const_data_ptr<int64_t>()[i];
    const auto own = [&](const Tensor& x) {
      Tensor all = torch::stable::flatten(x, 0, 1);
      return torch::stable::narrow(all, 0, i * rows, count);
    };
    losses_of(own(z), own(u), own(l), terms, out);
  }
  return {losses, sim_z, sim_l, orth_z, orth_u, div_u};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("index_losses", TORCH_BOX(&c2v::index_losses_cpu));
}
