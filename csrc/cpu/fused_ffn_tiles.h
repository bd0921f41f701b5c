// The register tiles and the dropout bits of fused_ffn, for fused_ffn.cpp alone.
#pragma once

#include <cstdint>

namespace c2v {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
using Bits = uint32_t __attribute__((vector_size(32)));
using FloatsAt = float __attribute__((vector_size(32), aligned(4), may_alias));

Floats load(const float* p) { return *reinterpret_cast<const FloatsAt*>(p); }
void store(float* p, Floats v) { *reinterpret_cast<FloatsAt*>(p) = v; }

// ---- dropout bits ---------------------------------------------------------------------------

struct TokenKey {
  uint32_t first, second;
};

uint64_t mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

struct Dropout {
  int32_t threshold;  // of 65536: a unit is dropped when its 16 bits are below
  float scale;
  uint64_t seed;

  TokenKey key(int64_t token) const {
    const uint64_t k = mix64(mix64(seed) + static_cast<uint64_t>(token));
    return {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32)};
  }
};

// Which of 16 consecutive units are kept, as masks of all ones: one 32-bit hash serves units j
// (low half) and j + 8 (high half).
inline void keep_masks(TokenKey key, Bits column, int32_t threshold, Ints& low, Ints& high) {
  Bits v = column + key.first;
  v = (v ^ (v >> 16)) * 0x7FEB352Du;
  v = (v ^ (v >> 15) ^ key.second) * 0x846CA68Bu;
  v ^= v >> 16;
  low = reinterpret_cast<Ints>(v & 0xFFFFu) >= threshold;
  high = reinterpret_cast<Ints>(v >> 16) >= threshold;
}

inline Bits column_keys(int64_t unit) {
  const Bits lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  return (lanes + static_cast<uint32_t>(unit / 2)) * 0x9E3779B1u;
}

// ---- register tiles -------------------------------------------------------------------------

// Inlined, the callers' constants would take the registers that the sums need.
#define C2V_NOINLINE __attribute__((noinline))

// out[r, 0..15] = bias[0..15] + sum_k x[r, k] * tile[k, 0..15] for 6 tokens.
C2V_NOINLINE void project(const float* x, int64_t x_stride, const float* tile, int64_t channels,
                          Floats left_bias, Floats right_bias, float* out, int64_t out_stride) {
  Floats sums[6][2];
#pragma GCC unroll 6
  for (int r = 0; r < 6; ++r) sums[r][0] = left_bias, sums[r][1] = right_bias;
  for (int64_t k = 0; k < channels; ++k) {
    const Floats left = load(tile + 16 * k), right = load(tile + 16 * k + 8);
#pragma GCC unroll 6
    for (int r = 0; r < 6; ++r) {
      const float value = x[r * x_stride + k];
      sums[r][0] += value * left;
      sums[r][1] += value * right;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < 6; ++r) {
    store(out + r * out_stride, sums[r][0]);
    store(out + r * out_stride + 8, sums[r][1]);
  }
}

// out[m, 0..31] += sum_k a[m * row_step + k * step] * b[k, 0..31] for M rows.
template <int M>
C2V_NOINLINE void add_products_tile(const float* a, int64_t row_step, int64_t step, const float* b,
                                    int64_t stride, int64_t count, float* out) {
  Floats sums[M][4] = {};  // not loaded from out: a sum of short sums is more accurate
  for (int64_t k = 0; k < count; ++k) {
    float value[M];
#pragma GCC unroll 3
    for (int m = 0; m < M; ++m) value[m] = a[m * row_step + k * step];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Floats row = load(b + k * stride + 8 * j);
#pragma GCC unroll 3
      for (int m = 0; m < M; ++m) sums[m][j] += value[m] * row;
    }
  }
#pragma GCC unroll 3
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      float* at = out + m * stride + 8 * j;
      store(at, load(at) + sums[m][j]);
    }
}

// The same for any number of rows and `stride` channels (a multiple of 32), the row length of b
// and out.
void add_products(const float* a, int64_t row_step, int64_t step, const float* b, int64_t stride,
                  int64_t count, float* out, int64_t rows) {
  for (int64_t c = 0; c < stride; c += 32) {
    int64_t m = 0;
    for (; m + 3 <= rows; m += 3)
      add_products_tile<3>(a + m * row_step, row_step, step, b + c, stride, count,
                           out + m * stride + c);
    for (; m < rows; ++m)
      add_products_tile<1>(a + m * row_step, row_step, step, b + c, stride, count,
                           out + m * stride + c);
  }
}

}  // namespace
}  // namespace c2v
