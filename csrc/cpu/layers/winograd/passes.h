// Convolutions of stride 1 by Winograd's minimal filtering, F(2×2, 3×3), F(4×4, 3×3), F(2×2, 5×5), with
// both gradients. Images are [N, H, W, C], filters [K, taps, taps, C], all contiguous.
//
// Outputs are made in tiles of 2×2 or 4×4 from 4×4 or 6×6 inputs. Transformed, a tile is a set of as
// many points, and for each point the tiles of a block are one matrix product over the channels:
//     forward    M[t, k]  = Σc V[t, c] U[c, k]       V, U: inputs and taps transformed; y from M
//     backward   dU[k, c] = Σt dM[t, k] V[t, c]      dM: the output's gradient transformed
//                dV[t, c] = Σk dM[t, k] U[c, k]      dx from dV, where tiles overlap their sum
// That is 2.25, 4 and 2.8 times fewer products than the definition has. A block of tiles is so small
// that V and M stay in the second-level cache. One thread does all of it, in a fixed order.
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
#include "../pool/windows.h"
#include "products.h"
#include "squares.h"
#include "pooled.h"
#include "transforms.h"

// What both passes need to know, and where the parts of the workspace lie.
template <class Taps>
struct Plan {
  static constexpr int kSide = Taps::kPoints, kAll = kSide * kSide, kTaps = Taps::kTaps;
  static constexpr int64_t kSlice = 128;
  WinogradShape s;
  int64_t high, wide, tiles, block;           // tiles of an image; of all images; of a block
  int64_t channels, filters, v_row, m_row;    // padded
  int64_t blocks, slice;                      // channels or filters whose taps are there at a time
  int64_t u_point, v_point, m_point;          // from one point to the next

  // The length of a row avoids powers of two, which would share few places of the cache.
  explicit Plan(const WinogradShape& shape) : s(shape) {
    high = (s.out_height() + Taps::kOut - 1) / Taps::kOut;
    wide = (s.out_width() + Taps::kOut - 1) / Taps::kOut;
    tiles = s.images * high * wide;
    blocks = (tiles + s.block - 1) / s.block;  // of equal size
    block = blocks ? (tiles + blocks - 1) / blocks : 1;
    channels = padded(s.channels), filters = padded(s.filters);
    v_row = channels + 16, m_row = filters + 16;
    const int64_t more = channels > filters ? channels : filters;
    slice = blocks > 1 ? more : kSlice;  // a single block needs nothing twice
    u_point = smaller(channels * filters, slice * more);
    v_point = block * v_row, m_point = block * m_row;
  }
  int64_t filter() const { return kTaps * kTaps * s.channels; }  // from one to the next
  int64_t floats(bool backward) const {
    const int64_t both = kAll * (u_point + v_point + m_point) + 2 * filters;
    return both + (backward && blocks > 1 ? kAll * u_point : 0);
  }
};

struct Corner {  // of a tile: its image, and the place of its first output
  int64_t image, y, x;
};
template <class Taps>
Corner corner_of(const Plan<Taps>& p, int64_t tile) {
  const int64_t in_image = tile % (p.high * p.wide);
  return {tile / (p.high * p.wide), in_image / p.wide * Taps::kOut,
          in_image % p.wide * Taps::kOut};
}

template <class Taps>
Square<Taps::kPoints> inputs_of(const Plan<Taps>& p, int64_t tile) {
  const Corner at = corner_of(p, tile);
  const auto& s = p.s;
  return {s.height, s.width, s.channels, at.image, at.y - s.padding, at.x - s.padding};
}
template <class Taps>
Square<Taps::kOut> outputs_of(const Plan<Taps>& p, int64_t tile) {
  const Corner at = corner_of(p, tile);
  return {p.s.out_height(), p.s.out_width(), p.s.filters, at.image, at.y, at.x};
}

// The same number, of which the compiler knows nothing: it would keep each of its multiples in memory.
inline int64_t opaque(int64_t n) {
  asm("" : "+r"(n));
  return n;
}

// Fetches the pixels that the tile below has and this one has not.
template <int kOut, int kSide>
inline void fetch_below(const Square<kSide>& s, const float* x, int64_t c) {
  const float* from = x + s.at(kSide, kSide - kOut) + c;
  for (int i = 0; i < kOut; ++i) {
    for (int j = 0; j < kOut; ++j) __builtin_prefetch(from + (i * s.width + j) * s.channels);
  }
}

