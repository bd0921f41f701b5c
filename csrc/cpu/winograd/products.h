// Small matrix products for passes.h: C (+)= A B, where B has panels of up to 2 vectors.
//
// The sums of kRows × 2 vectors stay in registers: 24 of the 32 that AVX-512 has, 12 of AVX2's 16.
// A sum that is added to what is there begins at zero and is added once, at its end: the rounding
// error then grows with the length of a block and the number of blocks, not with their product.

template <int kHeight, int kWidth, bool kAdd>
void multiply_tile(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step,
                   int64_t depth, float* c, int64_t c_row) {
  Vec sums[kHeight][kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) {
    for (int j = 0; j < kWidth; ++j) sums[i][j] = Vec{};
  }
  for (int64_t d = 0; d < depth; ++d, a += a_step, b += b_step) {
    Vec columns[kWidth];
    for (int j = 0; j < kWidth; ++j) columns[j] = load(b + j * kVec);
#pragma GCC unroll 16
    for (int i = 0; i < kHeight; ++i) {
      const Vec x = spread(a[i * a_row]);
#pragma GCC unroll 2
      for (int j = 0; j < kWidth; ++j) sums[i][j] += x * columns[j];
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kWidth; ++j) {
      float* out = c + i * c_row + j * kVec;
      store(out, kAdd ? load(out) + sums[i][j] : sums[i][j]);
    }
  }
}

// The tile with as many rows as are left.
template <int kWidth, bool kAdd, int kHeight = kRows>
void multiply_rows(int64_t rows, const float* a, int64_t a_row, int64_t a_step, const float* b,
                   int64_t b_step, int64_t depth, float* c, int64_t c_row) {
  if constexpr (kHeight > 0) {
    if (rows >= kHeight) {
      multiply_tile<kHeight, kWidth, kAdd>(a, a_row, a_step, b, b_step, depth, c, c_row);
    } else {
      multiply_rows<kWidth, kAdd, kHeight - 1>(rows, a, a_row, a_step, b, b_step, depth, c, c_row);
    }
  }
}

// A matrix as B: `row` apart, or packed in panels: [depth, up to kPanel columns] each, in order.
struct Columns {
  const float* data;
  int64_t row;          // 0: packed
  int64_t panel_depth;  // rows of a packed panel
};

// A is [rows, depth] with elements a_row and a_step apart; `columns` is a multiple of kVec.
template <bool kAdd>
void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_row,
              int64_t a_step, Columns b, float* c, int64_t c_row) {
  for (int64_t j = 0; j < columns; j += kPanel) {
    const bool wide = columns - j >= kPanel;
    const float* panel = b.data + (b.row ? j : j * b.panel_depth);
    const int64_t step = b.row ? b.row : (wide ? kPanel : kVec);
    for (int64_t i = 0; i < rows; i += kRows) {
      const float* from = a + i * a_row;
      float* to = c + i * c_row + j;
      if (wide) {
        multiply_rows<2, kAdd>(rows - i, from, a_row, a_step, panel, step, depth, to, c_row);
      } else {
        multiply_rows<1, kAdd>(rows - i, from, a_row, a_step, panel, step, depth, to, c_row);
      }
    }
  }
}
