// 3×3 convolutions of each channel by itself, stride 1 or 2, with both gradients. Images are
// [N, H, W, C], contiguous, with zeros of one pixel around them.
//
// A vector holds one pixel of kVec channels. Of a band of rows, kVec channels are done at a time: the
// nine taps (in the gradient of the taps: their nine sums) stay in registers, and the rows in the
// second-level cache. The gradient of the input is the same filter turned round for stride 1; for
// stride 2 a pixel of an even row or column has one tap in that direction, others two. Sums over
// pixels are made by row, then by band, then over all. One thread does it, in a fixed order.
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

template <bool kWhole>
inline Vec read(const float* from, int64_t count) {
  return kWhole ? load(from) : load_some(from, count);
}
template <bool kWhole>
inline void write(float* to, Vec v, int64_t count) {
  kWhole ? store(to, v) : store_some(to, v, count);
}

// A row of outputs of kVec channels. Tap rows kTop to kBottom and tap columns kLeft to kRight lie
// inside the image; `x` is the pixel under the middle tap of the first output.
template <int kStride, bool kWhole, int kTop, int kBottom>
struct Row {
  const DepthwiseShape& s;
  const float* x;
  int64_t count;  // channels that are there

  const float* under(int64_t j, int r, int c) const {
    return x + ((r - 1) * s.width + kStride * j + c - 1) * s.channels;
  }

  template <int kLeft, int kRight>
  inline Vec filtered(int64_t j, const Vec* taps) const {
    Vec sum = {};
    for (int r = kTop; r < kBottom; ++r) {
      for (int c = kLeft; c < kRight; ++c) {
        sum += read<kWhole>(under(j, r, c), count) * taps[3 * r + c];
      }
    }
    return sum;
  }

  template <int kLeft, int kRight>
  inline void add_products(int64_t j, Vec dy, Vec* sums) const {
    for (int r = kTop; r < kBottom; ++r) {
      for (int c = kLeft; c < kRight; ++c) {
        sums[3 * r + c] += read<kWhole>(under(j, r, c), count) * dy;
      }
    }
  }

  // edge(j) for the pixels at the sides, else inner(j).
  template <class Both, class First, class Inner, class Last>
  inline void each(const Both& both, const First& first, const Inner& inner,
                   const Last& last) const {
    const int64_t end = s.out_width();
    const bool cut = kStride * (end - 1) + 1 >= s.width;  // the last has no column to its right
    if (end == 1 && cut) return both(0);
    first(0);
    for (int64_t j = 1; j < end - cut; ++j) inner(j);
    if (cut) last(end - 1);
  }

  void filter(const Vec* from, float* y) const {
    Vec taps[9];
    for (int t = 0; t < 9; ++t) taps[t] = from[t];
    const auto put = [&](int64_t j, Vec v) { write<kWhole>(y + j * s.channels, v, count); };
    each([&](int64_t j) { put(j, filtered<1, 2>(j, taps)); },
         [&](int64_t j) { put(j, filtered<1, 3>(j, taps)); },
         [&](int64_t j) { put(j, filtered<0, 3>(j, taps)); },
         [&](int64_t j) { put(j, filtered<0, 2>(j, taps)); });
  }

  void add_gradients(const float* dy, Vec* to) const {
    Vec sums[9] = {};
    const auto get = [&](int64_t j) { return read<kWhole>(dy + j * s.channels, count); };
    each([&](int64_t j) { add_products<1, 2>(j, get(j), sums); },
         [&](int64_t j) { add_products<1, 3>(j, get(j), sums); },
         [&](int64_t j) { add_products<0, 3>(j, get(j), sums); },
         [&](int64_t j) { add_products<0, 2>(j, get(j), sums); });
    for (int t = 3 * kTop; t < 3 * kBottom; ++t) to[t] += sums[t];
  }
};

// f with the Row of the i-th output of an image, whose first pixel of these channels is at `x`.
template <int kStride, bool kWhole, class F>
inline void with_row(const DepthwiseShape& s, const float* x, int64_t i, int64_t count, const F& f) {
  const float* middle = x + kStride * i * s.width * s.channels;
  const bool above = i > 0, below = kStride * i + 1 < s.height;
  if (above && below) return f(Row<kStride, kWhole, 0, 3>{s, middle, count});
  if (above) return f(Row<kStride, kWhole, 0, 2>{s, middle, count});
  if (below) return f(Row<kStride, kWhole, 1, 3>{s, middle, count});
  f(Row<kStride, kWhole, 1, 2>{s, middle, count});
}

// f(c, count, whole) for all channels in vectors; `whole` says by its type that count is kVec.
template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};
template <class F>
inline void each_vector(int64_t channels, const F& f) {
  int64_t c = 0;
  for (; c + kVec <= channels; c += kVec) f(c, kVec, Flag<true>{});
  if (c < channels) f(c, channels - c, Flag<false>{});
}

// Rows `first` to `last` of y of one image. taps [9, C].
template <int kStride>
void filter_band(const DepthwiseShape& s, const float* x, const float* taps, int64_t first,
                 int64_t last, float* y) {
  each_vector(s.channels, [&](int64_t c, int64_t count, auto whole) {
    Vec w[9];
    for (int t = 0; t < 9; ++t) w[t] = load_some(taps + t * s.channels + c, count);
    for (int64_t i = first; i < last; ++i) {
      float* to = y + i * s.out_width() * s.channels + c;
      with_row<kStride, whole.value>(s, x + c, i, count,
                                     [&](const auto& row) { row.filter(w, to); });
    }
  });
}

