// The arithmetic of fused_ffn: hidden values live in cache only.
//
// Tokens go in blocks of 48 and hidden units in panels, so that a [48, panel] piece of the hidden
// layer stays in the first-level cache between the products that make and use it. The register
// tile takes tokens × units, summing over the channels (`hidden_tile`, `grad_hidden_tile`), and
// tokens or units × channels, summing over units or tokens (`add_products`). relu and dropout: a
// hidden value is kept unless it is <= 0 or dropped, so a NaN is kept.
//
// Compiled once for each kind of vector (avx2.cpp, avx512.cpp). Nothing of the standard library with
// a body is used: the linker could take its AVX-512 code for all.
#include "shape.h"

#include <cstring>

namespace c2v {
namespace VECTORS {
namespace {

constexpr int kVec = FLOATS_OF_A_VECTOR;
#include "../vectors/vec.h"
#include "../vectors/tile.h"
#include "dropout.h"

constexpr int64_t kTokens = kFfnTokens;
constexpr int64_t kForwardPanel = 96;  // hidden units held at once: 18 KiB
constexpr int64_t kBackwardPanel = kVec == 16 ? 64 : 48;  // two such pieces: 24 or 18 KiB
static_assert(kTokens % kRows == 0 && kForwardPanel % kPanel == 0 && kBackwardPanel % kPanel == 0);

struct Panel {  // of hidden units
  int64_t first, units, width;  // `width`: from one token to the next
  int64_t end() const { return (units + kPanel - 1) / kPanel * kPanel; }  // in whole tiles
};

// Copies `count` rows of `channels`, times `scale`, into padded rows; rows up to `padded` are zero.
void copy_rows(const float* from, int64_t count, const FfnLayer& layer, float scale, int64_t padded,
               float* to) {
  std::memset(to, 0, sizeof(float) * padded * layer.stride);
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < layer.channels; ++c)
      to[t * layer.stride + c] = scale * from[t * layer.channels + c];
}

// out[kRows, kPanel] = keep * relu(x w1' + b1), not yet scaled by 1 / (1 - p).
template <bool kDrop>
C2V_NOINLINE void hidden_tile(const FfnLayer& layer, const float* x, int64_t unit,
                              const TokenKey* keys, int32_t threshold, float* out, int64_t width) {
  Tile<kRows, 2> tile;
  const Vec bias[2] = {load(layer.b1 + unit), load(layer.b1 + unit + kVec)};
  tile.each([&](int, int j, Vec& sum) { sum = bias[j]; });
  tile.add(x, layer.stride, 1, layer.w1_tiles + unit * layer.channels, kPanel, layer.channels);
  tile.each([](int, int, Vec& sum) { sum = sum <= 0.0f ? Vec{} : sum; });
  if constexpr (kDrop) {
    const Bits columns = columns_of(unit);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      Ints keep[2];
      keep_masks(keys[i], columns, threshold, keep[0], keep[1]);
      for (int j = 0; j < 2; ++j) tile.sums[i][j] = keep[j] ? tile.sums[i][j] : Vec{};
    }
  }
  tile.put<false>(out, width);
}

// out[kRows, kPanel] = (grad_y w2) where hidden is not 0; its sum over `tokens` is added to `sums`.
C2V_NOINLINE void grad_hidden_tile(const FfnLayer& layer, const float* grad_y, int64_t unit,
                                   const float* hidden, int64_t tokens, float* out, int64_t width,
                                   float* sums) {
  Tile<kRows, 2> tile;
  tile.clear();
  tile.add(grad_y, layer.stride, 1, layer.w2_tiles + unit * layer.channels, kPanel, layer.channels);
  Vec sum[2] = {load(sums), load(sums + kVec)};
  tile.each([&](int i, int j, Vec& grad) {
    grad = load(hidden + i * width + j * kVec) <= 0.0f ? Vec{} : grad;
    if (i < tokens) sum[j] += grad;
  });
  tile.put<false>(out, width);
  store(sums, sum[0]), store(sums + kVec, sum[1]);
}

void hidden_panel(const FfnLayer& layer, const FfnDropout& dropout, const float* x,
                  const TokenKey* keys, const Panel& p, float* hidden) {
  const auto make = dropout.threshold > 0 ? hidden_tile<true> : hidden_tile<false>;
  for (int64_t j = 0; j < p.end(); j += kPanel)
    for (int64_t t = 0; t < kTokens; t += kRows)
      make(layer, x + t * layer.stride, p.first + j, keys + t, dropout.threshold,
           hidden + t * p.width + j, p.width);
}

// Of `tokens` tokens; their sum goes to grad_b1.
void grad_hidden_panel(const FfnLayer& layer, const float* grad_y, const float* hidden,
                       const Panel& p, int64_t tokens, float* grad_hidden, float* grad_b1) {
  for (int64_t j = 0; j < p.end(); j += kPanel) {
    float sums[kPanel] = {}, *bias = grad_b1 + p.first + j;
    for (int64_t t = 0; t < kTokens; t += kRows)
      grad_hidden_tile(layer, grad_y + t * layer.stride, p.first + j, hidden + t * p.width + j,
                       tokens - t, grad_hidden + t * p.width + j, p.width, sums);
    for (int64_t k = 0; k < kPanel; ++k) bias[k] += sums[k];
  }
}

// out[rows, stride] += A B, B [depth, stride]; the elements of A are a_row and a_step apart.
void add_products(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t stride,
                  int64_t depth, float* out, int64_t rows) {
  for (int64_t c = 0; c < stride; c += kPanel)
    for (int64_t m = 0; m < rows; m += kRows)
      with_height(rows - m, [&](auto height) {
        multiply_tile<height.value, 2, true>(a + m * a_row, a_row, a_step, b + c, stride, depth,
                                             out + m * stride + c, stride);
      });
}

void sum_rows(const float* rows, int64_t count, const FfnLayer& layer, float* out) {
  for (int64_t begin = 0; begin < count; begin += kTokens) {  // in two levels, for accuracy
    const int64_t end = smaller(begin + kTokens, count);
    for (int64_t c = 0; c < layer.channels; ++c) {
      float sum = 0.0f;
      for (int64_t t = begin; t < end; ++t) sum += rows[t * layer.channels + c];
      out[c] += sum;
    }
  }
}

void keys_of(const FfnDropout& dropout, int64_t first, TokenKey* keys) {
  for (int64_t t = 0; t < kTokens; ++t) keys[t] = key_of(dropout, first + t);
}

int64_t in_blocks(int64_t tokens) { return (tokens + kTokens - 1) / kTokens * kTokens; }

}  // namespace

