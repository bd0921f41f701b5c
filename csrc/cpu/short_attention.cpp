// short_attention, short_attention_backward: softmax(q kᵀ / √w) v for few tokens and narrow heads,
// where a product of matrices is a handful of numbers wide. One task per sample and head. Eight
// queries share a vector, so that a key and its value are broadcast and no sum goes across a
// vector; only the gradients of keys and values do, once at the end.
#include <cmath>
#include <limits>
#include <vector>

#include "gemm.h"

namespace c2v {
namespace {

typedef int32_t int8s __attribute__((vector_size(32)));

// exp for x ≤ 0 within about one unit in the last place; NaN stays NaN. x = n ln 2 + r, and ln 2
// in two parts, so that r is exact.
inline float8 exp_of_negative(float8 x) {
  const int8s tiny = x < -87.0f;
  const float8 shift = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f,
                        12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};  // 1.5 · 2²³
  const float8 rounded = (x * 1.44269504f + shift) - shift;
  const float8 r = (x - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
  float8 y = r * (1 / 5040.0f) + 1 / 720.0f;
  for (const float c : {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1.0f, 1.0f}) y = y * r + c;
  const int8s n = __builtin_convertvector(tiny ? float8{} : rounded, int8s);
  const int8s bits = (n + 127) << 23;
  return tiny ? float8{} : y * reinterpret_cast<const float8&>(bits);
}

// W > 0: the width, known to the compiler, whose loops over it are then unrolled.
template <int64_t W>
struct Sizes {
  int64_t tokens, heads, given_width;
  constexpr int64_t width() const { return W > 0 ? W : given_width; }
  int64_t row() const { return 3 * heads * width(); }  // of qkv, a token
  int64_t out() const { return heads * width(); }      // of the result
  int64_t padded() const { return round_up(tokens, 8); }
};

// The numbers of one head: queries in vectors of eight tokens, keys and values as they come.
template <int64_t W>
struct Head {
  Sizes<W> s;
  std::vector<float> q, k, v;       // q [w][padded], scaled; k, v [tokens][w]
  std::vector<float> shares;        // [tokens (keys)][8 queries]

  explicit Head(Sizes<W> sizes)
      : s(sizes), q(s.width() * s.padded()), k(s.tokens * s.width()), v(s.tokens * s.width()),
        shares(s.tokens * 8) {}

  void read(const float* qkv, int64_t head) {
    const float scale = 1 / std::sqrt(static_cast<float>(s.width()));
    for (int64_t t = 0; t < s.tokens; ++t) {
      const float* from = qkv + t * s.row() + head * s.width();
      for (int64_t c = 0; c < s.width(); ++c) {
        q[c * s.padded() + t] = from[c] * scale;
        k[t * s.width() + c] = from[s.out() + c];
        v[t * s.width() + c] = from[2 * s.out() + c];
      }
    }
  }

  // shares of the queries t … t + 7 in every key.
  void attend(int64_t t) {
    float8 most = float8{} - std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < s.tokens; ++j) {
      float8 score = {};
      for (int64_t c = 0; c < s.width(); ++c)
        score += load8(&q[c * s.padded() + t]) * k[j * s.width() + c];
      most = score > most ? score : most;
      store8(&shares[8 * j], score);
    }
    float8 sum = {};
    for (int64_t j = 0; j < s.tokens; ++j) {
      const float8 e = exp_of_negative(load8(&shares[8 * j]) - most);
      sum += e;
      store8(&shares[8 * j], e);
    }
    const float8 inverse = 1.0f / sum;
    for (int64_t j = 0; j < s.tokens; ++j) store8(&shares[8 * j], load8(&shares[8 * j]) * inverse);
  }

  // y [tokens][heads · w], at this head: the shares' mixture of the values.
  void mix(int64_t t, float* y) const {
    for (int64_t c = 0; c < s.width(); ++c) {
      float8 sum = {};
      for (int64_t j = 0; j < s.tokens; ++j) sum += load8(&shares[8 * j]) * v[j * s.width() + c];
      for (int64_t i = 0; i < std::min<int64_t>(8, s.tokens - t); ++i)
        y[(t + i) * s.out() + c] = sum[i];
    }
  }
};

// d shares_j = <dy, v_j>, d score_j = shares_j (d shares_j - sum_i shares_i d shares_i).
template <int64_t W>
struct HeadGradient {
  Head<W> head;
  std::vector<float> dy, ds, dk, dv;  // [w][padded]; [tokens][8]; sums [tokens][w][8], by lane

  explicit HeadGradient(Sizes<W> s)
      : head(s), dy(s.width() * s.padded()), ds(s.tokens * 8), dk(s.tokens * s.width() * 8),
        dv(dk.size()) {}

