// What the CUDA sources offer to bindings.cpp: plain pointers and sizes, no torch, no CUDA types.
//
// Every function enqueues its kernels on `stream` (a cudaStream_t) of the current device and
// returns the launch's error as a text, null when there is none. Formulas and shapes are those
// of c2v_sim/ops/<op>.py.
#pragma once

#include <cstdint>

namespace c2v {

enum class Storage : int { kFloat = 0, kBFloat16 = 1, kHalf = 2 };

struct Matrix {  // rows of adjacent elements; data is null when the tensor is absent
  void* data;
  int64_t stride, size;
};

constexpr int64_t kNormBlock = 4096;   // elements of a row in one partial squared norm
constexpr int64_t kCohortChunk = 64;   // cohort rows in one partial direction

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// out[p] = sum_k weights[k] * arena[k, p]
const char* weighted_sum_cuda(Storage storage, Matrix arena, int64_t rows, const float* weights,
                              float* out, void* stream);

// partial: [rows, ceil(size / kNormBlock)] and scales: [rows], scratch, used when `clip`.
const char* sgd_step_cuda(Matrix params, Matrix grads, Matrix buffer, Matrix options, Matrix linear,
                          Matrix anchor, int64_t rows, bool clip, bool zero_grads, double* partial,
                          float* scales, void* stream);

// direction[p] = sum_j omega[j] * unit(index[cohort[j], p]); scratch: coefficients [members],
// partial [ceil(members / kCohortChunk), index.size].
const char* cohort_direction_cuda(Storage storage, Matrix index, const int64_t* cohort,
                                  const float* omega, int64_t members, double* coefficients,
                                  float* partial, float* direction, void* stream);

// scores[i] = cos(features[i], along_features), or its mean with the labels' when there are any
const char* client_scores_cuda(Storage storage, Matrix features, Matrix labels, int64_t clients,
                               const float* along_features, const float* along_labels,
                               float* scores, void* stream);

}  // namespace c2v
