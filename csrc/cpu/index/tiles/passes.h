// The arithmetic of index_losses and projection_orthogonality on one tile.
//
// Compiled once for each kind of vector (avx2.cpp, avx512.cpp). Nothing of the standard library with
// a body is used: the linker could take its AVX-512 code for all.
#include "shape.h"

#include <cstring>

namespace c2v {
namespace VECTORS {
namespace {

constexpr int kVec = FLOATS_OF_A_VECTOR;
#include "../../vectors/vec.h"
#include "../../vectors/lanes.h"
#include "../../vectors/tile.h"

// Of A·Bᵀ: a whole tile is 3 vectors of 16 floats wide, and 6 of 8.
constexpr int kLeft = kVec == 16 ? 8 : 6, kWide = kVec == 16 ? 3 : 2, kRight = kWide * kVec;
constexpr int64_t kDepth = kVec == 16 ? 128 : 256;

// Bit i is set where lane i is negative (or -0).
inline unsigned sign_bits(Lanes v) {
#if defined(__AVX512DQ__) && FLOATS_OF_A_VECTOR == 16
  return __builtin_ia32_cvtd2mask512(reinterpret_cast<int __attribute__((vector_size(64)))>(v));
#elif defined(__AVX__) && FLOATS_OF_A_VECTOR == 8
  return __builtin_ia32_movmskps256(reinterpret_cast<float __attribute__((vector_size(32)))>(v));
#else
  unsigned bits = 0;
  for (int i = 0; i < kVec; ++i) bits |= static_cast<unsigned>(v[i] < 0) << i;
  return bits;
#endif
}

inline void put_bits(uint8_t* to, unsigned bits) {
  for (int i = 0; i < kVec / 8; ++i) to[i] = static_cast<uint8_t>(bits >> (8 * i));
}

// table[16][64]: the sums ±r0 ±r1 ±r2 ±r3 of four rows of 64 columns; bit i of the index: minus.
inline void signed_sums(const float* b, int64_t panel_stride, float* table) {
  for (int64_t c = 0; c < kColumns; c += kVec) {
    const float* row = b + c / kPanel * panel_stride + c % kPanel;
    const Vec r0 = load(row), r1 = load(row + kPanel), r2 = load(row + 2 * kPanel),
              r3 = load(row + 3 * kPanel);
    const Vec low[4] = {r0 + r1, r1 - r0, r0 - r1, -r0 - r1};
    const Vec high[4] = {r2 + r3, r3 - r2, r2 - r3, -r2 - r3};
    for (int i = 0; i < 16; ++i) store(table + i * kColumns + c, low[i % 4] + high[i / 4]);
  }
}

// Takes back what add_signed_rows added for cosines that are exactly 0, where sign is 0.
void undo_zeros(const Signs& signs, const float* b, int64_t panel_stride, int64_t rows,
                float* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < signs.bytes; ++i)
      for (unsigned left = signs.zero[r * signs.stride + i]; left; left &= left - 1) {
        const int bit = __builtin_ctz(left);
        const float sign = signs.minus[r * signs.stride + i] >> bit & 1 ? -1.0f : 1.0f;
        const float* source = b + (i * 8 + bit) * kPanel;
        for (int64_t c = 0; c < kColumns; ++c)
          out[r * kColumns + c] -= sign * source[c / kPanel * panel_stride + c % kPanel];
      }
}

}  // namespace

PanelSizes panel_sizes() { return {kPanel, kRows, kDepth}; }

void pack_right(const float* rows, int64_t depth, float* right) {
  for (int64_t i = 0; i < kTile; i += kVec)
    for (int64_t k = 0; k < depth; k += kVec) {
      Vec square[kVec];
      for (int l = 0; l < kVec; ++l) square[l] = load(rows + (i + l) * depth + k);
      transpose(square);
      float* to = right + i / kRight * kRight * depth + k * kRight + i % kRight;
      for (int l = 0; l < kVec; ++l) store(to + l * kRight, square[l]);
    }
}

void tile_product(const float* left, int64_t a_rows, const float* right, int64_t b_rows,
                  int64_t depth, float* tile) {
  a_rows = smaller(kTile, a_rows), b_rows = smaller(kTile, b_rows);
  if (a_rows < kTile || b_rows < kTile) std::memset(tile, 0, sizeof(float) * kTile * kTile);
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t part = smaller(kDepth, depth - k);
    const auto run = k == 0 ? multiply_tile<kLeft, kWide, false> : multiply_tile<kLeft, kWide, true>;
    for (int64_t j = 0; j < b_rows; j += kRight)
      for (int64_t i = 0; i < a_rows; i += kLeft)
        run(left + i * depth + k, depth, 1, right + j * depth + k * kRight, kRight, part,
            tile + i * kTile + j, kTile);
  }
}

