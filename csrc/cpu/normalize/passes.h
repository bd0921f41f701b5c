// Group and batch norm with what follows them: a shortcut that is added, and a cut at 0 and at a
// most (ReLU, ReLU6). Images are rows of channels, contiguous, one row a pixel.
//
// Bound by memory. Statistics take one pass over x, by chunks of rows that stay in the cache: the
// mean of a chunk, then the squares of what differs from it; chunks are joined in double (Chan et
// al. 1983), so a mean that is large beside the deviation costs no digits. The result takes another
// pass, the gradient two: sums over rows, then what they make of every number. Of a group norm both
// see one image at a time. One thread does it, in a fixed order.
//
// Compiled once for each kind of vector (avx2.cpp, avx512.cpp). Nothing of the standard library with
// a body is used: the linker could take its AVX-512 code for all.
#include "shape.h"

#include <cstring>
#include <type_traits>

namespace c2v {
namespace NORM_NAMESPACE {
namespace {

constexpr int kVec = NORM_FLOATS;
#include "../vec.h"

// kWide vectors of channels, `c` the first; `count` of them are there if they do not fill one.
template <int kWide, bool kWhole>
struct Panel {
  static constexpr int wide = kWide;
  int64_t channels, c, count;

  Vec get(const float* row, int v) const {
    return kWhole ? load(row + c + v * kVec) : load_some(row + c, count);
  }
  void put(float* row, int v, Vec value) const {
    kWhole ? store(row + c + v * kVec, value) : store_some(row + c, value, count);
  }

  // sums[i][v] = the i-th of what add(row, v, sums) adds for all rows. A row alone would wait for
  // the sum before it where it is one vector wide.
  template <int kSums, class F>
  void over_rows(int64_t rows, Vec (&sums)[kSums][kWide], const F& add) const {
    constexpr int kApart = 4 / kWide;
    Vec apart[kApart][kWide][kSums] = {};
    int64_t r = 0;
    for (; r + kApart <= rows; r += kApart) {
      #pragma GCC unroll 4
      for (int a = 0; a < kApart; ++a) {
        #pragma GCC unroll 4
        for (int v = 0; v < kWide; ++v) add((r + a) * channels, v, apart[a][v]);
      }
    }
    for (; r < rows; ++r) {
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) add(r * channels, v, apart[0][v]);
    }
    #pragma GCC unroll 4
    for (int i = 0; i < kSums; ++i) {
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) {
        sums[i][v] = apart[0][v][i];
        #pragma GCC unroll 4
        for (int a = 1; a < kApart; ++a) sums[i][v] += apart[a][v][i];
      }
    }
  }
};

// f(panel) for all channels. What is left of the last vector is done with those before it once
// more: the same numbers are written twice.
template <class F>
inline void each_panel(int64_t channels, const F& f) {
  int64_t c = 0;
  for (; c + 4 * kVec <= channels; c += 4 * kVec) f(Panel<4, true>{channels, c, kVec});
  for (; c + kVec <= channels; c += kVec) f(Panel<1, true>{channels, c, kVec});
  if (c == channels) return;
  if (channels > kVec) return f(Panel<1, true>{channels, channels - kVec, kVec});
  f(Panel<1, false>{channels, 0, channels});
}

// f(first, rows) for the chunks of the rows of a part.
template <class F>
inline void each_chunk(const NormShape& s, const F& f) {
  for (int64_t r = 0; r < s.rows(); r += s.chunk()) f(r, smaller(s.chunk(), s.rows() - r));
}

// Of each channel of some rows: the mean, rounded, and the sums of what differs from it and of the
// squares of that.
void moments(const float* x, int64_t rows, int64_t channels, float* mean, float* rest,
             float* squares) {
  each_panel(channels, [&](const auto& panel) {
    constexpr int kWide = std::remove_reference_t<decltype(panel)>::wide;
    Vec middle[1][kWide], sums[2][kWide];
    panel.over_rows(rows, middle,
                    [&](int64_t row, int v, Vec* to) { to[0] += panel.get(x + row, v); });
    #pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) middle[0][v] /= static_cast<float>(rows);
    panel.over_rows(rows, sums, [&](int64_t row, int v, Vec* to) {
      const Vec apart = panel.get(x + row, v) - middle[0][v];
      to[0] += apart;
      to[1] += apart * apart;
    });
    #pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) panel.put(mean, v, middle[0][v]);
    #pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) panel.put(rest, v, sums[0][v]);
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) panel.put(squares, v, sums[1][v]);
  });
}

