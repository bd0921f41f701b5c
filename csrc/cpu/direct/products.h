// Matrix products for passes.h whose operands are read where they lie: C (+)= Σ A B over pieces.
//
// The sums of kRows × 2 vectors stay in registers: 24 of the 32 that AVX-512 has, 12 of AVX2's 16.

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
void multiply_tile(Operand a, Operand b, int64_t pieces, int64_t depth, Result c, int64_t columns) {
  Vec sums[kHeight][kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) {
    for (int j = 0; j < kWidth; ++j) sums[i][j] = Vec{};
  }
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const float *from = a.data + piece * a.piece, *with = b.data + piece * b.piece;
    for (int64_t d = 0; d < depth; ++d, from += a.step, with += b.step) {
      Vec values[kWidth];
      for (int j = 0; j < kWidth; ++j) values[j] = load(with + j * kVec);
#pragma GCC unroll 16
      for (int i = 0; i < kHeight; ++i) {
        const Vec x = spread(from[i * a.row]);
#pragma GCC unroll 2
        for (int j = 0; j < kWidth; ++j) sums[i][j] += x * values[j];
      }
    }
  }
  const bool whole = columns >= kWidth * kVec;
  float spare[kHeight * kWidth * kVec];
  float* out = whole ? c.data : spare;
  const int64_t row = whole ? c.row : kWidth * kVec;
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kWidth; ++j) {
      float* to = out + i * row + j * kVec;
      store(to, kAdd && whole ? load(to) + sums[i][j] : sums[i][j]);
    }
  }
  if (!whole) put_some<kAdd>(kHeight, columns, spare, row, c);
}

template <int kWidth, bool kAdd, int kHeight = kRows>
void multiply_rows(int64_t rows, Operand a, Operand b, int64_t pieces, int64_t depth, Result c,
                   int64_t columns) {
  if constexpr (kHeight > 0) {
    if (rows == kHeight) {
      multiply_tile<kHeight, kWidth, kAdd>(a, b, pieces, depth, c, columns);
    } else {
      multiply_rows<kWidth, kAdd, kHeight - 1>(rows, a, b, pieces, depth, c, columns);
    }
  }
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
      if (left > kVec) {
        multiply_rows<2, kAdd>(last - first, from, of_panel, pieces, depth, to, left);
      } else {
        multiply_rows<1, kAdd>(last - first, from, of_panel, pieces, depth, to, left);
      }
    }
  }
}
