// What the kernels share: storage types, wide loads, and the launch.
//
// Sources launch through C2V_LAUNCH and name no CUDA header, so that the same file is compiled by
// nvcc and, in the tests, by g++ against a small stand-in that runs the threads one by one.
#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define C2V_LAUNCH(kernel, grid, block, stream, ...) \
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(__VA_ARGS__)
#else
#include "cuda_shim.h"
#endif

#include "kernels.h"

namespace c2v {

struct BFloat16 {
  uint16_t bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// kWidth adjacent elements, read and written by one instruction (16 bytes for four floats).
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T v[kWidth];
};

template <int kWidth, class T>
__device__ inline Pack<T, kWidth> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kWidth>*>(from);
}
template <int kWidth, class T>
__device__ inline void store(T* to, const Pack<T, kWidth>& values) {
  *reinterpret_cast<Pack<T, kWidth>*>(to) = values;
}

// Whether every row of an existing matrix allows packs of four, and no row ends within one.
inline bool packs_of_four(const Matrix& m, int64_t element_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(m.data);
  return address % (4 * element_bytes) == 0 && m.stride % 4 == 0 && m.size % 4 == 0;
}

// Calls f with a null pointer of the storage type.
template <class F>
void with_storage(Storage storage, const F& f) {
  switch (storage) {
    case Storage::kFloat: return f(static_cast<float*>(nullptr));
    case Storage::kBFloat16: return f(static_cast<BFloat16*>(nullptr));
    case Storage::kHalf: return f(static_cast<__half*>(nullptr));
  }
}
inline int64_t storage_bytes(Storage storage) { return storage == Storage::kFloat ? 4 : 2; }

inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace c2v
