// The largest of every 2×2 pixels and ReLU of it, in vectors of kVec floats, and a byte for each that
// says which pixel it is of (4: ReLU made it zero). Included inside a namespace, after vec.h.
using Lanes = int32_t __attribute__((vector_size(4 * kVec)));

// As torch has it: the first of equal ones, and NaN above all.
inline void largest(const Vec (&pixels)[4], bool relu, Vec& most, Lanes& which) {
  most = pixels[0];
  which = Lanes{};
  for (int i = 1; i < 4; ++i) {
    const Lanes more = (pixels[i] > most) | (pixels[i] != pixels[i]);
    most = more ? pixels[i] : most;
    which = more ? Lanes{} + i : which;
  }
  if (relu) {
    const Lanes dead = most <= 0.0f;
    most = dead ? Vec{} : most;
    which = dead ? Lanes{} + 4 : which;
  }
}

// What `grad`, of an output, is for pixel i.
inline Vec part_of(Vec grad, Lanes which, int i) { return which == Lanes{} + i ? grad : Vec{}; }

using Bytes = uint8_t __attribute__((vector_size(kVec)));
using Ints8 = int32_t __attribute__((vector_size(32)));
using Ints16 = int32_t __attribute__((vector_size(64)));

inline auto lowest_bytes(const Ints8& v) {  // GCC 12 would convert the numbers one by one
  using All = uint8_t __attribute__((vector_size(32)));
  const All all = reinterpret_cast<All>(v);
  return __builtin_shufflevector(all, all, 0, 4, 8, 12, 16, 20, 24, 28);
}
inline auto lowest_bytes(const Ints16& v) {
  return __builtin_convertvector(v, uint8_t __attribute__((vector_size(16))));
}

inline void store_bytes(uint8_t* to, Lanes v, int64_t count) {
  const Bytes bytes = lowest_bytes(v);
  if (count >= kVec) {
    std::memcpy(to, &bytes, kVec);
  } else {
    for (int i = 0; i < count; ++i) to[i] = bytes[i];
  }
}
inline Lanes load_bytes(const uint8_t* from, int64_t count) {
  Bytes bytes = {};
  if (count >= kVec) {
    std::memcpy(&bytes, from, kVec);
  } else {
    for (int i = 0; i < count; ++i) bytes[i] = from[i];
  }
  return __builtin_convertvector(bytes, Lanes);
}

// Two rows of `wide` pixels, `row` floats apart, plus the bias if there is one, into y and `which`.
inline void pool_rows(const float* rows, int64_t row, const float* bias, int64_t wide,
                      int64_t channels, bool relu, float* y, uint8_t* which) {
  for (int64_t j = 0; j < wide / 2; ++j, y += channels, which += channels) {
    for (int64_t c = 0; c < channels; c += kVec) {
      const int64_t left = channels - c;
      const float* at = rows + 2 * j * channels + c;
      Vec four[4] = {load_some(at, left), load_some(at + channels, left),
                     load_some(at + row, left), load_some(at + row + channels, left)};
      if (bias) {
        const Vec add = load_some(bias + c, left);
        for (int i = 0; i < 4; ++i) four[i] += add;
      }
      Vec most;
      Lanes where;
      largest(four, relu, most, where);
      store_some(y + c, most, left);
      store_bytes(which + c, where, left);
    }
  }
}

// The way back of gradients, to two rows whose pixels are `pixel` floats apart.
inline void spread_rows(const float* dy, const uint8_t* which, int64_t wide, int64_t channels,
                        float* rows, int64_t row, int64_t pixel) {
  for (int64_t j = 0; j < wide / 2; ++j, dy += channels, which += channels) {
    for (int64_t c = 0; c < channels; c += kVec) {
      const int64_t left = channels - c;
      const Vec grad = load_some(dy + c, left);
      const Lanes from = load_bytes(which + c, left);
      float* at = rows + 2 * j * pixel + c;
      store_some(at, part_of(grad, from, 0), left);
      store_some(at + pixel, part_of(grad, from, 1), left);
      store_some(at + row, part_of(grad, from, 2), left);
      store_some(at + row + pixel, part_of(grad, from, 3), left);
    }
  }
}
