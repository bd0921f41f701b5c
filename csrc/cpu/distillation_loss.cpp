// distillation_loss: mean_j KL(softmax(a_j) || softmax(b_j)) and both gradients, a row at a time.
//
//   KL_j = sum_k p_k r_k,  r_k = log p_k - log q_k     gradients p_k (r_k - KL_j) and q_k - p_k
#include <bit>
#include <cmath>
#include <tuple>
#include <vector>

#include "unit_rows.h"

namespace c2v {
namespace {

// exp for x ≤ 0, within 2 units in the last place and without branches, so that loops vectorise.
// Below -87 the result stays at 1.6e-38, which no sum over float32 notices. NaN stays NaN.
inline float exp_of_negative(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5·2^23: adding it rounds to an integer
  const float y = x < -87.0f ? -87.0f : x;
  const float shifted = y * 1.44269504f + kShift, n = shifted - kShift;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;  // log 2 in two parts
  float p = 1 / 5040.0f;
  p = p * r + 1 / 720.0f;
  p = p * r + 1 / 120.0f;
  p = p * r + 1 / 24.0f;
  p = p * r + 1 / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;  // 2^n
  return p * std::bit_cast<float>(power);
}

// p[k] = exp(x[k] - max x); returns log sum_k exp(x[k]), and 1 / sum p in `scale`.
float softmax_parts(const float* x, int64_t classes, float* p, float& scale) {
  float top = x[0], sum = 0;
#pragma omp simd reduction(max : top)
  for (int64_t k = 1; k < classes; ++k) top = x[k] > top ? x[k] : top;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < classes; ++k) {
    p[k] = exp_of_negative(x[k] - top);
    sum += p[k];
  }
  scale = 1 / sum;
  return top + std::log(sum);
}

// KL of one row; gradients divided by `rows` into da and db unless null.
float divergence(const float* a, const float* b, int64_t classes, float* p, float* q, float* da,
                 float* db, float rows) {
  float p_scale, q_scale;
  const float apart = softmax_parts(a, classes, p, p_scale) - softmax_parts(b, classes, q, q_scale);
  float kl = 0;
#pragma omp simd reduction(+ : kl)
  for (int64_t k = 0; k < classes; ++k) {
    p[k] *= p_scale;
    kl += p[k] * ((a[k] - b[k]) - apart);
  }
  if (!da) return kl;
#pragma omp simd
  for (int64_t k = 0; k < classes; ++k) {
    da[k] = p[k] * ((a[k] - b[k]) - apart - kl) / rows;
    db[k] = (q[k] * q_scale - p[k]) / rows;
  }
  return kl;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> distillation_loss_cpu(const Tensor& logits,
                                                         const Tensor& logits_p, bool with_grad) {
  const int64_t rows = logits.size(0), classes = logits.size(1);
  const Tensor a = float_rows(logits), b = float_rows(logits_p);
  Tensor loss = torch::stable::new_zeros(logits, {}, ScalarType::Float);
  Tensor grad = torch::stable::new_empty(a, {with_grad ? rows : 0, classes});
  Tensor grad_p = torch::stable::new_empty(a, {with_grad ? rows : 0, classes});
  if (rows == 0) return {loss, grad, grad_p};
  const float *a_ptr = a.const_data_ptr<float>(), *b_ptr = b.const_data_ptr<float>();
  float *da = grad.mutable_data_ptr<float>(), *db = grad_p.mutable_data_ptr<float>();
  std::vector<double> kl(rows);
  const int64_t grain = std::max<int64_t>(1, 16384 / classes);  // below it threads cost more
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    const FloatArray p = floats(classes), q = floats(classes);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t at = j * classes;
      kl[j] = divergence(a_ptr + at, b_ptr + at, classes, p.get(), q.get(),
                         with_grad ? da + at : nullptr, with_grad ? db + at : nullptr,
                         static_cast<float>(rows));
    }
  });
  double total = 0;
  for (double x : kl) total += x;
  *loss.mutable_data_ptr<float>() = static_cast<float>(total / rows);
  return {loss, grad, grad_p};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("distillation_loss", TORCH_BOX(&c2v::distillation_loss_cpu));
}
