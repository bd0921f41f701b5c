// Vectors of kVec floats, loaded and stored whole or in part. Included inside a namespace of each
// kind of vector, after kVec: nothing here may be shared between them.
using Vec = float __attribute__((vector_size(4 * kVec), aligned(4), may_alias));

inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
inline void store(float* to, Vec v) { *reinterpret_cast<Vec*>(to) = v; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t padded(int64_t n) { return (n + kVec - 1) / kVec * kVec; }

// The first `count` floats, the rest zeros; and the way back.
inline Vec load_some(const float* from, int64_t count) {
  if (count >= kVec) return load(from);
  Vec out = {};
  for (int i = 0; i < count; ++i) out[i] = from[i];
  return out;
}
inline void store_some(float* to, Vec v, int64_t count) {
  if (count >= kVec) return store(to, v);
  for (int i = 0; i < count; ++i) to[i] = v[i];
}
