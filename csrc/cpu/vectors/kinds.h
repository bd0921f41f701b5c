// Which kind of vectors this CPU has, and memory that operators work in.
#pragma once

#include "../../ops.h"

#include <cstdlib>
#include <cstring>
#include <memory>

namespace c2v {

// Whether there is AVX-512. What torch is told by this variable holds here too.
inline bool has_wide_vectors() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("ATEN_CPU_CAPABILITY");
  if (wanted && (!std::strcmp(wanted, "avx2") || !std::strcmp(wanted, "default"))) return false;
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

// One per thread, as large as the largest call needed: fresh memory would be mapped page by page.
inline float* work_space(int64_t floats) {
  thread_local std::unique_ptr<float, decltype(&std::free)> space(nullptr, &std::free);
  thread_local int64_t size = 0;
  if (floats > size) {
    space.reset();  // before the next is there
    const int64_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
    space.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    size = space ? floats : 0;
    STD_TORCH_CHECK(space, "no memory for ", bytes, " bytes of work space");
  }
  return space.get();
}

inline float* floats_of(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

// [N, C, H, W] whose memory is [N, H, W, C]; the stable interface cannot ask for that itself.
inline Tensor images_like(const Tensor& like, int64_t n, int64_t height, int64_t width,
                          int64_t channels) {
  Tensor flat = torch::stable::new_empty(like, {n, height, width, channels});
  return torch::stable::transpose(torch::stable::transpose(flat, 2, 3), 1, 2);
}

}  // namespace c2v
