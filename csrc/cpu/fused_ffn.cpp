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
// Clients with weights and tokens of their own go one after another: the bits of each alone.
#include <memory>
#include <tuple>
#include <vector>

#include "../ops.h"
#include "fused_ffn_tiles.h"

namespace c2v {
namespace {

constexpr int64_t kTokens = 48;         // of a block; divides by the rows of both register tiles
constexpr int64_t kForwardPanel = 96;   // hidden units held at once: 18 KiB
constexpr int64_t kBackwardPanel = 48;  // two such pieces are held: 2 x 9 KiB
constexpr int64_t kChunk = 11 * kTokens;
constexpr int64_t kMaxChunks = 32;  // bounds the memory of partial weight gradients

int64_t ceil_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

using Buffer = std::unique_ptr<float[]>;

// Weights in the orders that the register tiles read; what lies beyond units or channels is zero.
struct Layer {
  int64_t units, channels;
  int64_t stride;             // channels rounded up to 32
  Buffer w1_tiles, w2_tiles;  // [units / 16, channels, 16]
  Buffer w1_rows, w2_rows;    // [units, stride]
  Buffer b1;                  // [units], in whole tiles
};

// Packs the matrix whose element of unit f and channel c is w[f * unit_step + c * channel_step].
template <bool kTiles>
Buffer pack(const Layer& layer, const float* w, int64_t unit_step, int64_t channel_step) {
  const int64_t tiles = (layer.units + 15) / 16;
  Buffer out(new float[16 * tiles * layer.stride]());
  for (int64_t tile = 0; tile < tiles; ++tile)
    for (int64_t c = 0; c < layer.channels; ++c)
      for (int64_t f = 16 * tile; f < std::min(16 * tile + 16, layer.units); ++f)
        out[kTiles ? 16 * (tile * layer.channels + c) + f % 16 : f * layer.stride + c] =
            w[f * unit_step + c * channel_step];
  return out;
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
    const float *tile = layer.w1_tiles.get() + unit * layer.channels, *b1 = layer.b1.get() + unit;
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
    const float* tile = layer.w2_tiles.get() + (first_unit + 16 * j) * layer.channels;
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
    add_products(hidden, panel, 1, layer.w2_rows.get() + f * stride, stride, units, sums, kTokens);
  }
  for (int64_t t = 0; t < count; ++t)
    for (int64_t c = 0; c < layer.channels; ++c)
      y[(first + t) * layer.channels + c] = b2[c] + dropout.scale * sums[t * stride + c];
}

// Weight gradients of one chunk of tokens, in one piece of memory.
struct Partial {
  float *w1, *w2, *b1, *b2;  // [units, stride] twice (if needed), [units in whole tiles], [stride]

  static int64_t size(const Layer& layer, bool need_w) {
    return (need_w ? 2 * layer.units * layer.stride : 0) + ceil_to(layer.units, 16) + layer.stride;
  }
  Partial(const Layer& layer, bool need_w, float* base) {
    w1 = base, w2 = w1 + (need_w ? layer.units * layer.stride : 0);
    b1 = w2 + (w2 - w1), b2 = b1 + ceil_to(layer.units, 16);
  }
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
  Buffer scratch(new float[3 * size + 2 * kTokens * panel]);
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
        add_products(grad_hidden, panel, 1, layer.w1_rows.get() + f * stride, stride, units,
                     grad_rows + t * stride, kTokens);
    }
  }
  if (need_x)
    for (int64_t t = 0; t < count; ++t)
      std::copy_n(grad_rows + t * stride, layer.channels, grad_x + (first + t) * layer.channels);
}

// Partials are added in order into the first, element by element: any split over threads gives
// the same bits.
void add_partials(float* partials, int64_t chunks, int64_t size) {
  constexpr int64_t kBlock = 1024;
  torch::stable::parallel_for(0, (size + kBlock - 1) / kBlock, 16, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      for (int64_t i = 1; i < chunks; ++i) {
        const int64_t last = std::min((b + 1) * kBlock, size);
        const float* from = partials + i * size;
#pragma omp simd
        for (int64_t k = b * kBlock; k < last; ++k) partials[k] += from[k];
      }
  });
}

