// Enough of CUDA to run this project's kernels on a CPU with g++: the threads of a block are
// fibers of one thread, resumed in turn from barrier to barrier.
//
// It finds wrong answers and indices. It can miss races: threads never run at the same time. As a
// partial cure `cuda_shim::descending` resumes threads in the opposite order; a missing barrier
// gives another result then.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __shared__ static thread_local

using std::sqrt;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaError_t { cudaSuccess = 0 };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }

struct __half {
  uint16_t bits;
};
inline float __half2float(__half x) {
  _Float16 value;
  std::memcpy(&value, &x, sizeof value);
  return value;
}
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

namespace cuda_shim {

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 * 1024);
  bool done = false;
};

inline bool descending = false;
inline thread_local std::vector<Fiber> fibers;
inline thread_local ucontext_t scheduler;
inline thread_local std::function<void()> body;

inline void barrier() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }

inline void run_thread() {
  body();
  fibers[threadIdx.x].done = true;
}

inline void run_block() {
  const unsigned threads = blockDim.x;
  for (Fiber& fiber : fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    fiber.done = false;
    makecontext(&fiber.context, run_thread, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (unsigned i = 0; i < threads; ++i) {
      threadIdx.x = descending ? threads - 1 - i : i;
      Fiber& fiber = fibers[threadIdx.x];
      if (fiber.done) continue;
      swapcontext(&scheduler, &fiber.context);
      running = running || !fiber.done;
    }
  }
}

inline void launch(dim3 grid, unsigned threads, std::function<void()> kernel) {
  fibers.resize(threads);
  body = std::move(kernel);
  gridDim = grid;
  blockDim = dim3(threads);
  for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run_block();
  }
}

}  // namespace cuda_shim

#define C2V_LAUNCH(kernel, grid, block, stream, ...) \
  (static_cast<void>(stream), cuda_shim::launch(grid, block, [=] { kernel(__VA_ARGS__); }))

inline void __syncthreads() { cuda_shim::barrier(); }

// All lanes of the warp arrive: the first barrier makes the values visible, the second keeps
// them until everybody has read.
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  static thread_local char slots[1024][sizeof(T)];
  std::memcpy(slots[threadIdx.x], &value, sizeof value);
  cuda_shim::barrier();
  std::memcpy(&value, slots[threadIdx.x ^ mask], sizeof value);
  cuda_shim::barrier();
  return value;
}
