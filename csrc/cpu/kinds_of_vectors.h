// Which kind of vectors this CPU has, and memory that operators work in.
#pragma once

#include "../ops.h"

#include <torch/headeronly/core/MemoryFormat.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

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
    STD_TORCH_CHECK(space, "convolution: no memory for ", bytes, " bytes of work space");
  }
  return space.get();
}

inline float* floats_of(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }
inline uint8_t* bytes_of(const Tensor& t) { return static_cast<uint8_t*>(t.data_ptr()); }

// [N, C, H, W] whose memory is [N, H, W, C]. No view of another tensor: autograd forbids to change
// such an output in place, as ReLU after a convolution often does.
inline Tensor images_like(const Tensor& like, int64_t n, int64_t height, int64_t width,
                          int64_t channels) {
  return torch::stable::empty({n, channels, height, width}, like.scalar_type(), std::nullopt,
                              std::nullopt, std::nullopt,
                              torch::headeronly::MemoryFormat::ChannelsLast);
}

}  // namespace c2v
