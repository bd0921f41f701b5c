// C names, for ctypes, of the CUDA sources when these are compiled for the CPU with cuda_shim.h.
#include "cuda_shim.h"
#include "kernels.h"

extern "C" {

void run_threads_descending(bool yes) { cuda_shim::descending = yes; }

const char* weighted_sum(int storage, c2v::Matrix arena, int64_t rows, const float* weights,
                         float* out) {
  return c2v::weighted_sum_cuda(c2v::Storage(storage), arena, rows, weights, out, nullptr);
}

const char* sgd_step(c2v::Matrix params, c2v::Matrix grads, c2v::Matrix buffer,
                     c2v::Matrix options, c2v::Matrix linear, c2v::Matrix anchor, int64_t rows,
                     bool clip, bool zero_grads) {
  std::vector<double> partial(rows * c2v::divide_up(params.size, c2v::kNormBlock), NAN);
  std::vector<float> scales(rows, NAN);
  return c2v::sgd_step_cuda(params, grads, buffer, options, linear, anchor, rows, clip, zero_grads,
                            partial.data(), scales.data(), nullptr);
}

const char* client_scores(int storage, c2v::Matrix features, c2v::Matrix labels, int64_t clients,
                          const int64_t* cohort, const float* omega, int64_t members,
                          float* scores) {
  std::vector<float> along[2];
  const c2v::Matrix indices[2] = {features, labels};
  for (int i = 0; i < 2; ++i) {
    if (!indices[i].data) continue;
    const int64_t size = indices[i].size;
    along[i].assign(size, NAN);
    std::vector<double> coefficients(members, NAN);
    std::vector<float> partial(c2v::divide_up(members, c2v::kCohortChunk) * size, NAN);
    const char* error = c2v::cohort_direction_cuda(
        c2v::Storage(storage), indices[i], cohort, omega, members, coefficients.data(),
        partial.data(), along[i].data(), nullptr);
    if (error) return error;
  }
  return c2v::client_scores_cuda(c2v::Storage(storage), features, labels, clients, along[0].data(),
                                 along[1].data(), scores, nullptr);
}

}  // extern "C"
