// fused_ffn: y = W2 drop(relu(W1 x + b1)) + b2 and its gradients; hidden values live in cache only.
//
// Tokens go in blocks of 48 and hidden units in panels, so that a [48, panel] piece of the hidden
// layer stays in the first-level cache between the products that make and use it. Two register
// tiles of 12 vectors do all the arithmetic: `project` (6 tokens x 16 units, summing over the
// channels) and `add_products` (3 rows x 32 channels, summing over units or tokens).
//
// Forward: each token is one thread's. Backward: tokens are cut into chunks (a number that depends
// on their count alone), a chunk sums its own weight gradients, and chunks are added in order: the
// bits are those of any thread count. relu and dropout: a hidden value is kept unless it is <= 0
// or dropped, so a NaN is kept; the definition of the dropout bits is in c2v_sim/ops/fused_ffn.py.
#include <memory>
#include <tuple>
#include <vector>

#include "../ops.h"

namespace c2v {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Ints = int32_t __attribute__((vector_size(32)));
using Bits = uint32_t __attribute__((vector_size(32)));
using FloatsAt = float __attribute__((vector_size(32), aligned(4), may_alias));

constexpr int64_t kTokens = 48;         // of a block; divides by the rows of both register tiles
constexpr int64_t kForwardPanel = 96;   // hidden units held at once: 18 KiB
constexpr int64_t kBackwardPanel = 48;  // two such pieces are held: 2 x 9 KiB
constexpr int64_t kChunk = 11 * kTokens;
constexpr int64_t kMaxChunks = 32;  // bounds the memory of partial weight gradients

Floats load(const float* p) { return *reinterpret_cast<const FloatsAt*>(p); }
void store(float* p, Floats v) { *reinterpret_cast<FloatsAt*>(p) = v; }
int64_t ceil_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

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

// ---- the layer ------------------------------------------------------------------------------

// Weights in the orders that the tiles read. Rows are padded with zeros to `stride` channels.
struct Layer {
  int64_t units, channels, stride;
  std::vector<float> w1_tiles, w2_tiles;  // [units / 16, channels, 16]
  std::vector<float> w1_rows, w2_rows;    // [units, stride]
  std::vector<float> b1;                  // padded to a multiple of 16
};

void pack_tiles(const float* w, int64_t unit_step, int64_t channel_step, Layer& layer,
                std::vector<float>& tiles) {
  tiles.assign(ceil_to(layer.units, 16) * layer.channels, 0.0f);
  for (int64_t f = 0; f < layer.units; ++f)
    for (int64_t c = 0; c < layer.channels; ++c)
      tiles[(f / 16 * layer.channels + c) * 16 + f % 16] = w[f * unit_step + c * channel_step];
}

void pack_rows(const float* w, int64_t unit_step, int64_t channel_step, Layer& layer,
               std::vector<float>& rows) {
  rows.assign(layer.units * layer.stride, 0.0f);
  for (int64_t f = 0; f < layer.units; ++f)
    for (int64_t c = 0; c < layer.channels; ++c)
      rows[f * layer.stride + c] = w[f * unit_step + c * channel_step];
}

// Copies `count` rows of `channels`, times `scale`, into padded rows; rows up to `padded` are zero.
void copy_rows(const float* from, int64_t count, const Layer& layer, float scale, int64_t padded,
               float* to) {
  std::fill(to, to + padded * layer.stride, 0.0f);
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < layer.channels; ++c)
      to[t * layer.stride + c] = scale * from[t * layer.channels + c];
}

inline Floats masked(const float* at, Ints keep) {
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(load(at)) & keep);
}

// hidden[48, panel] = keep * relu(x w1' + b1), not yet scaled by 1 / (1 - p).
template <bool kDrop>
void hidden_panel(const Layer& layer, const float* x, const TokenKey* keys, int32_t threshold,
                  int64_t first_unit, int64_t tiles, int64_t panel, float* hidden) {
  for (int64_t j = 0; j < tiles; ++j) {
    const int64_t unit = first_unit + 16 * j;
    const float *tile = layer.w1_tiles.data() + unit * layer.channels, *b1 = layer.b1.data() + unit;
    const Bits column = column_keys(unit);
    float* out = hidden + 16 * j;
    for (int64_t t = 0; t < kTokens; t += 6)
      project(x + t * layer.stride, layer.stride, tile, layer.channels, load(b1), load(b1 + 8),
              out + t * panel, panel);
    for (int64_t t = 0; t < kTokens; ++t, out += panel) {
      Ints left = ~(load(out) <= 0.0f), right = ~(load(out + 8) <= 0.0f);
      if constexpr (kDrop) {
        Ints low, high;
        keep_masks(keys[t], column, threshold, low, high);
        left &= low, right &= high;
      }
      store(out, masked(out, left));
      store(out + 8, masked(out + 8, right));
    }
  }
}

