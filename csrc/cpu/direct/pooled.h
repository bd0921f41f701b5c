// Rows of outputs that go through ReLU and the pool of 2×2, for passes.h.

// Two rows of `wide` pixels, `row` floats apart, pooled into y and `which`.
inline void pool_rows(const float* rows, int64_t row, const float* bias, int64_t wide,
                      int64_t filters, float* y, uint8_t* which) {
  for (int64_t j = 0; j < wide / 2; ++j, y += filters, which += filters) {
    for (int64_t k = 0; k < filters; k += kVec) {
      const int64_t left = filters - k;
      const Vec add = bias ? load_some(bias + k, left) : Vec{};
      const float* at = rows + 2 * j * filters + k;
      const float* const from[4] = {at, at + filters, at + row, at + row + filters};
      Vec four[4], most;
      Lanes where;
      for (int i = 0; i < 4; ++i) four[i] = load_some(from[i], left) + add;
      largest(four, true, most, where);
      store_some(y + k, most, left);
      store_bytes(which + k, where, left);
    }
  }
}

// The way back of gradients, to two rows whose pixels have room for whole vectors.
inline void spread_rows(const float* dy, const uint8_t* which, int64_t wide, int64_t filters,
                        float* rows, int64_t row, int64_t pixel) {
  for (int64_t j = 0; j < wide / 2; ++j, dy += filters, which += filters) {
    for (int64_t k = 0; k < filters; k += kVec) {
      const Vec grad = load_some(dy + k, filters - k);
      const Lanes from = load_bytes(which + k, filters - k);
      float* at = rows + 2 * j * pixel + k;
      float* const to[4] = {at, at + pixel, at + row, at + row + pixel};
      for (int i = 0; i < 4; ++i) store(to[i], part_of(grad, from, i));
    }
  }
}
