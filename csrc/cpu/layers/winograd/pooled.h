// Tiles whose outputs go through ReLU and the pool of 2×2, for passes.h: the windows of the pool are
// squares of a tile's outputs, so that neither outputs nor their gradients are ever in memory.

// f(i, j, at) for every window that is whole: its first pixel in the tile, and its place in the
// pooled images.
template <int kSide, class F>
inline void each_window(const Square<kSide>& s, const F& f) {
  const int64_t high = s.height / 2, wide = s.width / 2;
#pragma GCC unroll 2
  for (int i = 0; i < kSide; i += 2) {
#pragma GCC unroll 2
    for (int j = 0; j < kSide; j += 2) {
      const int64_t row = (s.top + i) / 2, column = (s.left + j) / 2;
      if (row >= high || column >= wide) continue;
      f(i, j, ((s.image * high + row) * wide + column) * s.channels);
    }
  }
}

// The results [kSide, kSide] of one tile and kVec channels, pooled into y and `which`.
template <int kSide, int kFrom, class Second>
inline void put_pooled(const Square<kSide>& s, const Vec* h, const Second& second, Vec plus,
                       int64_t c, float* y, uint8_t* which) {
  Vec values[kSide][kSide];
  each_result<kSide, kFrom, kSide>(h, second,
                                   [&](int i, int j, Vec v) { values[i][j] = v + plus; });
  each_window(s, [&](int i, int j, int64_t at) {
    const Vec four[4] = {values[i][j], values[i][j + 1], values[i + 1][j], values[i + 1][j + 1]};
    Vec most;
    Lanes from;
    largest(four, true, most, from);
    store_some(y + at + c, most, s.channels - c);
    store_bytes(which + at + c, from, s.channels - c);
  });
}

// kVec channels of the gradients of a tile's outputs, from those of the pooled ones.
template <int kSide>
struct PooledPixels {
  Vec values[kSide][kSide] = {};
  PooledPixels(const Square<kSide>& s, const float* dy, const uint8_t* which, int64_t c) {
    each_window(s, [&](int i, int j, int64_t at) {
      const Vec grad = load_some(dy + at + c, s.channels - c);
      const Lanes from = load_bytes(which + at + c, s.channels - c);
      for (int n = 0; n < 4; ++n) values[i + n / 2][j + n % 2] = part_of(grad, from, n);
    });
  }
  Vec operator()(int i, int j) const { return values[i][j]; }
};
