// weighted_sum: out[p] = sum_k weights[k] * arena[k, p], one read of the arena.
//
// Columns are cut into blocks that stay in the first-level cache while the rows stream by. A
// column is summed by one thread in ascending k, so the bits are those of any thread count.
#include "../ops.h"

namespace c2v {
namespace {

constexpr int64_t kBlock = 2048;  // floats of `out` held in cache: 8 KiB

template <class T>
inline void add_row(const T* row, float weight, float* out, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] += weight * to_float(row[i]);
}

template <class T>
void sum_block(const T* arena, int64_t stride, const float* weights, int64_t rows, float* out,
               int64_t size) {
  std::fill(out, out + size, 0.0f);
  int64_t k = 0;
  for (; k + 4 <= rows; k += 4) {  // four rows per pass: a quarter of the traffic on `out`
    const T *a = arena + k * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    const float wa = weights[k], wb = weights[k + 1], wc = weights[k + 2], wd = weights[k + 3];
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      float sum = out[i];
      sum += wa * to_float(a[i]);
      sum += wb * to_float(b[i]);
      sum += wc * to_float(c[i]);
      sum += wd * to_float(d[i]);
      out[i] = sum;
    }
  }
  for (; k < rows; ++k) add_row(arena + k * stride, weights[k], out, size);
}

}  // namespace

void weighted_sum_cpu(const Tensor& arena, const Tensor& weights, Tensor& out) {
  STD_TORCH_CHECK(out.scalar_type() == ScalarType::Float, "weighted_sum: out must be float32");
  STD_TORCH_CHECK(out.is_contiguous(), "weighted_sum: out must be contiguous");
  const int64_t rows = arena.size(0), size = arena.size(1);
  if (size == 0) return;
  // A strided row (a view of some arena columns) is fine; strided elements are copied first.
  const Tensor a = arena.stride(1) == 1 ? arena : torch::stable::contiguous(arena);
  const Tensor w = torch::stable::contiguous(torch::stable::to(weights, ScalarType::Float));
  const float* w_ptr = w.const_data_ptr<float>();
  float* out_ptr = out.mutable_data_ptr<float>();
  const int64_t stride = a.stride(0), blocks = (size + kBlock - 1) / kBlock;
  with_storage_type(a.scalar_type(), "weighted_sum", [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* a_ptr = static_cast<const T*>(a.const_data_ptr());
    torch::stable::parallel_for(0, blocks, 8, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t first = b * kBlock;
        sum_block(a_ptr + first, stride, w_ptr, rows, out_ptr + first,
                  std::min(kBlock, size - first));
      }
    });
  });
}

// The sum of one row more: out[p] += weight * row[p].
void weighted_sum_add_cpu(const Tensor& row, double weight, Tensor& out) {
  STD_TORCH_CHECK(row.is_contiguous() && out.is_contiguous() && row.size(0) == out.size(0) &&
                      row.scalar_type() == ScalarType::Float &&
                      out.scalar_type() == ScalarType::Float,
                  "weighted_sum_add: takes contiguous float32 rows of one length");
  const float* from = row.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  add_row(from, static_cast<float>(weight), to, row.size(0));
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("weighted_sum", TORCH_BOX(&c2v::weighted_sum_cpu));
  m.impl("weighted_sum_add", TORCH_BOX(&c2v::weighted_sum_add_cpu));
}