  void read(const float* qkv, const float* grad, int64_t h) {
    const Sizes<W>& s = head.s;
    head.read(qkv, h);
    for (int64_t t = 0; t < s.tokens; ++t)
      for (int64_t c = 0; c < s.width(); ++c)
        dy[c * s.padded() + t] = grad[t * s.out() + h * s.width() + c];
    std::fill(dk.begin(), dk.end(), 0.0f);
    std::fill(dv.begin(), dv.end(), 0.0f);
  }

  // The part of eight queries: dq is written, dk and dv are added to.
  void add(int64_t t, float* dq) {
    const Sizes<W>& s = head.s;
    head.attend(t);
    float8 mean = {};
    for (int64_t j = 0; j < s.tokens; ++j) {
      const float8 share = load8(&head.shares[8 * j]);
      float8 d = {};
      for (int64_t c = 0; c < s.width(); ++c) {
        const float8 g = load8(&dy[c * s.padded() + t]);
        d += g * head.v[j * s.width() + c];
        float* sum = &dv[8 * (j * s.width() + c)];
        store8(sum, load8(sum) + share * g);
      }
      mean += share * d;
      store8(&ds[8 * j], d);
    }
    for (int64_t j = 0; j < s.tokens; ++j) {
      const float8 d = load8(&head.shares[8 * j]) * (load8(&ds[8 * j]) - mean);
      store8(&ds[8 * j], d);
      for (int64_t c = 0; c < s.width(); ++c) {
        float* sum = &dk[8 * (j * s.width() + c)];
        store8(sum, load8(sum) + d * load8(&head.q[c * s.padded() + t]));  // q is scaled already
      }
    }
    const float scale = 1 / std::sqrt(static_cast<float>(s.width()));
    for (int64_t c = 0; c < s.width(); ++c) {
      float8 sum = {};
      for (int64_t j = 0; j < s.tokens; ++j)
        sum += load8(&ds[8 * j]) * head.k[j * s.width() + c];
      for (int64_t i = 0; i < std::min<int64_t>(8, s.tokens - t); ++i)
        dq[(t + i) * s.row() + c] = sum[i] * scale;
    }
  }

  void write_sums(float* grad) const {  // at dq of this head
    const Sizes<W>& s = head.s;
    for (int64_t j = 0; j < s.tokens; ++j)
      for (int64_t c = 0; c < s.width(); ++c) {
        grad[j * s.row() + s.out() + c] = across(&dk[8 * (j * s.width() + c)]);
        grad[j * s.row() + 2 * s.out() + c] = across(&dv[8 * (j * s.width() + c)]);
      }
  }

  static float across(const float* x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  }
};

float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

}  // namespace

// f(sizes), with the width as a constant where it is DSA-IGN's.
template <class F>
void with_sizes(const Tensor& qkv, int64_t heads, const F& f) {
  const int64_t tokens = qkv.size(1), width = qkv.size(2) / (3 * heads);
  if (width == 4) return f(Sizes<4>{tokens, heads, width});
  f(Sizes<0>{tokens, heads, width});
}

// qkv is contiguous [B, T, 3 · H · w]; the result [B, T, H · w].
Tensor short_attention_cpu(Tensor qkv, int64_t heads) {
  Tensor y = torch::stable::new_empty(qkv, {qkv.size(0), qkv.size(1), qkv.size(2) / 3});
  const float* from = floats(qkv);
  float* to = floats(y);
  with_sizes(qkv, heads, [&](auto s) {
    parallel_tasks(qkv.size(0), [&](int64_t b) {
      Head head(s);
      for (int64_t h = 0; h < heads; ++h) {
        head.read(from + b * s.tokens * s.row(), h);
        for (int64_t t = 0; t < s.tokens; t += 8) {
          head.attend(t);
          head.mix(t, to + b * s.tokens * s.out() + h * s.width());
        }
      }
    });
  });
  return y;
}

Tensor short_attention_backward_cpu(Tensor grad_y, Tensor qkv, int64_t heads) {
  Tensor grad = torch::stable::new_empty(qkv, {qkv.size(0), qkv.size(1), qkv.size(2)});
  const float *from = floats(qkv), *dy = floats(grad_y);
  float* to = floats(grad);
  with_sizes(qkv, heads, [&](auto s) {
    parallel_tasks(qkv.size(0), [&](int64_t b) {
      HeadGradient head(s);
      for (int64_t h = 0; h < heads; ++h) {
        head.read(from + b * s.tokens * s.row(), dy + b * s.tokens * s.out(), h);
        float* at = to + b * s.tokens * s.row() + h * s.width();
        for (int64_t t = 0; t < s.tokens; t += 8) head.add(t, at);
        head.write_sums(at);
      }
    });
  });
  return grad;
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("short_attention", TORCH_BOX(&c2v::short_attention_cpu));
  m.impl("short_attention_backward", TORCH_BOX(&c2v::short_attention_backward_cpu));
}