// mean and var of one part: of each channel, or of each group of them.
void statistics(const NormShape& s, const float* x, double* mean, double* var, float* space) {
  const int64_t channels = s.channels, each = s.in_group();
  float *chunk_mean = space, *rest = space + channels, *chunk_squares = rest + channels;
  double* total = reinterpret_cast<double*>(space + 4 * channels);  // the mean so far
  double* squares = total + channels;
  std::memset(total, 0, 2 * channels * sizeof(double));
  double before = 0;
  each_chunk(s, [&](int64_t first, int64_t rows) {
    moments(x + first * channels, rows, channels, chunk_mean, rest, chunk_squares);
    const double share = rows / (before + rows), across = before * share;
    for (int64_t c = 0; c < channels; ++c) {
      const double lacking = static_cast<double>(rest[c]) / rows;
      const double apart = chunk_mean[c] + lacking - total[c];
      total[c] += apart * share;
      squares[c] += chunk_squares[c] - lacking * rest[c] + apart * apart * across;
    }
    before += rows;
  });
  for (int64_t g = 0; g < channels / each; ++g) {
    double middle = 0, sum = 0;
    for (int64_t c = g * each; c < (g + 1) * each; ++c) middle += total[c];
    middle /= each;
    for (int64_t c = g * each; c < (g + 1) * each; ++c) {
      sum += squares[c] + before * (total[c] - middle) * (total[c] - middle);
    }
    mean[g] = middle;
    var[g] = sum / (before * each);
  }
}

inline double deviation(const NormShape& s, double var) { return __builtin_sqrt(var + s.eps); }

// Of each channel: the mean, w by the deviation, and b less what the rounding of the mean makes.
void scales(const NormShape& s, const float* w, const float* b, const double* mean,
            const double* var, float* middle, float* scale, float* shift) {
  const int64_t each = s.in_group();
  for (int64_t g = 0; g < s.channels / each; ++g) {
    const double inverse = 1.0 / deviation(s, var[g]);
    for (int64_t c = g * each; c < (g + 1) * each; ++c) {
      middle[c] = static_cast<float>(mean[g]);
      scale[c] = static_cast<float>(w[c] * inverse);
      if (shift) shift[c] = static_cast<float>(b[c] - (mean[g] - middle[c]) * w[c] * inverse);
    }
  }
}

// y = (x - mean) scale + shift, with the shortcut, cut if wanted. NaN stays NaN.
template <bool kAdded>
void apply(const NormShape& s, const float* x, const float* middle, const float* scale,
           const float* shift, const float* shortcut, int64_t rows, float* y) {
  const Vec most = Vec{} + s.most;
  each_panel(s.channels, [&](const auto& panel) {
    constexpr int kWide = std::remove_reference_t<decltype(panel)>::wide;
    Vec m[kWide], a[kWide], p[kWide];
    #pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      m[v] = panel.get(middle, v), a[v] = panel.get(scale, v), p[v] = panel.get(shift, v);
    }
    for (int64_t row = 0; row < rows * s.channels; row += s.channels) {
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) {
        Vec value = (panel.get(x + row, v) - m[v]) * a[v] + p[v];
        if (kAdded) value += panel.get(shortcut + row, v);
        if (s.most > 0) {
          value = value < 0.0f ? Vec{} : value;
          value = value > most ? most : value;
        }
        panel.put(y + row, v, value);
      }
    }
  });
}

// The gradient that gets through the cut.
template <bool kCut>
struct Passing {
  const float *dy, *y;
  Vec most;

  template <class P>
  Vec get(const P& panel, int64_t row, int v) const {
    const Vec grad = panel.get(dy + row, v);
    if (!kCut) return grad;
    const Vec result = panel.get(y + row, v);
    const Vec low = result <= 0.0f ? Vec{} : grad;
    return result >= most ? Vec{} : low;
  }
  Passing from(int64_t offset) const { return {dy + offset, kCut ? y + offset : y, most}; }
};

// Of one part, in double: the sums of the gradient and of its products with x - mean.
template <bool kCut>
void sum_gradients(const NormShape& s, const Passing<kCut>& grad, const float* x,
                   const float* middle, double* of_grad, double* of_product, float* space) {
  std::memset(of_grad, 0, s.channels * sizeof(double));
  std::memset(of_product, 0, s.channels * sizeof(double));
  float *plain = space, *product = space + s.channels;
  each_chunk(s, [&](int64_t first, int64_t rows) {
    const int64_t offset = first * s.channels;
    const Passing<kCut> here = grad.from(offset);
    const float* from = x + offset;
    each_panel(s.channels, [&](const auto& panel) {
      constexpr int kWide = std::remove_reference_t<decltype(panel)>::wide;
      Vec sums[2][kWide], m[kWide];
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) m[v] = panel.get(middle, v);
      panel.over_rows(rows, sums, [&](int64_t row, int v, Vec* to) {
        const Vec g = here.get(panel, row, v);
        to[0] += g;
        to[1] += g * (panel.get(from + row, v) - m[v]);
      });
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) panel.put(plain, v, sums[0][v]);
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) panel.put(product, v, sums[1][v]);
    });
    for (int64_t c = 0; c < s.channels; ++c) of_grad[c] += plain[c], of_product[c] += product[c];
  });
}

