// Convolutions of any stride by their definition, with both gradients. Images are [N, H, W, C],
// filters [K, taps, taps, C], all contiguous.
//
// Pixels side by side are side by side in memory, so a row of a filter meets a contiguous piece of
// taps × C floats, and no patches are copied:
//     forward   y[j, k]   = Σ over rows r of the filter  x[row i·stride + r][j·stride·C + e] w[r, e, k]
//     taps      dw[e, k]  = Σ over rows i of the image    x[row i·stride + r][j·stride·C + e] dy[i, j, k]
//     input     for each of stride × stride phases a convolution of dy of stride 1 with the taps that
//               the pixels of the phase meet
// The zeros around the images are there because each image is copied into the middle of them, into
// the second-level cache; so is each gradient. One thread does it, in a fixed order.
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
#include "../../vectors/tile.h"
#include "../pool/windows.h"
#include "products.h"

inline int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }  // whole ones of the cache

// An image with zeros around it, in the workspace or (where no zeros are needed) where it is.
struct Frame {
  float* space;
  int64_t height, width, channels;  // with the zeros
  int64_t before;                   // zeros above and to the left
  bool copied;

  int64_t row() const { return width * channels; }
  int64_t floats() const { return copied ? lines(height * row()) : 0; }
  void clear() const {
    if (copied) std::memset(space, 0, sizeof(float) * floats());
  }
  // The image of `high` × `wide` pixels of `deep` channels, inside; its first zero.
  const float* around(const float* image, int64_t high, int64_t wide, int64_t deep) const {
    if (!copied) return image;
    for (int64_t i = 0; i < high; ++i) {
      float* to = space + (before + i) * row() + before * channels;
      const float* from = image + i * wide * deep;
      if (deep == channels) {
        std::memcpy(to, from, sizeof(float) * wide * deep);
      } else {
        for (int64_t j = 0; j < wide; ++j) {
          std::memcpy(to + j * channels, from + j * deep, sizeof(float) * deep);
        }
      }
    }
    return space;
  }
};

// The pixels u, in one dimension, with (u + padding) % stride == phase: they meet `taps` taps.
struct Phase {
  int64_t phase, taps, first, output;  // the first pixel; the last output that it takes part in
  Phase(const DirectShape& s, int64_t a) : phase(a) {
    taps = (s.taps - a + s.stride - 1) / s.stride;
    first = ((a - s.padding) % s.stride + s.stride) % s.stride;
    output = (first + s.padding - a) / s.stride;
  }
  int64_t tap(const DirectShape& s, int64_t t) const { return phase + s.stride * (taps - 1 - t); }
};

// A matrix of `rows` rows in panels of kPanel columns: its length, and where an element is.
inline int64_t in_panels(int64_t rows, int64_t columns) {
  return lines((columns + kPanel - 1) / kPanel * kPanel * rows);
}
inline int64_t in_panels(int64_t rows, int64_t row, int64_t j) {
  return j / kPanel * kPanel * rows + row * kPanel + j % kPanel;
}

struct Plan {
  DirectShape s;
  int64_t high, wide, filters;  // of the output; filters padded to vectors
  int64_t beyond;               // outputs before the first one that a pixel could meet
  Frame x, dy;
  float *w, *w_phases, *dw;  // taps in panels, for the forward pass and by phase; their gradient

  Plan(const DirectShape& shape, bool need_x, bool pooled, float* space) : s(shape) {
    high = s.out_height(), wide = s.out_width(), filters = padded(s.filters);
    const int64_t border = 2 * s.padding;
    x = {space, s.height + border, s.width + border, s.channels, s.padding, s.padding > 0};
    beyond = need_x ? (s.taps + s.stride - 1) / s.stride - 1 : 0;
    const int64_t rows = need_x ? (s.height - 1 + s.padding) / s.stride + 1 : high;
    const int64_t columns = need_x ? (s.width - 1 + s.padding) / s.stride + 1 : wide;
    dy = {space + x.floats(), rows + beyond, columns + beyond, filters, beyond, true};
    dy.copied = pooled || filters != s.filters || dy.height != high || dy.width != wide;
    w = dy.space + dy.floats();
    w_phases = w + in_panels(depth(), s.filters);
    dw = w_phases + in_panels(s.taps * s.taps * filters, s.channels);
  }
  int64_t depth() const { return s.taps * s.taps * s.channels; }
  int64_t floats() const { return dw + depth() * filters - x.space; }
  int64_t image() const { return s.height * s.width * s.channels; }
  int64_t output() const { return high * wide * s.filters; }
  int64_t pooled() const { return (high / 2) * (wide / 2) * s.filters; }
  const float* first(const float* gradient) const {  // of an output, after the zeros
    return gradient + beyond * (dy.row() + filters);
  }
};

