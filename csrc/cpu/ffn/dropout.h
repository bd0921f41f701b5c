// The dropout bits of passes.h; their definition is in c2v_sim/ops/fused_ffn.py.
using Ints = int32_t __attribute__((vector_size(4 * kVec)));
using Bits = uint32_t __attribute__((vector_size(4 * kVec)));

struct TokenKey {
  uint32_t first, second;
};

inline uint64_t mix64(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

inline TokenKey key_of(const FfnDropout& dropout, int64_t token) {
  const uint64_t k = mix64(mix64(dropout.seed) + static_cast<uint64_t>(token));
  return {static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32)};
}

// Of 2·kVec units from `unit` on: the numbers of their columns, each of which serves two units.
inline Bits columns_of(int64_t unit) {
  Bits lanes;
  for (int l = 0; l < kVec; ++l) lanes[l] = l;
  return (lanes + static_cast<uint32_t>(unit / 2)) * 0x9E3779B1u;
}

// Which of 2·kVec units are kept, as masks of all ones: a hash serves two units that are 8 apart, j
// by its low half and j + 8 by its high half.
inline void keep_masks(TokenKey key, Bits columns, int32_t threshold, Ints& left, Ints& right) {
  Bits v = columns + key.first;
  v = (v ^ (v >> 16)) * 0x7FEB352Du;
  v = (v ^ (v >> 15) ^ key.second) * 0x846CA68Bu;
  v ^= v >> 16;
  const Bits low = v & 0xFFFFu, high = v >> 16;
  Ints first;  // of 16 floats: 0 to 7 of low, then of high; of 8: low
  for (int l = 0; l < kVec; ++l) first[l] = l < 8 ? l : l + 8;
  left = reinterpret_cast<Ints>(__builtin_shuffle(low, high, first)) >= threshold;
  right = reinterpret_cast<Ints>(__builtin_shuffle(low, high, first + 8)) >= threshold;
}
