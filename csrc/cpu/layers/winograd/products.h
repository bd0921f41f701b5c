// Small matrix products for passes.h: C (+)= A B, where B has panels of up to 2 vectors.

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
  const int64_t tiles = (rows + kRows - 1) / kRows;  // of equal height
  for (int64_t j = 0; j < columns; j += kPanel) {
    const bool wide = columns - j >= kPanel;
    const float* panel = b.data + (b.row ? j : j * b.panel_depth);
    const int64_t step = b.row ? b.row : (wide ? kPanel : kVec);
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t i = rows * t / tiles, high = rows * (t + 1) / tiles - i;
      const float* from = a + i * a_row;
      float* to = c + i * c_row + j;
      with_height(high, [&](auto height) {
        const auto run = wide ? multiply_tile<height.value, 2, kAdd>
                              : multiply_tile<height.value, 1, kAdd>;
        run(from, a_row, a_step, panel, step, depth, to, c_row);
      });
    }
  }
}
