// The register tile of all products of matrices: sums of kHeight rows × kWidth vectors. Included
// inside a namespace of each kind of vector, after vec.h.
//
// The full tile, kRows × 2 vectors, takes 24 of the 32 registers that AVX-512 has, 12 of AVX2's 16;
// the rest hold a row of the right operand and an element of the left one.
constexpr int kRows = kVec == 16 ? 12 : 6, kPanel = 2 * kVec;

inline Vec spread(float x) { return x - Vec{}; }  // x - 0 is x, for every x

// Inlined into its caller: a tile in memory would be no register tile.
#define C2V_INLINE inline __attribute__((always_inline))
// For a function around a tile: inlined, its caller's constants would take the tile's registers.
#define C2V_NOINLINE __attribute__((noinline))

template <int kHeight, int kWidth>
struct Tile {
  Vec sums[kHeight][kWidth];

  // f(row, column of vectors, sum) for each.
  template <class F>
  C2V_INLINE void each(const F& f) {
#pragma GCC unroll 16
    for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kWidth; ++j) f(i, j, sums[i][j]);
    }
  }

  C2V_INLINE void clear() {
    each([](int, int, Vec& sum) { sum = Vec{}; });
  }

  // += A B for elements of A that are `a_row` and `a_step` apart, and rows of B `b_step` apart.
  C2V_INLINE void add(const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step,
                      int64_t depth) {
    for (int64_t d = 0; d < depth; ++d, a += a_step, b += b_step) {
      Vec columns[kWidth];
#pragma GCC unroll 4
      for (int j = 0; j < kWidth; ++j) columns[j] = load(b + j * kVec);
#pragma GCC unroll 16
      for (int i = 0; i < kHeight; ++i) {
        const Vec x = spread(a[i * a_row]);
#pragma GCC unroll 4
        for (int j = 0; j < kWidth; ++j) sums[i][j] += x * columns[j];
      }
    }
  }

  // To c, or added to what is there: a sum of short sums is more accurate than one long sum.
  template <bool kAdd>
  C2V_INLINE void put(float* c, int64_t c_row) {
    each([&](int i, int j, Vec& sum) {
      float* to = c + i * c_row + j * kVec;
      store(to, kAdd ? load(to) + sum : sum);
    });
  }
};

template <int kValue>
struct Int {
  static constexpr int value = kValue;
};

// f(Int<rows>) for 1 to kMost rows.
template <int kMost = kRows, class F>
C2V_INLINE void with_height(int64_t rows, const F& f) {
  if constexpr (kMost > 0) {
    if (rows >= kMost) {
      f(Int<kMost>{});
    } else {
      with_height<kMost - 1>(rows, f);
    }
  }
}

// C (+)= A B for one tile.
template <int kHeight, int kWidth, bool kAdd>
C2V_NOINLINE void multiply_tile(const float* a, int64_t a_row, int64_t a_step, const float* b,
                                int64_t b_step, int64_t depth, float* c, int64_t c_row) {
  Tile<kHeight, kWidth> tile;
  tile.clear();
  tile.add(a, a_row, a_step, b, b_step, depth);
  tile.template put<kAdd>(c, c_row);
}
