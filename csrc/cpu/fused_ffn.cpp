// fused_ffn: y = W2 drop(relu(W1 x + b1)) + b2 and its gradients. The work is done by ffn/passes.h,
// for the vectors of this CPU.
//
// Forward: each token is one thread's. Backward: tokens are cut into chunks (a number that depends
// on their count alone), a chunk sums its own weight gradients, and chunks are added in order: the
// bits are those of any thread count. Clients with weights and tokens of their own go one after
// another: the bits of each alone.
#include "ffn/shape.h"
#include "vectors/kinds.h"

#include <memory>
#include <tuple>

namespace c2v {
namespace {

constexpr int64_t kTokens = kFfnTokens;
constexpr int64_t kChunk = 11 * kTokens;
constexpr int64_t kMaxChunks = 32;  // bounds the memory of partial weight gradients

struct Kind {  // of vectors
  int64_t tile;
  decltype(&avx2::ffn_forward) forward;
  decltype(&avx2::ffn_backward) backward;
  decltype(&avx2::ffn_forward_space) forward_space;
  decltype(&avx2::ffn_backward_space) backward_space;
};

const Kind& kind() {
  static const Kind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) {
      return Kind{avx512::ffn_tile(), avx512::ffn_forward, avx512::ffn_backward,
                  avx512::ffn_forward_space, avx512::ffn_backward_space};
    }
#endif
    return Kind{avx2::ffn_tile(), avx2::ffn_forward, avx2::ffn_backward,
                avx2::ffn_forward_space, avx2::ffn_backward_space};
  }();
  return chosen;
}

int64_t ceil_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

using Buffer = std::unique_ptr<float[]>;

// Weights as they lie in memory: those of one client.
struct Weights {
  const float *w1, *b1, *w2;
  int64_t units, channels;

  Weights of_client(int64_t client) const {
    const int64_t size = units * channels;
    return {w1 + client * size, b1 + client * units, w2 + client * size, units, channels};
  }
};

// The layer, and the memory of its parts.
struct Packed : FfnLayer {
  explicit Packed(const Weights& weights) : FfnLayer{}, from(weights) {
    units = from.units, channels = from.channels;
    tile = kind().tile, stride = ceil_to(channels, 32);
    w1_tiles = pack<true>(from.w1, channels, 1, buffers[0]);
    buffers[1].reset(new float[ceil_to(units, tile)]());
    std::copy_n(from.b1, units, buffers[1].get());
    b1 = buffers[1].get();
  }
  void pack_w1_rows() { w1_rows = pack<false>(from.w1, channels, 1, buffers[2]); }
  void pack_w2_rows() { w2_rows = pack<false>(from.w2, 1, units, buffers[3]); }
  void pack_w2_tiles() { w2_tiles = pack<true>(from.w2, 1, units, buffers[4]); }

 private:
  Weights from;
  Buffer buffers[5];

  // The matrix whose element of unit f and channel c is w[f * unit_step + c * channel_step].
  template <bool kTiles>
  const float* pack(const float* w, int64_t unit_step, int64_t channel_step, Buffer& out) {
    out.reset(new float[ceil_to(units, tile) * stride]());
    for (int64_t first = 0; first < units; first += tile)
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t f = first; f < std::min(first + tile, units); ++f)
          out[kTiles ? first * channels + tile * c + f - first : f * stride + c] =
              w[f * unit_step + c * channel_step];
    return out.get();
  }
};

// FfnPartial in one piece of memory.
struct Partial : FfnPartial {
  static int64_t size(const FfnLayer& layer, bool need_w) {
    return (need_w ? 2 * layer.units * layer.stride : 0) + ceil_to(layer.units, layer.tile) +
           layer.stride;
  }
  Partial(const FfnLayer& layer, bool need_w, float* base) : FfnPartial{} {
    const int64_t weights = need_w ? layer.units * layer.stride : 0;
    if (need_w) w1 = base, w2 = base + weights;
    b1 = base + 2 * weights, b2 = b1 + ceil_to(layer.units, layer.tile);
  }
};

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

void unpack(const FfnLayer& layer, const FfnPartial& sum, float* w1, float* w2) {
  for (int64_t f = 0; f < layer.units; f += 16)  // by tiles: transposing w2 stays in cache
    for (int64_t c = 0; c < layer.channels; ++c)
      for (int64_t g = f; g < std::min(f + 16, layer.units); ++g) {
        w1[g * layer.channels + c] = sum.w1[g * layer.stride + c];
        w2[c * layer.units + g] = sum.w2[g * layer.stride + c];
      }
}

FfnDropout dropout_of(double p, int64_t seed) {
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

void forward(const Weights& weights, const FfnDropout& dropout, const float* x, const float* b2,
             int64_t tokens, float* y) {
  Packed layer(weights);
  layer.pack_w2_rows();
  torch::stable::parallel_for(
      0, (tokens + kTokens - 1) / kTokens, 1, [&](int64_t begin, int64_t end) {
        const Buffer space(new float[kind().forward_space(layer)]);
        for (int64_t b = begin; b < end; ++b)
          kind().forward(layer, dropout, x, b2, b * kTokens,
                         std::min(kTokens, tokens - b * kTokens), space.get(), y);
      });
}

// Where the gradients of one client go; x, and w1 and w2, are null when not needed.
struct Gradients {
  float *x, *w1, *b1, *w2, *b2;
};

void backward(const Weights& weights, const FfnDropout& dropout, const float* x,
              const float* grad_y, int64_t tokens, const Gradients& out) {
  const bool need_w = out.w1;
  Packed layer(weights);
  layer.pack_w2_tiles();
  if (out.x) layer.pack_w1_rows();
  const int64_t chunk = std::max(kChunk, ceil_to((tokens + kMaxChunks - 1) / kMaxChunks, kTokens));
  const int64_t chunks = std::max<int64_t>(1, (tokens + chunk - 1) / chunk);  // 0 tokens: zeros
  const int64_t size = Partial::size(layer, need_w);
  Buffer partials(new float[chunks * size]);
  torch::stable::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    const Buffer space(new float[kind().backward_space(layer, std::min(chunk, tokens))]);
    for (int64_t i = begin; i < end; ++i) {
      float* base = partials.get() + i * size;
      std::fill_n(base, size, 0.0f);
      kind().backward(layer, dropout, x, grad_y, i * chunk, std::min(chunk, tokens - i * chunk),
                      space.get(), out.x, Partial(layer, need_w, base));
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