// grad_hidden[48, panel] = (grad_y w2) where hidden is not 0; its sum over tokens goes to grad_b1.
void grad_hidden_panel(const Layer& layer, const float* grad_y, const float* hidden,
                       int64_t first_unit, int64_t tiles, int64_t panel, int64_t tokens,
                       float* grad_hidden, float* grad_b1) {
  for (int64_t j = 0; j < tiles; ++j) {
    const float* tile = layer.w2_tiles.data() + (first_unit + 16 * j) * layer.channels;
    const float* kept = hidden + 16 * j;
    float *out = grad_hidden + 16 * j, *bias = grad_b1 + first_unit + 16 * j;
    for (int64_t t = 0; t < kTokens; t += 6)
      project(grad_y + t * layer.stride, layer.stride, tile, layer.channels, Floats{}, Floats{},
              out + t * panel, panel);
    Floats left_sum = {}, right_sum = {};
    for (int64_t t = 0; t < tokens; ++t, out += panel, kept += panel) {
      const Floats left = masked(out, ~(load(kept) <= 0.0f));
      const Floats right = masked(out + 8, ~(load(kept + 8) <= 0.0f));
      left_sum += left, right_sum += right;
      store(out, left);
      store(out + 8, right);
    }
    store(bias, load(bias) + left_sum);
    store(bias + 8, load(bias + 8) + right_sum);
  }
}

void hidden_any(const Layer& layer, const Dropout& dropout, const float* x, const TokenKey* keys,
                int64_t first_unit, int64_t tiles, int64_t panel, float* hidden) {
  if (dropout.threshold > 0)
    hidden_panel<true>(layer, x, keys, dropout.threshold, first_unit, tiles, panel, hidden);
  else
    hidden_panel<false>(layer, x, keys, 0, first_unit, tiles, panel, hidden);
}

void forward_block(const Layer& layer, const Dropout& dropout, const float* x, const float* b2,
                   int64_t first, int64_t count, float* scratch, float* y) {
  const int64_t stride = layer.stride, panel = kForwardPanel;
  float *rows = scratch, *sums = rows + kTokens * stride, *hidden = sums + kTokens * stride;
  TokenKey keys[kTokens];
  for (int64_t t = 0; t < kTokens; ++t) keys[t] = dropout.key(first + t);
  copy_rows(x + first * layer.channels, count, layer, 1.0f, kTokens, rows);
  std::fill(sums, sums + kTokens * stride, 0.0f);
  for (int64_t f = 0; f < layer.units; f += panel) {
    const int64_t units = std::min(panel, layer.units - f);
    hidden_any(layer, dropout, rows, keys, f, (units + 15) / 16, panel, hidden);
    add_products(hidden, panel, 1, layer.w2_rows.data() + f * stride, stride, units, sums, kTokens);
  }
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < layer.channels; ++c)
      y[(first + t) * layer.channels + c] = b2[c] + dropout.scale * sums[t * stride + c];
}

// Gradients of one chunk of tokens: grad_x is written, weight gradients are this chunk's own.
struct Partial {
  float *w1, *w2, *b1, *b2;  // [units, stride] twice, [units, padded to 16], [stride]
};

void sum_rows(const float* rows, int64_t count, const Layer& layer, float* out) {
  for (int64_t begin = 0; begin < count; begin += kTokens) {  // in two levels, for accuracy
    const int64_t end = std::min(begin + kTokens, count);
    for (int64_t c = 0; c < layer.channels; ++c) {
      float sum = 0.0f;
      for (int64_t t = begin; t < end; ++t) sum += rows[t * layer.channels + c];
      out[c] += sum;
    }
  }
}