int64_t ffn_tile() { return kPanel; }

int64_t ffn_forward_space(const FfnLayer& layer) {
  return kTokens * (2 * layer.stride + kForwardPanel);
}

int64_t ffn_backward_space(const FfnLayer& layer, int64_t count) {
  return 3 * in_blocks(count) * layer.stride + 2 * kTokens * kBackwardPanel;
}

void ffn_forward(const FfnLayer& layer, const FfnDropout& dropout, const float* x, const float* b2,
                 int64_t first, int64_t count, float* space, float* y) {
  const int64_t stride = layer.stride;
  float *rows = space, *sums = rows + kTokens * stride, *hidden = sums + kTokens * stride;
  TokenKey keys[kTokens];
  keys_of(dropout, first, keys);
  copy_rows(x + first * layer.channels, count, layer, 1.0f, kTokens, rows);
  std::memset(sums, 0, sizeof(float) * kTokens * stride);
  for (int64_t f = 0; f < layer.units; f += kForwardPanel) {
    const Panel p{f, smaller(kForwardPanel, layer.units - f), kForwardPanel};
    hidden_panel(layer, dropout, rows, keys, p, hidden);
    add_products(hidden, p.width, 1, layer.w2_rows + f * stride, stride, p.units, sums, kTokens);
  }
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < layer.channels; ++c)
      y[(first + t) * layer.channels + c] = b2[c] + dropout.scale * sums[t * stride + c];
}

void ffn_backward(const FfnLayer& layer, const FfnDropout& dropout, const float* x,
                  const float* grad_y, int64_t first, int64_t count, float* space, float* grad_x,
                  const FfnPartial& partial) {
  const int64_t stride = layer.stride, padded = in_blocks(count), size = padded * stride;
  float *rows = space, *grads = rows + size, *grad_rows = grads + size;
  float *hidden = grad_rows + size, *grad_hidden = hidden + kTokens * kBackwardPanel;
  TokenKey keys[kTokens];
  copy_rows(x + first * layer.channels, count, layer, 1.0f, padded, rows);
  // Scaling grad_y once scales both its product with w2 and its product with the hidden values.
  copy_rows(grad_y + first * layer.channels, count, layer, dropout.scale, padded, grads);
  std::memset(grad_rows, 0, sizeof(float) * size);
  sum_rows(grad_y + first * layer.channels, count, layer, partial.b2);

  for (int64_t f = 0; f < layer.units; f += kBackwardPanel) {
    const Panel p{f, smaller(kBackwardPanel, layer.units - f), kBackwardPanel};
    for (int64_t t = 0; t < count; t += kTokens) {
      const int64_t tokens = smaller(kTokens, count - t);
      const float *x_block = rows + t * stride, *grad_block = grads + t * stride;
      if (dropout.threshold > 0) keys_of(dropout, first + t, keys);
      hidden_panel(layer, dropout, x_block, keys, p, hidden);
      grad_hidden_panel(layer, grad_block, hidden, p, tokens, grad_hidden, partial.b1);
      if (partial.w1) {
        add_products(grad_hidden, 1, p.width, x_block, stride, tokens, partial.w1 + f * stride,
                     p.units);
        add_products(hidden, 1, p.width, grad_block, stride, tokens, partial.w2 + f * stride,
                     p.units);
      }
      if (grad_x)
        add_products(grad_hidden, p.width, 1, layer.w1_rows + f * stride, stride, p.units,
                     grad_rows + t * stride, kTokens);
    }
  }
  for (int64_t t = 0; grad_x && t < count; ++t)
    std::memcpy(grad_x + (first + t) * layer.channels, grad_rows + t * stride,
                sizeof(float) * layer.channels);
}

}  // namespace VECTORS
}  // namespace c2v