// dx = scale · grad - less - (x - mean) slope.
template <bool kCut>
void apply_gradient(const NormShape& s, const Passing<kCut>& grad, const float* x,
                    const float* middle, const float* scale, const float* less,
                    const float* slope, float* dx, float* cut_dy) {
  each_panel(s.channels, [&](const auto& panel) {
    constexpr int kWide = std::remove_reference_t<decltype(panel)>::wide;
    Vec m[kWide], a[kWide], p[kWide], q[kWide];
    #pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      m[v] = panel.get(middle, v), a[v] = panel.get(scale, v);
      p[v] = panel.get(less, v), q[v] = panel.get(slope, v);
    }
    for (int64_t row = 0; row < s.rows() * s.channels; row += s.channels) {
      #pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) {
        const Vec g = grad.get(panel, row, v);
        if (kCut && cut_dy) panel.put(cut_dy + row, v, g);
        panel.put(dx + row, v, a[v] * g - p[v] - (panel.get(x + row, v) - m[v]) * q[v]);
      }
    }
  });
}

template <bool kCut>
void backward(const NormShape& s, const float* dy, const float* x, const float* y, const float* w,
              const double* mean, const double* var, float* dx, float* dw, float* db, float* cut_dy,
              float* space) {
  const int64_t channels = s.channels, each = s.in_group();
  double* of_grad = reinterpret_cast<double*>(space);
  double *of_product = of_grad + channels, *all_w = of_grad + 2 * channels,
         *all_b = of_grad + 3 * channels;
  float *middle = space + 8 * channels, *scale = middle + channels, *less = scale + channels;
  float *slope = less + channels, *rest = slope + channels;
  std::memset(all_w, 0, 2 * channels * sizeof(double));
  const double count = static_cast<double>(s.rows()) * each;
  for (int64_t part = 0; part < s.parts(); ++part) {
    const int64_t offset = part * s.rows() * channels, groups = channels / each;
    const Passing<kCut> grad = Passing<kCut>{dy, y, Vec{} + s.most}.from(offset);
    scales(s, w, nullptr, mean + part * groups, var + part * groups, middle, scale, nullptr);
    sum_gradients(s, grad, x + offset, middle, of_grad, of_product, rest);
    for (int64_t g = 0; g < groups; ++g) {
      const double inverse = 1.0 / deviation(s, var[part * groups + g]);
      const double rounded = mean[part * groups + g] - middle[g * each];
      double plain = 0, product = 0;
      for (int64_t c = g * each; c < (g + 1) * each; ++c) {
        of_product[c] -= rounded * of_grad[c];  // x less the mean itself
        plain += w[c] * of_grad[c], product += w[c] * of_product[c];
        all_w[c] += inverse * of_product[c], all_b[c] += of_grad[c];
      }
      const double steep = inverse * inverse * inverse * product / count;
      for (int64_t c = g * each; c < (g + 1) * each; ++c) {
        less[c] = static_cast<float>(inverse * plain / count - rounded * steep);
        slope[c] = static_cast<float>(steep);
      }
    }
    apply_gradient(s, grad, x + offset, middle, scale, less, slope, dx + offset,
                   cut_dy ? cut_dy + offset : nullptr);
  }
  for (int64_t c = 0; c < channels; ++c) {
    dw[c] = static_cast<float>(all_w[c]), db[c] = static_cast<float>(all_b[c]);
  }
}

}  // namespace

void norm_forward(const NormShape& s, const float* x, const float* w, const float* b,
                  const float* shortcut, bool known, double* mean, double* var, float* y,
                  float* space) {
  float *middle = space + 8 * s.channels, *scale = middle + s.channels;
  float* shift = scale + s.channels;
  const int64_t size = s.rows() * s.channels, groups = s.channels / s.in_group();
  for (int64_t part = 0; part < s.parts(); ++part, mean += groups, var += groups) {
    const int64_t offset = part * size;
    if (!known) statistics(s, x + offset, mean, var, space);
    scales(s, w, b, mean, var, middle, scale, shift);
    if (shortcut) {
      apply<true>(s, x + offset, middle, scale, shift, shortcut + offset, s.rows(), y + offset);
    } else {
      apply<false>(s, x + offset, middle, scale, shift, nullptr, s.rows(), y + offset);
    }
  }
}

void norm_backward(const NormShape& s, const float* dy, const float* x, const float* y,
                   const float* w, const double* mean, const double* var, float* dx, float* dw,
                   float* db, float* cut_dy, float* space) {
  const auto with_or_without = s.most > 0 ? backward<true> : backward<false>;
  with_or_without(s, dy, x, y, w, mean, var, dx, dw, db, cut_dy, space);
}

}  // namespace NORM_NAMESPACE
}  // namespace c2v