// Bᵀ d B of the tiles from `first` on, into v [points, tiles, channels].
template <class Taps>
void transform_inputs(const Plan<Taps>& p, const float* x, int64_t first, int64_t count, float* v) {
  constexpr int side = Taps::kPoints;
  for (int64_t t = 0; t < count; ++t) {
    const auto square = inputs_of(p, first + t);
    for (int64_t c = 0; c < p.channels; c += kVec) {
      float gathered[side * side * kVec];
      const Pixels<side> pixels(square, x, c, gathered);
      fetch_below<Taps::kOut>(square, x, c);
      Vec h[side * side];
#pragma GCC unroll 6
      for (int j = 0; j < side; ++j) {
        Vec d[side];
        for (int i = 0; i < side; ++i) d[i] = pixels(i, j);
        Taps::input(d, 1, h + j, side);
      }
      float* to = v + t * p.v_row + c;
      const int64_t point = opaque(p.v_point);
      each_result<side, side, side>(
          h, [](const Vec* from, Vec* row) { Taps::input(from, 1, row, 1); },
          [&](int i, int j, Vec value) { store(to + (i * side + j) * point, value); });
    }
  }
}

// dx += B dV Bᵀ, tile by tile.
template <class Taps>
void add_input_gradients(const Plan<Taps>& p, const float* v, int64_t first, int64_t count,
                         float* dx) {
  constexpr int side = Taps::kPoints;
  for (int64_t t = 0; t < count; ++t) {
    const auto square = inputs_of(p, first + t);
    for (int64_t c = 0; c < p.s.channels; c += kVec) {
      Vec h[side * side];
      const float* from = v + t * p.v_row + c;
      const int64_t point = opaque(p.v_point);
#pragma GCC unroll 6
      for (int j = 0; j < side; ++j) {
        Vec d[side];
        for (int i = 0; i < side; ++i) d[i] = load(from + (i * side + j) * point);
        Taps::input_transposed(d, 1, h + j, side);
      }
      const auto second = [](const Vec* a, Vec* row) { Taps::input_transposed(a, 1, row, 1); };
      put_pixels<true, side, side>(square, h, second, Vec{}, c, dx);
    }
  }
}

// Aᵀ M A + bias, into y or, pooled, into y and `which`.
template <class Taps, bool kPooled>
void transform_outputs(const Plan<Taps>& p, const float* m, const float* bias, int64_t first,
                       int64_t count, float* y, uint8_t* which) {
  constexpr int side = Taps::kPoints, outs = Taps::kOut;
  for (int64_t t = 0; t < count; ++t) {
    const auto square = outputs_of(p, first + t);
    for (int64_t k = 0; k < p.s.filters; k += kVec) {
      Vec h[outs * side];
      const float* from = m + t * p.m_row + k;
      const int64_t point = opaque(p.m_point);
#pragma GCC unroll 6
      for (int j = 0; j < side; ++j) {
        Vec q[side];
        for (int i = 0; i < side; ++i) q[i] = load(from + (i * side + j) * point);
        Taps::output(q, 1, h + j, side);
      }
      const Vec add = bias ? load_some(bias + k, p.s.filters - k) : Vec{};
      const auto second = [](const Vec* a, Vec* row) { Taps::output(a, 1, row, 1); };
      if constexpr (kPooled) {
        put_pooled<outs, side>(square, h, second, add, k, y, which);
      } else {
        put_pixels<false, outs, side>(square, h, second, add, k, y);
      }
    }
  }
}

// dM = A dy Aᵀ into m, and the block's sums of dy by filter into `sums`; dy may be pooled.
template <class Taps, bool kPooled>
void transform_output_gradients(const Plan<Taps>& p, const float* dy, const uint8_t* which,
                                int64_t first, int64_t count, float* m, float* sums) {
  constexpr int side = Taps::kPoints, outs = Taps::kOut;
  std::memset(sums, 0, sizeof(float) * p.filters);
  for (int64_t t = 0; t < count; ++t) {
    const auto square = outputs_of(p, first + t);
    for (int64_t k = 0; k < p.filters; k += kVec) {
      [[maybe_unused]] float gathered[outs * outs * kVec];
      const auto pixels = [&] {
        if constexpr (kPooled) return PooledPixels<outs>(square, dy, which, k);
        else return Pixels<outs>(square, dy, k, gathered);
      }();
      if constexpr (!kPooled) fetch_below<outs>(square, dy, k);
      Vec h[outs * side], sum = {};
#pragma GCC unroll 4
      for (int i = 0; i < outs; ++i) {
        Vec out[outs];
        for (int j = 0; j < outs; ++j) sum += out[j] = pixels(i, j);
        Taps::output_transposed(out, 1, h + i * side, 1);
      }
      store(sums + k, load(sums + k) + sum);
      float* to = m + t * p.m_row + k;
      const int64_t point = opaque(p.m_point);
#pragma GCC unroll 6
      for (int j = 0; j < side; ++j) {
        Vec q[side];
        Taps::output_transposed(h + j, side, q, 1);
        for (int i = 0; i < side; ++i) store(to + (i * side + j) * point, q[i]);
      }
    }
  }
}