void backward_chunk(const Layer& layer, const Dropout& dropout, const float* x, const float* grad_y,
                    int64_t first, int64_t count, bool need_x, bool need_w, float* grad_x,
                    Partial partial) {
  const int64_t stride = layer.stride, panel = kBackwardPanel, padded = ceil_to(count, kTokens);
  const size_t size = padded * stride;
  std::unique_ptr<float[]> scratch(new float[3 * size + 2 * kTokens * panel]);
  float *rows = scratch.get(), *grads = rows + size, *grad_rows = grads + size;
  float *hidden = grad_rows + size, *grad_hidden = hidden + kTokens * panel;
  std::vector<TokenKey> keys(padded);
  for (int64_t t = 0; t < padded; ++t) keys[t] = dropout.key(first + t);
  copy_rows(x + first * layer.channels, count, layer, 1.0f, padded, rows);
  // Scaling grad_y once scales both its product with w2 and its product with the hidden values.
  copy_rows(grad_y + first * layer.channels, count, layer, dropout.scale, padded, grads);
  std::fill(grad_rows, grad_rows + size, 0.0f);
  sum_rows(grad_y + first * layer.channels, count, layer, partial.b2);

  for (int64_t f = 0; f < layer.units; f += panel) {
    const int64_t units = std::min(panel, layer.units - f), tiles = (units + 15) / 16;
    for (int64_t t = 0; t < count; t += kTokens) {
      const int64_t tokens = std::min(kTokens, count - t);
      const float *x_block = rows + t * stride, *grad_block = grads + t * stride;
      hidden_any(layer, dropout, x_block, keys.data() + t, f, tiles, panel, hidden);
      grad_hidden_panel(layer, grad_block, hidden, f, tiles, panel, tokens, grad_hidden,
                        partial.b1);
      if (need_w) {
        add_products(grad_hidden, 1, panel, x_block, stride, tokens, partial.w1 + f * stride,
                     units);
        add_products(hidden, 1, panel, grad_block, stride, tokens, partial.w2 + f * stride, units);
      }
      if (need_x)
        add_products(grad_hidden, panel, 1, layer.w1_rows.data() + f * stride, stride, units,
                     grad_rows + t * stride, kTokens);
    }
  }
  if (need_x)
    for (int64_t t = 0; t < count; ++t)
      std::copy_n(grad_rows + t * stride, layer.channels, grad_x + (first + t) * layer.channels);
}

Layer empty_layer(const Tensor& w1) {
  Layer layer{};
  layer.units = w1.size(0), layer.channels = w1.size(1);
  layer.stride = ceil_to(layer.channels, 32);
  return layer;
}

void pack_bias(const Tensor& b1, Layer& layer) {
  layer.b1.assign(ceil_to(layer.units, 16), 0.0f);
  std::copy_n(b1.const_data_ptr<float>(), layer.units, layer.b1.data());
}

Dropout dropout_of(double p, const Tensor& seed) {
  const int32_t threshold = static_cast<int32_t>(p * 65536.0 + 0.5);
  // At p = 1 nothing is kept and the scale does not matter, but it must be finite.
  const float scale = threshold < 65536 ? 65536.0f / static_cast<float>(65536 - threshold) : 0.0f;
  return {threshold, scale, static_cast<uint64_t>(seed.const_data_ptr<int64_t>()[0])};
}

void check(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float, "fused_ffn: ", name, " must be float32");
}

}  // namespace

