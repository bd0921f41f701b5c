// The largest of 2×2 pixels and ReLU of it, in vectors of kVec floats, and a byte for each that says
// which pixel it is of (4: ReLU made it zero). Included inside a namespace, after vec.h.
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
