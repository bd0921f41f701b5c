// The pixels of a tile for passes.h: read and written where they are, or, at the edges of an image,
// through a copy with zeros around it. Transforms then have no branches and stay in registers.

// Pixels that a tile reads or writes: kSide × kSide of an image, of which some may be outside.
template <int kSide>
struct Square {
  int64_t height, width, channels, image, top, left;

  bool inside() const {
    return top >= 0 && left >= 0 && top + kSide <= height && left + kSide <= width;
  }
  int64_t at(int64_t i, int64_t j) const {
    return ((image * height + top + i) * width + left + j) * channels;
  }
  // f(place in the image, place in [kSide, kSide, kVec]) for those inside of the image.
  template <class F>
  void each(const F& f) const {
    const int64_t bottom = smaller(kSide, height - top), right = smaller(kSide, width - left);
    const int64_t first = left < 0 ? -left : 0;
    for (int64_t i = top < 0 ? -top : 0; i < bottom; ++i) {
      int64_t from = at(i, first), to = (i * kSide + first) * kVec;
      for (int64_t j = first; j < right; ++j, from += channels, to += kVec) f(from, to);
    }
  }
  // kVec channels of all pixels as [kSide, kSide, kVec], zeros outside; and the way back.
  __attribute__((noinline)) void gather(const float* x, int64_t c, float* to) const {
    for (int i = 0; i < kSide * kSide; ++i) store(to + i * kVec, Vec{});
    if (channels - c >= kVec) {
      each([&](int64_t here, int64_t there) { store(to + there, load(x + here + c)); });
    } else {
      each([&](int64_t here, int64_t there) {
        store(to + there, load_some(x + here + c, channels - c));
      });
    }
  }
  template <bool kAdd>
  __attribute__((noinline)) void scatter(const float* from, int64_t c, float* x) const {
    const int64_t left_over = channels - c;
    const auto put = [&](int64_t here, int64_t there, int64_t count) __attribute__((always_inline)) {
      float* to = x + here + c;
      const Vec v = load(from + there);
      store_some(to, kAdd ? load_some(to, count) + v : v, count);
    };
    if (left_over >= kVec) {
      each([&](int64_t here, int64_t there) { put(here, there, kVec); });
    } else {
      each([&](int64_t here, int64_t there) { put(here, there, left_over); });
    }
  }
};

// Where kVec channels of a square are: in the image if all are there, else gathered.
template <int kSide>
struct Pixels {
  const float* first;
  int64_t down, across;
  __attribute__((noinline)) Pixels(const Square<kSide>& s, const float* x, int64_t c, float* gathered) {
    if (s.inside() && s.channels - c >= kVec) {
      first = x + s.at(0, 0) + c, down = s.width * s.channels, across = s.channels;
    } else {
      s.gather(x, c, gathered);
      first = gathered, down = kSide * kVec, across = kVec;
    }
  }
  Vec operator()(int64_t i, int64_t j) const { return load(first + i * down + j * across); }
};

// put(i, j, v) for the results v of second(…) of every row of h.
template <int kRowsOut, int kFrom, int kTo, class Second, class Put>
inline void each_result(const Vec* h, const Second& second, const Put& put) {
#pragma GCC unroll 6
  for (int i = 0; i < kRowsOut; ++i) {
    Vec row[kTo];
    second(h + i * kFrom, row);
#pragma GCC unroll 6
    for (int j = 0; j < kTo; ++j) put(i, j, row[j]);
  }
}

// The results [kSide, kSide] of one tile and kVec channels, into x; h has kFrom in a row.
template <bool kAdd, int kSide, int kFrom, class Second>
inline void put_pixels(const Square<kSide>& s, const Vec* h, const Second& second, Vec plus,
                       int64_t c, float* x) {
  if (s.inside() && s.channels - c >= kVec) {
    float* to = x + s.at(0, 0) + c;
    const int64_t down = s.width * s.channels;
    each_result<kSide, kFrom, kSide>(h, second, [&](int i, int j, Vec v) {
      float* here = to + i * down + j * s.channels;
      store(here, kAdd ? load(here) + v : v + plus);
    });
  } else {
    float values[kSide * kSide * kVec];
    each_result<kSide, kFrom, kSide>(h, second, [&](int i, int j, Vec v) {
      store(values + (i * kSide + j) * kVec, kAdd ? v : v + plus);
    });
    s.template scatter<kAdd>(values, c, x);
  }
}
