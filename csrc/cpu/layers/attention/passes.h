// softmax(q kᵀ / √w) v of one sample, head by head, and its gradient. kVec queries share a vector, so
// that a key and its value are broadcast and no sum goes across a vector; only the gradients of keys
// and values do, once at the end.
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

// exp for x ≤ 0 within about one unit in the last place; NaN stays NaN. x = n ln 2 + r, and ln 2
// in two parts, so that r is exact.
inline Vec exp_of_negative(Vec x) {
  constexpr float shift = 12582912.0f;  // 1.5 · 2²³
  constexpr float factors[] = {1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1.0f, 1.0f};
  const Vec rounded = (x * 1.44269504f + shift) - shift;
  const Vec r = (x - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
  Vec y = r * (1 / 5040.0f) + 1 / 720.0f;
  for (const float c : factors) y = y * r + c;
  const auto tiny = x < -87.0f;
  const Lanes n = __builtin_convertvector(tiny ? Vec{} : rounded, Lanes);
  return tiny ? Vec{} : y * reinterpret_cast<Vec>((n + 127) << 23);
}

// W > 0: the width, known to the compiler, whose loops over it are then unrolled.
template <int64_t W>
struct Head {
  AttentionShape s;
  float *q, *k, *v;      // q [w][padded], scaled; k, v [tokens][w]
  float* shares;         // [tokens (keys)][kVec queries]
  float *dy, *ds;        // [w][padded]; [tokens][kVec]
  float *dk, *dv, *end;  // sums [tokens][w][kVec], by lane

  constexpr int64_t width() const { return W > 0 ? W : s.width; }
  int64_t in_vectors() const { return padded(s.tokens); }
  float scale() const { return 1 / __builtin_sqrtf(static_cast<float>(width())); }

  Head(const AttentionShape& shape, float* space) : s(shape) {
    const int64_t lanes = width() * in_vectors(), plain = padded(s.tokens * width());
    q = space, dy = q + lanes;
    k = dy + lanes, v = k + plain;
    shares = v + plain, ds = shares + s.tokens * kVec;
    dk = ds + s.tokens * kVec, dv = dk + plain * kVec, end = dv + plain * kVec;
  }

  void clear() const {  // lanes without a token
    std::memset(q, 0, sizeof(float) * 2 * width() * in_vectors());
  }

  void read(const float* qkv, int64_t head) const {
    const float by = scale();
    for (int64_t t = 0; t < s.tokens; ++t) {
      const float* from = qkv + t * s.row() + head * width();
      for (int64_t c = 0; c < width(); ++c) {
        q[c * in_vectors() + t] = from[c] * by;
        k[t * width() + c] = from[s.out() + c];
        v[t * width() + c] = from[2 * s.out() + c];
      }
    }
  }

  void read_gradient(const float* grad, int64_t head) const {
    for (int64_t t = 0; t < s.tokens; ++t)
      for (int64_t c = 0; c < width(); ++c)
        dy[c * in_vectors() + t] = grad[t * s.out() + head * width() + c];
    std::memset(dk, 0, sizeof(float) * (end - dk));
  }

  // shares of kVec queries from t on in every key.
  void attend(int64_t t) const {
    Vec most = Vec{} - __builtin_inff(), sum = {};
    for (int64_t j = 0; j < s.tokens; ++j) {
      Vec score = {};
      for (int64_t c = 0; c < width(); ++c)
        score += load(q + c * in_vectors() + t) * k[j * width() + c];
      most = score > most ? score : most;
      store(shares + kVec * j, score);
    }
    for (int64_t j = 0; j < s.tokens; ++j) {
      const Vec e = exp_of_negative(load(shares + kVec * j) - most);
      sum += e;
      store(shares + kVec * j, e);
    }
    const Vec inverse = 1.0f / sum;
    for (int64_t j = 0; j < s.tokens; ++j)
      store(shares + kVec * j, load(shares + kVec * j) * inverse);
  }

  // The lanes of `x` to the tokens from t on, `step` apart.
  void scatter(Vec x, int64_t t, float* to, int64_t step) const {
    for (int64_t i = 0; i < smaller(kVec, s.tokens - t); ++i) to[(t + i) * step] = x[i];
  }

  // y [tokens][heads · w], at this head: the shares' mixture of the values.
  void mix(int64_t t, float* y) const {
    for (int64_t c = 0; c < width(); ++c) {
      Vec sum = {};
      for (int64_t j = 0; j < s.tokens; ++j) sum += load(shares + kVec * j) * v[j * width() + c];
      scatter(sum, t, y + c, s.out());
    }
  }

  // d shares_j = <dy, v_j>, d score_j = shares_j (d shares_j - sum_i shares_i d shares_i). The part
  // of kVec queries: dq is written, dk and dv are added to.
  void add_gradients(int64_t t, float* dq) const {
    Vec mean = {};
    for (int64_t j = 0; j < s.tokens; ++j) {
      const Vec share = load(shares + kVec * j);
      Vec d = {};
      for (int64_t c = 0; c < width(); ++c) {
        const Vec g = load(dy + c * in_vectors() + t);
        d += g * v[j * width() + c];
        float* sum = dv + kVec * (j * width() + c);
        store(sum, load(sum) + share * g);
      }
      mean += share * d;
      store(ds + kVec * j, d);
    }
    for (int64_t j = 0; j < s.tokens; ++j) {
      const Vec d = load(shares + kVec * j) * (load(ds + kVec * j) - mean);
      store(ds + kVec * j, d);
      for (int64_t c = 0; c < width(); ++c) {
        float* sum = dk + kVec * (j * width() + c);
        store(sum, load(sum) + d * load(q + c * in_vectors() + t));  // q is scaled already
      }
    }
    for (int64_t c = 0; c < width(); ++c) {
      Vec sum = {};
      for (int64_t j = 0; j < s.tokens; ++j) sum += load(ds + kVec * j) * k[j * width() + c];
      scatter(sum * scale(), t, dq + c, s.row());
    }
  }

  // sums [tokens][w][kVec] over lanes, to [tokens][w] at `to`; they are overwritten.
  void write_sums(float* sums, float* to) const {
    const int64_t count = s.tokens * width();
    for (int64_t i = 0; i < count; i += kVec) {
      Vec rows[kVec];
      for (int l = 0; l < kVec; ++l) rows[l] = load(sums + kVec * (i + l));
      sum_lanes(rows);
      store(sums + i, rows[0]);
    }
    for (int64_t j = 0; j < s.tokens; ++j)
      for (int64_t c = 0; c < width(); ++c) to[j * s.row() + c] = sums[j * width() + c];
  }
};

template <int64_t W>
void forward(const AttentionShape& s, const float* qkv, float* y, float* space) {
  const Head<W> head(s, space);
  head.clear();
  for (int64_t h = 0; h < s.heads; ++h) {
    head.read(qkv, h);
    for (int64_t t = 0; t < s.tokens; t += kVec) {
      head.attend(t);
      head.mix(t, y + h * head.width());
    }
  }
}

template <int64_t W>
void backward(const AttentionShape& s, const float* qkv, const float* dy, float* grad,
              float* space) {
  const Head<W> head(s, space);
  head.clear();
  for (int64_t h = 0; h < s.heads; ++h) {
    head.read(qkv, h);
    head.read_gradient(dy, h);
    float* dq = grad + h * head.width();
    for (int64_t t = 0; t < s.tokens; t += kVec) {
      head.attend(t);
      head.add_gradients(t, dq);
    }
    head.write_sums(head.dk, dq + s.out());
    head.write_sums(head.dv, dq + 2 * s.out());
  }
}

}  // namespace

int64_t attention_space(const AttentionShape& s) {
  const Head<0> head(s, nullptr);
  return head.end - head.q;
}

// With the width as a constant where it is DSA-IGN's.
void attention_forward(const AttentionShape& s, const float* qkv, float* y, float* space) {
  (s.width == 4 ? forward<4> : forward<0>)(s, qkv, y, space);
}

void attention_backward(const AttentionShape& s, const float* qkv, const float* dy, float* grad,
                        float* space) {
  (s.width == 4 ? backward<4> : backward<0>)(s, qkv, dy, grad, space);
}

}  // namespace VECTORS
}  // namespace c2v