// q = G g Gᵀ of the taps of one filter and kVec channels; `left` channels are there.
template <class Taps>
void transform_filter(const float* w, int64_t channels, int64_t left, Vec* q) {
  constexpr int side = Taps::kPoints, taps = Taps::kTaps;
  Vec g[taps * taps], h[side * taps];
  for (int r = 0; r < taps * taps; ++r) g[r] = load_some(w + r * channels, left);
  for (int j = 0; j < taps; ++j) Taps::taps(g + j, taps, h + j, taps);
  for (int a = 0; a < side; ++a) Taps::taps(h + a * taps, 1, q + a * side, 1);
}

// A matrix [rows, columns] in panels: where the vector that begins at `column` of `row` lies.
inline int64_t in_panels(int64_t rows, int64_t columns, int64_t row, int64_t column) {
  const int64_t panel = column / kPanel * kPanel;
  return panel * rows + row * smaller(kPanel, columns - panel) + column % kPanel;
}

// The taps of `count` channels transformed: u [points, panels of [filters, channels]], for the gradient
// of the input.
template <class Taps>
void transform_taps_by_filter(const Plan<Taps>& p, const float* w, int64_t first, int64_t count,
                              float* u) {
  const auto& s = p.s;
  for (int64_t k = 0; k < s.filters; ++k) {
    for (int64_t c = 0; c < count; c += kVec) {
      Vec q[p.kAll];
      const int64_t channel = first + c;
      transform_filter<Taps>(w + k * p.filter() + channel, s.channels, s.channels - channel, q);
      float* to = u + in_panels(s.filters, count, k, c);
      for (int a = 0; a < p.kAll; ++a) store(to + a * p.u_point, q[a]);
    }
  }
}

// Those of `count` filters as panels of [channels, filters], for the forward pass.
template <class Taps>
void transform_taps_by_channel(const Plan<Taps>& p, const float* w, int64_t first, int64_t count,
                               float* u) {
  const auto& s = p.s;
  Vec square[p.kAll][kVec];  // of filters and channels, for every point
  for (int64_t k = 0; k < count; k += kVec) {
    for (int64_t c = 0; c < s.channels; c += kVec) {
      for (int i = 0; i < kVec; ++i) {
        Vec q[p.kAll] = {};
        const float* from = w + (first + k + i) * p.filter() + c;
        if (first + k + i < s.filters) transform_filter<Taps>(from, s.channels, s.channels - c, q);
        for (int a = 0; a < p.kAll; ++a) square[a][i] = q[a];
      }
      for (int a = 0; a < p.kAll; ++a) {
        transpose(square[a]);
        for (int i = 0; i < smaller(kVec, s.channels - c); ++i) {
          store(u + a * p.u_point + in_panels(s.channels, count, c + i, k), square[a][i]);
        }
      }
    }
  }
}

// dw = Gᵀ dU G of `count` filters, from du [points, filters, channels].
template <class Taps>
void transform_tap_gradients(const Plan<Taps>& p, const float* du, int64_t first, int64_t count,
                             float* dw) {
  constexpr int side = Taps::kPoints, taps = Taps::kTaps;
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t c = 0; c < p.s.channels; c += kVec) {
      Vec q[side * side], h[taps * side], g[taps * taps];
      const float* from = du + k * p.channels + c;
      for (int a = 0; a < side * side; ++a) q[a] = load(from + a * p.u_point);
      for (int j = 0; j < side; ++j) Taps::taps_transposed(q + j, side, h + j, side);
      for (int i = 0; i < taps; ++i) Taps::taps_transposed(h + i * side, 1, g + i * taps, 1);
      float* to = dw + (first + k) * p.filter() + c;
      for (int r = 0; r < taps * taps; ++r) {
        store_some(to + r * p.s.channels, g[r], p.s.channels - c);
      }
    }
  }
}

