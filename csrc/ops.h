// Shared by every operator source: torch's stable C++ interface and argument checks.
//
// The stable interface compiles in seconds and one binary serves several torch versions; its
// price is that at::vec and the ATen operators are absent. Vector code therefore uses GCC/Clang
// vector extensions or `#pragma omp simd`.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace c2v {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline float to_float(float x) { return x; }
// A bfloat16 is the upper half of a float: a shift, which vectorises.
inline float to_float(torch::headeronly::BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.x) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
// The exponent is re-biased by a multiplication, which also normalises subnormals; Inf and NaN
// get the full exponent. No branches, so it vectorises.
inline float to_float(torch::headeronly::Half x) {
  const uint32_t sign = (x.x & 0x8000u) << 16, magnitude = (x.x & 0x7fffu) << 13;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  float value;
  std::memcpy(&value, &magnitude, sizeof value);
  value *= 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits |= sign | special;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Eight floats in a register (or several, where registers are narrower), loaded and widened.
using Floats = float __attribute__((vector_size(32)));

inline Floats load_floats(const float* from) {
  Floats out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
#if defined(__AVX2__) && defined(__F16C__)  // GCC 12 does not find these conversions by itself
inline Floats load_floats(const torch::headeronly::BFloat16* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline Floats load_floats(const torch::headeronly::Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#else
template <class T>
inline Floats load_floats(const T* from) {
  Floats out;
  for (int i = 0; i < 8; ++i) out[i] = to_float(from[i]);
  return out;
}
#endif

// Calls f with a null pointer of the storage type that `type` names.
template <class F>
void with_storage_type(ScalarType type, const char* op, const F& f) {
  switch (type) {
    case ScalarType::Float: return f(static_cast<float*>(nullptr));
    case ScalarType::BFloat16: return f(static_cast<torch::headeronly::BFloat16*>(nullptr));
    case ScalarType::Half: return f(static_cast<torch::headeronly::Half*>(nullptr));
    default: STD_TORCH_CHECK(false, op, ": takes float32, bfloat16 or float16 storage");
  }
}

}  // namespace c2v