// w [taps · taps · C, K] in panels.
void pack_taps(const Plan& p, const float* w) {
  const int64_t rows = p.depth();
  std::memset(p.w, 0, sizeof(float) * in_panels(rows, p.s.filters));
  for (int64_t k = 0; k < p.s.filters; ++k) {
    float* to = p.w + in_panels(rows, 0, k);
    for (int64_t e = 0; e < rows; ++e) to[e * kPanel] = w[k * rows + e];
  }
}

// f(down, across, rows, w) for each phase: its taps as a matrix [rows, C] at w, last tap first.
template <class F>
void each_phase(const Plan& p, const F& f) {
  float* w = p.w_phases;
  for (int64_t a = 0; a < p.s.stride; ++a) {
    for (int64_t b = 0; b < p.s.stride; ++b) {
      const Phase down(p.s, a), across(p.s, b);
      const int64_t rows = down.taps * across.taps * p.filters;
      f(down, across, rows, w);
      w += in_panels(rows, p.s.channels);
    }
  }
}

void pack_phases(const Plan& p, const float* w) {
  const auto& s = p.s;
  std::memset(p.w_phases, 0, sizeof(float) * in_panels(s.taps * s.taps * p.filters, s.channels));
  each_phase(p, [&](const Phase& down, const Phase& across, int64_t rows, float* to) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t k = row % p.filters, t = row / p.filters;
      if (k >= s.filters) continue;  // zeros
      const int64_t r = down.tap(s, t / across.taps), q = across.tap(s, t % across.taps);
      const float* from = w + ((k * s.taps + r) * s.taps + q) * s.channels;
      for (int64_t c = 0; c < s.channels; c += kVec) {
        store(to + in_panels(rows, row, c), load_some(from + c, s.channels - c));
      }
    }
  });
}

// The gradient of one image from dy with its zeros.
void spread_gradient(const Plan& p, const float* dy, float* dx) {
  const auto& s = p.s;
  const int64_t row = p.dy.row();
  for (int64_t u = 0; u < s.height; ++u) {
    each_phase(p, [&](const Phase& down, const Phase& across, int64_t rows, const float* w) {
      if (u % s.stride != down.first || across.first >= s.width) return;
      const int64_t i = down.output + u / s.stride + p.beyond - down.taps + 1;
      const int64_t j = across.output + p.beyond - across.taps + 1;
      const int64_t pixels = (s.width - across.first + s.stride - 1) / s.stride;
      const int64_t depth = across.taps * p.filters;
      multiply<false>(pixels, s.channels, down.taps, depth,
                      {dy + i * row + j * p.filters, p.filters, 1, row},
                      {w, 0, kPanel, depth * kPanel}, rows * kPanel,
                      {dx + (u * s.width + across.first) * s.channels, s.stride * s.channels});
    });
  }
}

// dw [taps · taps · C, K] += that of one image.
void add_tap_gradients(const Plan& p, const float* dy, const float* x) {
  const auto& s = p.s;
  const int64_t piece = s.taps * s.channels, x_row = p.x.row(), dy_row = p.dy.row();
  for (int64_t r = 0; r < s.taps; ++r) {
    multiply<true>(piece, s.filters, p.high, p.wide,
                   {x + r * x_row, 1, s.stride * s.channels, s.stride * x_row},
                   {p.first(dy), 0, p.filters, dy_row}, kPanel, {p.dw + r * piece * p.filters, p.filters});
  }
}

void add_bias(const Plan& p, const float* bias, float* y) {
  const int64_t filters = p.s.filters, pixels = p.high * p.wide;
  for (int64_t j = 0; j < pixels; ++j) {
    for (int64_t k = 0; k < filters; ++k) y[j * filters + k] += bias[k];
  }
}

