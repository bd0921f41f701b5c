// Exchanges of numbers between the lanes of kVec vectors. Included inside a namespace of each kind of
// vector, after vec.h.
using Lanes = int32_t __attribute__((vector_size(4 * kVec)));

// In every square of 2·kStep vectors and lanes: the upper right corner for the lower left one.
template <int kStep>
inline void exchange(Vec& a, Vec& b) {
  Lanes upper, lower;
  for (int l = 0; l < kVec; ++l) {
    upper[l] = l & kStep ? kVec + l - kStep : l;
    lower[l] = l & kStep ? kVec + l : l + kStep;
  }
  const Vec first = __builtin_shuffle(a, b, upper);
  b = __builtin_shuffle(a, b, lower);
  a = first;
}

// [kVec, kVec] in place.
template <int kStep = 1>
inline void transpose(Vec* rows) {
  if constexpr (kStep < kVec) {
    for (int i = 0; i < kVec; ++i) {
      if (!(i & kStep)) exchange<kStep>(rows[i], rows[i + kStep]);
    }
    transpose<2 * kStep>(rows);
  }
}

// Lane l of the first: the sum of the lanes of the l-th.
template <int kStep = 1>
inline void sum_lanes(Vec* rows) {
  if constexpr (kStep < kVec) {
    for (int i = 0; i < kVec; i += 2 * kStep) {
      exchange<kStep>(rows[i], rows[i + kStep]);
      rows[i] += rows[i + kStep];
    }
    sum_lanes<2 * kStep>(rows);
  }
}