void unpack(const Layer& layer, const Partial& sum, float* w1, float* w2) {
  for (int64_t f = 0; f < layer.units; f += 16)  // by tiles: transposing w2 stays in cache
    for (int64_t c = 0; c < layer.channels; ++c)
      for (int64_t g = f; g < std::min(f + 16, layer.units); ++g) {
        w1[g * layer.channels + c] = sum.w1[g * layer.stride + c];
        w2[c * layer.units + g] = sum.w2[g * layer.stride + c];
      }
}

Layer pack_w1(const float* w1, const float* b1, int64_t units, int64_t channels) {
  Layer layer{};
  layer.units = units, layer.channels = channels, layer.stride = ceil_to(channels, 32);
  layer.w1_tiles = pack<true>(layer, w1, channels, 1);
  layer.b1.reset(new float[ceil_to(units, 16)]());
  std::copy_n(b1, units, layer.b1.get());
  return layer;
}

Dropout dropout_of(double p, int64_t seed) {
  const int32_t threshold = static_cast<int32_t>(p * 65536.0 + 0.5);
  // At p = 1 nothing is kept and the scale does not matter, but it must be finite.
  const float scale = threshold < 65536 ? 65536.0f / static_cast<float>(65536 - threshold) : 0.0f;
  return {threshold, scale, static_cast<uint64_t>(seed)};
}

// Contiguous float32, or an error that names the argument.
Tensor prepared(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float, "fused_ffn: ", name, " must be float32");
  return torch::stable::contiguous(t);
}

// Weights as they lie in memory: those of one client.
struct Weights {
  const float *w1, *b1, *w2;
  int64_t units, channels;

  Weights of_client(int64_t client) const {
    const int64_t size = units * channels;
    return {w1 + client * size, b1 + client * units, w2 + client * size, units, channels};
  }
};

void forward(const Weights& weights, const Dropout& dropout, const float* x, const float* b2,
             int64_t tokens, float* y) {
  Layer layer = pack_w1(weights.w1, weights.b1, weights.units, weights.channels);
  layer.w2_rows = pack<false>(layer, weights.w2, 1, weights.units);
  torch::stable::parallel_for(
      0, (tokens + kTokens - 1) / kTokens, 1, [&](int64_t begin, int64_t end) {
        Buffer scratch(new float[kTokens * (2 * layer.stride + kForwardPanel)]);
        for (int64_t b = begin; b < end; ++b)
          forward_block(layer, dropout, x, b2, b * kTokens,
                        std::min(kTokens, tokens - b * kTokens), scratch.get(), y);
      });
}

// Where the gradients of one client go; x, and w1 and w2, are null when not needed.
struct Gradients {
  float *x, *w1, *b1, *w2, *b2;
};

void backward(const Weights& weights, const Dropout& dropout, const float* x, const float* grad_y,
              int64_t tokens, const Gradients& out) {
  const bool need_x = out.x, need_w = out.w1;
  Layer layer = pack_w1(weights.w1, weights.b1, weights.units, weights.channels);
  layer.w2_tiles = pack<true>(layer, weights.w2, 1, weights.units);
  if (need_x) layer.w1_rows = pack<false>(layer, weights.w1, weights.channels, 1);
  const int64_t chunk = std::max(kChunk, ceil_to((tokens + kMaxChunks - 1) / kMaxChunks, kTokens));
  const int64_t chunks = std::max<int64_t>(1, (tokens + chunk - 1) / chunk);  // 0 tokens: zeros
  const int64_t size = Partial::size(layer, need_w);
  Buffer partials(new float[chunks * size]);
  torch::stable::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* base = partials.get() + i * size;
      std::fill_n(base, size, 0.0f);
      backward_chunk(layer, dropout, x, grad_y, i * chunk, std::min(chunk, tokens - i * chunk),
                     need_x, need_w, out.x, Partial(layer, need_w, base));
    }
  });
  add_partials(partials.get(), chunks, size);
  const Partial sum(layer, need_w, partials.get());
  if (need_w) unpack(layer, sum, out.w1, out.w2);
  std::copy_n(sum.b1, layer.units, out.b1);
  std::copy_n(sum.b2, layer.channels, out.b2);
}