// db += the sum over the pixels of one image.
void add_bias_gradient(const Plan& p, const float* dy, float* db) {
  for (int64_t k = 0; k < p.s.filters; k += kVec) {
    const int64_t left = p.s.filters - k;
    Vec sum = {};
    for (int64_t i = 0; i < p.high; ++i) {
      const float* row = p.first(dy) + i * p.dy.row() + k;
      for (int64_t j = 0; j < p.wide; ++j) sum += load(row + j * p.filters);
    }
    store_some(db + k, load_some(db + k, left) + sum, left);
  }
}

// One row of outputs, without bias.
void multiply_row(const Plan& p, const float* image, int64_t i, float* y) {
  const auto& s = p.s;
  const int64_t piece = s.taps * s.channels, row = p.x.row();
  multiply<false>(p.wide, s.filters, s.taps, piece,
                  {image + i * s.stride * row, s.stride * s.channels, 1, row},
                  {p.w, 0, kPanel, piece * kPanel}, p.depth() * kPanel, {y, s.filters});
}

// One image; two rows at a time wait in the first-level cache for the pool.
void pooled_outputs(const Plan& p, const float* image, const float* bias, float* y,
                    uint8_t* which) {
  float* rows = p.dy.space;
  const int64_t row = p.wide * p.s.filters, pooled = p.wide / 2 * p.s.filters;
  for (int64_t i = 0; i < p.high / 2; ++i) {
    for (int64_t r = 0; r < 2; ++r) multiply_row(p, image, 2 * i + r, rows + r * row);
    pool_rows(rows, row, bias, p.wide, p.s.filters, true, y + i * pooled, which + i * pooled);
  }
}

// The gradient of one image from that of the pool, with its zeros.
const float* spread_pooled(const Plan& p, const float* dy, const uint8_t* which) {
  const int64_t row = p.dy.row(), pooled = p.wide / 2 * p.s.filters;
  float* first = p.dy.space + p.beyond * (row + p.filters);
  for (int64_t i = 0; i < p.high / 2; ++i) {
    spread_rows(dy + i * pooled, which + i * pooled, p.wide, p.s.filters, first + 2 * i * row, row,
                p.filters);
  }
  return p.dy.space;
}

}  // namespace

int64_t direct_workspace(const DirectShape& s, bool pooled) {
  const Plan with(s, true, pooled, nullptr), without(s, false, pooled, nullptr);
  return with.floats() > without.floats() ? with.floats() : without.floats();
}

void direct_forward(const DirectShape& s, const float* x, const float* w, const float* bias, float* y,
                    uint8_t* which, float* space) {
  const Plan p(s, false, which != nullptr, space);
  p.x.clear();
  pack_taps(p, w);
  for (int64_t n = 0; n < s.images; ++n) {
    const float* image = p.x.around(x + n * p.image(), s.height, s.width, s.channels);
    if (which) {
      pooled_outputs(p, image, bias, y + n * p.pooled(), which + n * p.pooled());
      continue;
    }
    float* to = y + n * p.output();
    for (int64_t i = 0; i < p.high; ++i) multiply_row(p, image, i, to + i * p.wide * s.filters);
    if (bias) add_bias(p, bias, to);
  }
}

void direct_backward(const DirectShape& s, const float* dy, const uint8_t* which, const float* x,
                     const float* w, float* dx, float* dw, float* db, float* space) {
  const Plan p(s, dx != nullptr, which != nullptr, space);
  p.x.clear(), p.dy.clear();
  if (dx) pack_phases(p, w);
  std::memset(p.dw, 0, sizeof(float) * p.depth() * p.filters);
  if (db) std::memset(db, 0, sizeof(float) * s.filters);
  for (int64_t n = 0; n < s.images; ++n) {
    const float* gradient =
        which ? spread_pooled(p, dy + n * p.pooled(), which + n * p.pooled())
              : p.dy.around(dy + n * p.output(), p.high, p.wide, s.filters);
    if (dx) spread_gradient(p, gradient, dx + n * p.image());
    if (dw) {
      const float* image = p.x.around(x + n * p.image(), s.height, s.width, s.channels);
      add_tap_gradients(p, gradient, image);
    }
    if (db) add_bias_gradient(p, gradient, db);
  }
  for (int64_t k = 0; dw && k < s.filters; ++k) {
    for (int64_t e = 0; e < p.depth(); ++e) dw[k * p.depth() + e] = p.dw[e * p.filters + k];
  }
}

}  // namespace VECTORS
}  // namespace c2v
