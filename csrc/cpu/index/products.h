// The functions on tiles of this CPU's kind of vectors, and tasks for threads.
#pragma once

#include "../vectors/kinds.h"
#include "tiles/shape.h"

#include <atomic>

namespace c2v {

struct TileKind {  // of vectors
  PanelSizes panels;
  decltype(&avx2::pack_right) pack_right;
  decltype(&avx2::tile_product) product;
  decltype(&avx2::accumulate_product) accumulate;
  decltype(&avx2::add_signed_rows) add_signed_rows;
  decltype(&avx2::scan_tile) scan;
  decltype(&avx2::exp_of_cosines) exp;
};

inline const TileKind& tiles() {
  static const TileKind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) {
      return TileKind{avx512::panel_sizes(), avx512::pack_right, avx512::tile_product,
                      avx512::accumulate_product, avx512::add_signed_rows, avx512::scan_tile,
                      avx512::exp_of_cosines};
    }
#endif
    return TileKind{avx2::panel_sizes(), avx2::pack_right, avx2::tile_product,
                    avx2::accumulate_product, avx2::add_signed_rows, avx2::scan_tile,
                    avx2::exp_of_cosines};
  }();
  return chosen;
}

// Eight floats at any address, where vectors are short and few.
typedef float float8 __attribute__((vector_size(32), aligned(4)));

inline float8 load8(const float* p) { return *reinterpret_cast<const float8*>(p); }
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Runs f(0) … f(count-1), each once, on torch's threads. Threads take the next task when free, so
// tasks may differ in length; results are deterministic because a task owns what it writes.
template <class F>
void parallel_tasks(int64_t count, const F& f) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(count, torch::stable::get_num_threads());
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) f(i);
  });
}

}  // namespace c2v