Tensor fused_ffn_cpu(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                     const Tensor& b2, const Tensor& seed, double p) {
  check(x, "x"), check(w1, "w1"), check(b1, "b1"), check(w2, "w2"), check(b2, "b2");
  const Tensor xc = torch::stable::contiguous(x), w1c = torch::stable::contiguous(w1),
               w2c = torch::stable::contiguous(w2), b1c = torch::stable::contiguous(b1),
               b2c = torch::stable::contiguous(b2);
  const int64_t tokens = x.size(0);
  Layer layer = empty_layer(w1);
  Tensor y = torch::stable::new_empty(x, {tokens, layer.channels});
  if (tokens == 0) return y;
  pack_bias(b1c, layer);
  pack_tiles(w1c.const_data_ptr<float>(), layer.channels, 1, layer, layer.w1_tiles);
  pack_rows(w2c.const_data_ptr<float>(), 1, layer.units, layer, layer.w2_rows);
  const Dropout dropout = dropout_of(p, seed);
  const float *x_ptr = xc.const_data_ptr<float>(), *b2_ptr = b2c.const_data_ptr<float>();
  float* y_ptr = y.mutable_data_ptr<float>();
  const int64_t blocks = (tokens + kTokens - 1) / kTokens;
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(kTokens * (2 * layer.stride + kForwardPanel));
    for (int64_t b = begin; b < end; ++b)
      forward_block(layer, dropout, x_ptr, b2_ptr, b * kTokens,
                    std::min(kTokens, tokens - b * kTokens), scratch.data(), y_ptr);
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_ffn_backward_cpu(
    const Tensor& grad_y, const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
    const Tensor& seed, double p, bool need_x, bool need_w) {
  check(grad_y, "grad_y"), check(x, "x"), check(w1, "w1"), check(b1, "b1"), check(w2, "w2");
  const Tensor gc = torch::stable::contiguous(grad_y), xc = torch::stable::contiguous(x),
               w1c = torch::stable::contiguous(w1), w2c = torch::stable::contiguous(w2),
               b1c = torch::stable::contiguous(b1);
  const int64_t tokens = x.size(0);
  Layer layer = empty_layer(w1);
  const int64_t units = layer.units, channels = layer.channels, stride = layer.stride;
  pack_bias(b1c, layer);
  const float *w1_ptr = w1c.const_data_ptr<float>(), *w2_ptr = w2c.const_data_ptr<float>();
  pack_tiles(w1_ptr, channels, 1, layer, layer.w1_tiles);
  pack_tiles(w2_ptr, 1, units, layer, layer.w2_tiles);
  if (need_x) pack_rows(w1_ptr, channels, 1, layer, layer.w1_rows);
  const Dropout dropout = dropout_of(p, seed);

  Tensor grad_x = torch::stable::new_empty(x, {need_x ? tokens : 0, channels});
  Tensor grad_w1 = torch::stable::new_empty(x, {need_w ? units : 0, channels});
  Tensor grad_b1 = torch::stable::new_empty(x, {units});
  Tensor grad_w2 = torch::stable::new_empty(x, {channels, need_w ? units : 0});
  Tensor grad_b2 = torch::stable::new_empty(x, {channels});
  const float *x_ptr = xc.const_data_ptr<float>(), *g_ptr = gc.const_data_ptr<float>();
  float* grad_x_ptr = grad_x.mutable_data_ptr<float>();

  const int64_t chunk = std::max(kChunk, ceil_to((tokens + kMaxChunks - 1) / kMaxChunks, kTokens));
  const int64_t chunks = (tokens + chunk - 1) / chunk;
  const int64_t w_size = need_w ? units * stride : 0, b1_size = ceil_to(units, 16);
  const int64_t size = 2 * w_size + b1_size + stride;
  std::unique_ptr<float[]> partials(new float[chunks * size]);
  const auto partial_of = [&](int64_t i) {
    float* base = partials.get() + i * size;
    return Partial{base, base + w_size, base + 2 * w_size, base + 2 * w_size + b1_size};
  };
  torch::stable::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::fill_n(partials.get() + i * size, size, 0.0f);
      backward_chunk(layer, dropout, x_ptr, g_ptr, i * chunk, std::min(chunk, tokens - i * chunk),
                     need_x, need_w, grad_x_ptr, partial_of(i));
    }
  });

  const auto total = [&](auto member, int64_t at) {
    float sum = 0.0f;
    for (int64_t i = 0; i < chunks; ++i) sum += (partial_of(i).*member)[at];
    return sum;
  };
  float *w1_out = grad_w1.mutable_data_ptr<float>(), *b1_out = grad_b1.mutable_data_ptr<float>(),
        *w2_out = grad_w2.mutable_data_ptr<float>(), *b2_out = grad_b2.mutable_data_ptr<float>();
  for (int64_t f = 0; f < units; ++f) {
    b1_out[f] = total(&Partial::b1, f);
    for (int64_t c = 0; need_w && c < channels; ++c) {
      w1_out[f * channels + c] = total(&Partial::w1, f * stride + c);
      w2_out[c * units + f] = total(&Partial::w2, f * stride + c);
    }
  }
  for (int64_t c = 0; c < channels; ++c) b2_out[c] = total(&Partial::b2, c);
  return {grad_x, grad_w1, grad_b1, grad_w2, grad_b2};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("fused_ffn", TORCH_BOX(&c2v::fused_ffn_cpu));
  m.impl("fused_ffn_backward", TORCH_BOX(&c2v::fused_ffn_backward_cpu));
}