void accumulate_product(const float* w, const float* b, int64_t rows, int64_t depth, int64_t first,
                        int64_t last, float* out, int64_t height) {
  for (int64_t p = first; p < last; ++p)
    for (int64_t i = 0; i < height; i += kRows)
      multiply_tile<kRows, 2, true>(w + i * depth, 1, kRows, b + p * rows * kPanel, kPanel, depth,
                                    out + p * kPanel / kColumns * rows * kColumns + i * kColumns +
                                        p * kPanel % kColumns,
                                    kColumns);
}

void add_signed_rows(const Signs& signs, const float* b, int64_t panel_stride, int64_t rows,
                     float* out) {
  alignas(64) float table[4][16 * kColumns];  // sixteen source rows: 16 KiB of the L1 cache
  for (int64_t i = 0; i < signs.bytes; i += 2) {
    for (int64_t g = 0; g < 4; ++g)
      signed_sums(b + (i * 8 + g * 4) * kPanel, panel_stride, table[g]);
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* s = signs.minus + r * signs.stride + i;
      const float *p0 = table[0] + s[0] % 16 * kColumns, *p1 = table[1] + s[0] / 16 * kColumns;
      const float *p2 = table[2] + s[1] % 16 * kColumns, *p3 = table[3] + s[1] / 16 * kColumns;
      float* o = out + r * kColumns;
#pragma GCC unroll 8
      for (int64_t c = 0; c < kColumns; c += kVec)
        store(o + c, load(o + c) + ((load(p0 + c) + load(p1 + c)) + (load(p2 + c) + load(p3 + c))));
    }
  }
  if (signs.zero) undo_zeros(signs, b, panel_stride, rows, out);
}

double scan_tile(const float* tile, int64_t rows, int64_t columns, uint8_t* signs, uint8_t* zeros,
                 bool* any_zero) {
  unsigned found = 0;
  double total = 0;
  for (int64_t i = 0; i < kTile; ++i) {
    Vec sum = {};
    for (int64_t j = 0; j < kTile; j += kVec) {
      const Vec v = load(tile + i * kTile + j);
      sum += v < 0.0f ? -v : v;
      const int64_t left = i < rows && columns > j ? smaller(columns - j, kVec) : 0;
      const unsigned zero = sign_bits(v == 0.0f) & ((1u << left) - 1);
      found |= zero;
      put_bits(signs + i * kTileBytes + j / 8, sign_bits(reinterpret_cast<Lanes>(v)));
      put_bits(zeros + i * kTileBytes + j / 8, zero);
    }
    for (int lane = 0; lane < kVec; ++lane) total += sum[lane];
  }
  *any_zero = found;
  return total;
}

// The Taylor polynomial's remainder 1/12! is below float32's rounding.
void exp_of_cosines(float* tile) {
  constexpr float factors[] = {1 / 362880.0f, 1 / 40320.0f, 1 / 5040.0f, 1 / 720.0f, 1 / 120.0f,
                               1 / 24.0f,     1 / 6.0f,     0.5f,        1.0f,       1.0f};
  for (float* at = tile; at < tile + kTile * kTile; at += kVec) {
    const Vec x = load(at);
    Vec y = x * (1 / 39916800.0f) + 1 / 3628800.0f;
    for (const float c : factors) y = y * x + c;
    store(at, y);
  }
}

}  // namespace VECTORS
}  // namespace c2v