template <bool kPooled, class Taps>
void forward(const Plan<Taps>& p, const float* x, const float* w, const float* bias, float* y,
             uint8_t* which, float* u) {
  float *v = u + p.kAll * p.u_point, *m = v + p.kAll * p.v_point;
  for (int64_t first = 0; first < p.tiles; first += p.block) {
    const int64_t count = smaller(p.block, p.tiles - first);
    transform_inputs(p, x, first, count, v);
    for (int64_t k = 0; k < p.filters; k += p.slice) {
      const int64_t filters = smaller(p.slice, p.filters - k);
      if (first == 0) transform_taps_by_channel(p, w, k, filters, u);
      for (int q = 0; q < p.kAll; ++q) {
        const Columns taps{u + q * p.u_point, 0, p.s.channels};
        multiply<false>(count, filters, p.s.channels, v + q * p.v_point, p.v_row, 1, taps,
                        m + q * p.m_point + k, p.m_row);
      }
    }
    transform_outputs<Taps, kPooled>(p, m, bias, first, count, y, which);
  }
}

template <bool kPooled, class Taps>
void backward(const Plan<Taps>& p, const float* dy, const uint8_t* which, const float* x,
              const float* w, float* dx, float* dw, float* db, float* u) {
  float *v = u + p.kAll * p.u_point, *m = v + p.kAll * p.v_point;
  float *sums = m + p.kAll * p.m_point, *du = p.blocks > 1 ? sums + p.filters : u;
  const int64_t image = p.s.height * p.s.width * p.s.channels;
  int64_t begun = 0;  // images of dx that began with zeros: those that are worked on stay in the cache
  if (db) std::memset(db, 0, sizeof(float) * p.s.filters);
  for (int64_t first = 0; first < p.tiles; first += p.block) {
    const int64_t count = smaller(p.block, p.tiles - first);
    transform_output_gradients<Taps, kPooled>(p, dy, which, first, count, m, sums);
    for (int64_t k = 0; db && k < p.s.filters; ++k) db[k] += sums[k];
    if (dw) transform_inputs(p, x, first, count, v);
    for (int64_t k = 0; dw && k < p.s.filters; k += p.slice) {
      const int64_t filters = smaller(p.slice, p.s.filters - k);
      if (first == 0) std::memset(du, 0, sizeof(float) * p.kAll * p.u_point);
      for (int q = 0; q < p.kAll; ++q) {
        const Columns inputs{v + q * p.v_point, p.v_row, 0};
        multiply<true>(filters, p.channels, count, m + q * p.m_point + k, 1, p.m_row, inputs,
                       du + q * p.u_point, p.channels);
      }
      if (first + count == p.tiles) transform_tap_gradients(p, du, k, filters, dw);
    }
    for (int64_t c = 0; dx && c < p.channels; c += p.slice) {
      const int64_t channels = smaller(p.slice, p.channels - c);
      if (first == 0) transform_taps_by_filter(p, w, c, channels, u);
      for (int q = 0; q < p.kAll; ++q) {
        const Columns taps{u + q * p.u_point, 0, p.s.filters};
        multiply<false>(count, channels, p.s.filters, m + q * p.m_point, p.m_row, 1, taps,
                        v + q * p.v_point + c, p.v_row);
      }
    }
    for (; dx && begun <= (first + count - 1) / (p.high * p.wide); ++begun) {
      std::memset(dx + begun * image, 0, sizeof(float) * image);
    }
    if (dx) add_input_gradients(p, v, first, count, dx);
  }
  if (dw && !p.tiles) std::memset(dw, 0, sizeof(float) * p.s.filters * p.filter());
}

// Calls f with the plan of the shape.
template <class F>
auto with_plan(const WinogradShape& s, const F& f) {
  if (s.taps == 5) return f(Plan<F2x5>(s));
  return s.out == 4 ? f(Plan<F4x3>(s)) : f(Plan<F2x3>(s));
}

}  // namespace

int64_t workspace(const WinogradShape& s, bool is_backward) {
  return with_plan(s, [&](const auto& plan) { return plan.floats(is_backward); });
}

void run_forward(const WinogradShape& s, const float* x, const float* w, const float* bias, float* y,
                 uint8_t* which, float* space) {
  with_plan(s, [&](const auto& plan) {
    if (which) forward<true>(plan, x, w, bias, y, which, space);
    else forward<false>(plan, x, w, bias, y, which, space);
  });
}

void run_backward(const WinogradShape& s, const float* dy, const uint8_t* which, const float* x,
                  const float* w, float* dx, float* dw, float* db, float* space) {
  with_plan(s, [&](const auto& plan) {
    if (which) backward<true>(plan, dy, which, x, w, dx, dw, db, space);
    else backward<false>(plan, dy, which, x, w, dx, dw, db, space);
  });
}

}  // namespace VECTORS
}  // namespace c2v
