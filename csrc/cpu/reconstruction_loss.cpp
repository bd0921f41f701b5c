// reconstruction_loss: mean of (d_hat - d)² and its gradient for d_hat, one read of both.
#include <tuple>
#include <vector>

#include "unit_rows.h"

namespace c2v {

std::tuple<Tensor, Tensor> reconstruction_loss_cpu(const Tensor& d_hat, const Tensor& d,
                                                   bool with_grad) {
  constexpr int64_t kBlock = 4096;  // summed in float32, blocks in float64
  const Tensor a = float_rows(d_hat), b = float_rows(d);
  const int64_t rows = a.size(0), size = rows * a.size(1);
  Tensor loss = torch::stable::new_zeros(d_hat, {}, ScalarType::Float);
  Tensor grad = torch::stable::new_empty(a, {with_grad ? rows : 0, a.size(1)});
  if (size == 0) return {loss, grad};
  const float *a_ptr = a.const_data_ptr<float>(), *b_ptr = b.const_data_ptr<float>();
  float *g = with_grad ? grad.mutable_data_ptr<float>() : nullptr, scale = 2.0f / size;
  std::vector<double> sums((size + kBlock - 1) / kBlock);
  torch::stable::parallel_for(0, sums.size(), 4, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float lanes[32] = {};
      const int64_t last = std::min(size, (block + 1) * kBlock);
      int64_t i = block * kBlock;
      for (; i + 32 <= last; i += 32)
        for (int64_t lane = 0; lane < 32; ++lane) {
          const float apart = a_ptr[i + lane] - b_ptr[i + lane];
          lanes[lane] += apart * apart;
          if (g) g[i + lane] = scale * apart;
        }
      for (; i < last; ++i) {
        const float apart = a_ptr[i] - b_ptr[i];
        sums[block] += apart * apart;
        if (g) g[i] = scale * apart;
      }
      for (float lane : lanes) sums[block] += lane;
    }
  });
  double total = 0;
  for (double s : sums) total += s;
  *loss.mutable_data_ptr<float>() = static_cast<float>(total / static_cast<double>(size));
  return {loss, grad};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("reconstruction_loss", TORCH_BOX(&c2v::reconstruction_loss_cpu));
}