int64_t clients_of(const Tensor& w1) { return w1.dim() == 3 ? w1.size(0) : 1; }

// [k, a, b] or [a, b], [k, a] or [a], as w1 has clients or not.
Tensor new_like(const Tensor& w1, int64_t a, int64_t b) {
  return w1.dim() == 3 ? torch::stable::new_empty(w1, {w1.size(0), a, b})
                       : torch::stable::new_empty(w1, {a, b});
}
Tensor new_like(const Tensor& w1, int64_t a) {
  return w1.dim() == 3 ? torch::stable::new_empty(w1, {w1.size(0), a})
                       : torch::stable::new_empty(w1, {a});
}

}  // namespace

Tensor fused_ffn_cpu(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
                     const Tensor& b2, const Tensor& seed, double p) {
  const Tensor xc = prepared(x, "x"), w1c = prepared(w1, "w1"), b1c = prepared(b1, "b1"),
               w2c = prepared(w2, "w2"), b2c = prepared(b2, "b2"),
               seeds = torch::stable::contiguous(seed);
  const int64_t tokens = x.size(-2), units = w1.size(-2), channels = w1.size(-1);
  Tensor y = new_like(w1, tokens, channels);
  if (tokens == 0) return y;
  const Weights weights{w1c.const_data_ptr<float>(), b1c.const_data_ptr<float>(),
                        w2c.const_data_ptr<float>(), units, channels};
  const float *x_ptr = xc.const_data_ptr<float>(), *b2_ptr = b2c.const_data_ptr<float>();
  float* y_ptr = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < clients_of(w1); ++i)
    forward(weights.of_client(i), dropout_of(p, seeds.const_data_ptr<int64_t>()[i]),
            x_ptr + i * tokens * channels, b2_ptr + i * channels, tokens,
            y_ptr + i * tokens * channels);
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_ffn_backward_cpu(
    const Tensor& grad_y, const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2,
    const Tensor& seed, double p, bool need_x, bool need_w) {
  const Tensor gc = prepared(grad_y, "grad_y"), xc = prepared(x, "x"), w1c = prepared(w1, "w1"),
               b1c = prepared(b1, "b1"), w2c = prepared(w2, "w2"),
               seeds = torch::stable::contiguous(seed);
  const int64_t tokens = x.size(-2), units = w1.size(-2), channels = w1.size(-1);
  const Weights weights{w1c.const_data_ptr<float>(), b1c.const_data_ptr<float>(),
                        w2c.const_data_ptr<float>(), units, channels};
  const float *x_ptr = xc.const_data_ptr<float>(), *g_ptr = gc.const_data_ptr<float>();
  Tensor grad_x = new_like(w1, need_x ? tokens : 0, channels);
  Tensor grad_w1 = new_like(w1, need_w ? units : 0, channels), grad_b1 = new_like(w1, units);
  Tensor grad_w2 = new_like(w1, channels, need_w ? units : 0), grad_b2 = new_like(w1, channels);
  float *of_x = grad_x.mutable_data_ptr<float>(), *of_w1 = grad_w1.mutable_data_ptr<float>();
  float *of_b1 = grad_b1.mutable_data_ptr<float>(), *of_w2 = grad_w2.mutable_data_ptr<float>();
  float* of_b2 = grad_b2.mutable_data_ptr<float>();
  for (int64_t i = 0; i < clients_of(w1); ++i) {
    const int64_t row = i * tokens * channels, weight = i * units * channels;
    const Gradients out{need_x ? of_x + row : nullptr, need_w ? of_w1 + weight : nullptr,
                        of_b1 + i * units, need_w ? of_w2 + weight : nullptr, of_b2 + i * channels};
    backward(weights.of_client(i), dropout_of(p, seeds.const_data_ptr<int64_t>()[i]), x_ptr + row,
             g_ptr + row, tokens, out);
  }
  return {grad_x, grad_w1, grad_b1, grad_w2, grad_b2};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("fused_ffn", TORCH_BOX(&c2v::fused_ffn_cpu));
  m.impl("fused_ffn_backward", TORCH_BOX(&c2v::fused_ffn_backward_cpu));
}
