// Matrix products for passes.h whose operands are read where they lie: C (+)= Σ A B over pieces.

// A is [rows, depth], B [depth, columns], in `pieces`: floats from one row of A, one step of the
// depth, one piece to the next. The columns of B are contiguous.
struct Operand {
  const float* data;
  int64_t row, step, piece;
};

struct Result {
  float* data;
  int64_t row;
};

// The first columns of a tile, where not all are there.
template <bool kAdd>
__attribute__((noinline)) void put_some(int rows, int64_t columns, const float* from, int64_t row,
                                        Result c) {
  for (int i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& to = c.data[i * c.row + j];
      to = kAdd ? to + from[i * row + j] : from[i * row + j];
    }
  }
}

template <int kHeight, int kWidth, bool kAdd>
C2V_NOINLINE void multiply_pieces(Operand a, Operand b, int64_t pieces, int64_t depth, Result c,
                                  int64_t columns) {
  Tile<kHeight, kWidth> tile;
  tile.clear();
  for (int64_t piece = 0; piece < pieces; ++piece) {
    tile.add(a.data + piece * a.piece, a.row, a.step, b.data + piece * b.piece, b.step, depth);
  }
  if (columns >= kWidth * kVec) return tile.template put<kAdd>(c.data, c.row);
  float spare[kHeight * kWidth * kVec];
  tile.template put<false>(spare, kWidth * kVec);
  put_some<kAdd>(kHeight, columns, spare, kWidth * kVec, c);
}

// `panel`: floats from one panel of B, of kPanel columns, to the next. Tiles are of equal height.
template <bool kAdd>
void multiply(int64_t rows, int64_t columns, int64_t pieces, int64_t depth, Operand a, Operand b,
              int64_t panel, Result c) {
  const int64_t tiles = (rows + kRows - 1) / kRows;
  for (int64_t j = 0; j < columns; j += kPanel) {
    const Operand of_panel{b.data + j / kPanel * panel, 0, b.step, b.piece};
    const int64_t left = columns - j;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = rows * t / tiles, last = rows * (t + 1) / tiles;
      const Operand from{a.data + first * a.row, a.row, a.step, a.piece};
      const Result to{c.data + first * c.row + j, c.row};
      with_height(last - first, [&](auto height) {
        const auto run = left > kVec ? multiply_pieces<height.value, 2, kAdd>
                                     : multiply_pieces<height.value, 1, kAdd>;
        run(from, of_panel, pieces, depth, to, left);
      });
    }
  }
}