// sums [9, C] += the gradient of the taps by rows `first` to `last` of dy of one image.
template <int kStride>
void add_tap_gradients(const DepthwiseShape& s, const float* dy, const float* x, int64_t first,
                       int64_t last, float* sums) {
  each_vector(s.channels, [&](int64_t c, int64_t count, auto whole) {
    Vec of_band[9] = {};
    for (int64_t i = first; i < last; ++i) {
      const float* from = dy + i * s.out_width() * s.channels + c;
      with_row<kStride, whole.value>(s, x + c, i, count,
                                     [&](const auto& row) { row.add_gradients(from, of_band); });
    }
    for (int t = 0; t < 9; ++t) {
      float* to = sums + t * s.channels + c;
      store_some(to, load_some(to, count) + of_band[t], count);
    }
  });
}

// A row of dx for stride 2 from one row of dy (under the taps wa) or two (wb). A pixel in an even
// column is under the middle tap of one output; others are to the right of one, to the left of one.
template <bool kWhole, bool kTwo>
void spread_row(const DepthwiseShape& s, const float* a, const Vec* wa, const float* b,
                const Vec* wb, int64_t count, float* dx) {
  const int64_t end = s.out_width(), step = s.channels;
  Vec here_a = read<kWhole>(a, count), here_b = kTwo ? read<kWhole>(b, count) : Vec{};
  for (int64_t j = 0; j < end; ++j) {
    const bool more = j + 1 < end;
    const Vec next_a = more ? read<kWhole>(a + (j + 1) * step, count) : Vec{};
    const Vec next_b = kTwo && more ? read<kWhole>(b + (j + 1) * step, count) : Vec{};
    Vec even = here_a * wa[1], odd = here_a * wa[2] + next_a * wa[0];
    if (kTwo) even += here_b * wb[1], odd += here_b * wb[2] + next_b * wb[0];
    write<kWhole>(dx + 2 * j * step, even, count);
    if (2 * j + 1 < s.width) write<kWhole>(dx + (2 * j + 1) * step, odd, count);
    here_a = next_a, here_b = next_b;
  }
}

// Rows 2·first to 2·last of dx of one image, for stride 2.
void spread_band(const DepthwiseShape& s, const float* dy, const float* taps, int64_t first,
                 int64_t last, float* dx) {
  const int64_t from = s.out_width() * s.channels, to = s.width * s.channels;
  each_vector(s.channels, [&](int64_t c, int64_t count, auto whole) {
    Vec w[9];
    for (int t = 0; t < 9; ++t) w[t] = load_some(taps + t * s.channels + c, count);
    for (int64_t i = first; i < last; ++i) {
      const float* a = dy + i * from + c;
      float* row = dx + 2 * i * to + c;
      spread_row<whole.value, false>(s, a, w + 3, nullptr, nullptr, count, row);
      if (2 * i + 1 >= s.height) continue;
      if (i + 1 < s.out_height()) {
        spread_row<whole.value, true>(s, a, w + 6, a + from, w, count, row + to);
      } else {
        spread_row<whole.value, false>(s, a, w + 6, nullptr, nullptr, count, row + to);
      }
    }
  });
}

// [C, 9] to [9, C], the filter turned round if wanted.
void by_tap(const float* w, int64_t channels, bool turned, float* to) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int t = 0; t < 9; ++t) to[t * channels + c] = w[9 * c + (turned ? 8 - t : t)];
  }
}

// f(image, first, last) for the bands of all images.
template <class F>
void each_band(const DepthwiseShape& s, const F& f) {
  const int64_t band = s.band(), high = s.out_height();
  for (int64_t image = 0; image < s.images; ++image) {
    for (int64_t i = 0; i < high; i += band) f(image, i, smaller(i + band, high));
  }
}

}  // namespace

void depthwise_forward(const DepthwiseShape& s, const float* x, const float* w, float* y,
                       float* space) {
  by_tap(w, s.channels, false, space);
  const int64_t in = s.height * s.width * s.channels;
  const int64_t out = s.out_height() * s.out_width() * s.channels;
  each_band(s, [&](int64_t n, int64_t first, int64_t last) {
    const auto filter = s.stride == 1 ? filter_band<1> : filter_band<2>;
    filter(s, x + n * in, space, first, last, y + n * out);
  });
}

void depthwise_backward(const DepthwiseShape& s, const float* dy, const float* x, const float* w,
                        float* dx, float* dw, float* space) {
  float* sums = space + 9 * s.channels;
  by_tap(w, s.channels, s.stride == 1, space);
  std::memset(sums, 0, sizeof(float) * 9 * s.channels);
  const int64_t in = s.height * s.width * s.channels;
  const int64_t out = s.out_height() * s.out_width() * s.channels;
  each_band(s, [&](int64_t n, int64_t first, int64_t last) {
    if (dw) {
      const auto add = s.stride == 1 ? add_tap_gradients<1> : add_tap_gradients<2>;
      add(s, dy + n * out, x + n * in, first, last, sums);
    }
    if (dx) {
      const auto spread = s.stride == 1 ? filter_band<1> : spread_band;
      spread(s, dy + n * out, space, first, last, dx + n * in);
    }
  });
  for (int64_t c = 0; dw && c < s.channels; ++c) {
    for (int t = 0; t < 9; ++t) dw[9 * c + t] = sums[t * s.channels + c];
  }
}

}  // namespace VECTORS
}  // namespace c2v
