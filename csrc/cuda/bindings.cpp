// The CUDA key of the operators that have CUDA C++ kernels: checks, scratch memory, stream.
//
// Needs torch's stable interface and no CUDA header; the kernels are behind kernels.h.
#include "../ops.h"
#include "kernels.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

#include <optional>

namespace c2v {
namespace {

Storage storage_of(const Tensor& t, const char* op) {
  Storage storage{};
  with_storage_type(t.scalar_type(), op, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if constexpr (std::is_same_v<T, float>) storage = Storage::kFloat;
    if constexpr (std::is_same_v<T, torch::headeronly::BFloat16>) storage = Storage::kBFloat16;
    if constexpr (std::is_same_v<T, torch::headeronly::Half>) storage = Storage::kHalf;
  });
  return storage;
}

Matrix matrix(const Tensor& t) { return {t.data_ptr(), t.stride(0), t.size(1)}; }
Matrix matrix(const std::optional<Tensor>& t) { return t ? matrix(*t) : Matrix{nullptr, 0, 0}; }

// A strided row is fine; strided elements are copied first.
Tensor with_adjacent_elements(const Tensor& t) {
  return t.size(1) < 2 || t.stride(1) == 1 ? t : torch::stable::contiguous(t);
}

Tensor scratch(const Tensor& like, int64_t elements, ScalarType type) {
  return torch::stable::new_empty(like, {elements}, type);
}

void* current_stream(const Tensor& t) {
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream));
  return stream;
}

void check_launch(const char* error, const char* op) {
  STD_TORCH_CHECK(error == nullptr, op, ": the CUDA launch failed: ", error);
}

Tensor cohort_direction(const Tensor& index, const Tensor& cohort, const Tensor& omega) {
  const int64_t members = cohort.size(0), size = index.size(1);
  Tensor direction = scratch(index, size, ScalarType::Float);
  if (size == 0) return direction;
  Tensor coefficients = scratch(index, members, ScalarType::Double);
  Tensor partial = scratch(index, divide_up(members, kCohortChunk) * size, ScalarType::Float);
  check_launch(
      cohort_direction_cuda(storage_of(index, "client_scores"), matrix(index),
                            cohort.const_data_ptr<int64_t>(), omega.const_data_ptr<float>(),
                            members, coefficients.mutable_data_ptr<double>(),
                            partial.mutable_data_ptr<float>(),
                            direction.mutable_data_ptr<float>(), current_stream(index)),
      "client_scores");
  return direction;
}

}  // namespace

void weighted_sum(const Tensor& arena, const Tensor& weights, Tensor& out) {
  STD_TORCH_CHECK(out.scalar_type() == ScalarType::Float, "weighted_sum: out must be float32");
  STD_TORCH_CHECK(out.is_contiguous(), "weighted_sum: out must be contiguous");
  if (arena.size(1) == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(arena.get_device_index());
  const Tensor a = with_adjacent_elements(arena);
  const Tensor w = torch::stable::contiguous(torch::stable::to(weights, ScalarType::Float));
  check_launch(weighted_sum_cuda(storage_of(a, "weighted_sum"), matrix(a), a.size(0),
                                 w.const_data_ptr<float>(), out.mutable_data_ptr<float>(),
                                 current_stream(a)),
               "weighted_sum");
}

void sgd_step(Tensor params, Tensor grads, std::optional<Tensor> momentum_buffer, Tensor options,
              std::optional<Tensor> linear, std::optional<Tensor> anchor, bool clip,
              bool zero_grads) {
  STD_TORCH_CHECK(params.scalar_type() == ScalarType::Float, "sgd_step: params must be float32");
  const int64_t rows = params.size(0), size = params.size(1);
  if (rows == 0 || size == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(params.get_device_index());
  const int64_t blocks = clip ? divide_up(size, kNormBlock) : 0;
  Tensor partial = scratch(params, rows * blocks, ScalarType::Double);
  Tensor scales = scratch(params, clip ? rows : 0, ScalarType::Float);
  check_launch(
      sgd_step_cuda(matrix(params), matrix(grads), matrix(momentum_buffer), matrix(options),
                    matrix(linear), matrix(anchor), rows, clip, zero_grads,
                    partial.mutable_data_ptr<double>(), scales.mutable_data_ptr<float>(),
                    current_stream(params)),
      "sgd_step");
}

Tensor client_scores(const Tensor& feature_index, const std::optional<Tensor>& label_index,
                     const Tensor& cohort, const Tensor& omega) {
  STD_TORCH_CHECK(omega.scalar_type() == ScalarType::Float, "client_scores: omega must be float32");
  const torch::stable::accelerator::DeviceGuard guard(feature_index.get_device_index());
  const Tensor features = with_adjacent_elements(feature_index);
  const std::optional<Tensor> labels =
      label_index ? std::optional<Tensor>(with_adjacent_elements(*label_index)) : std::nullopt;
  const Tensor ids = torch::stable::contiguous(cohort), weights = torch::stable::contiguous(omega);
  const int64_t clients = features.size(0);
  Tensor scores = scratch(features, clients, ScalarType::Float);
  if (clients == 0) return scores;
  const Tensor along_features = cohort_direction(features, ids, weights);
  const Tensor along_labels = labels ? cohort_direction(*labels, ids, weights) : along_features;
  check_launch(
      client_scores_cuda(storage_of(features, "client_scores"), matrix(features), matrix(labels),
                         clients, along_features.const_data_ptr<float>(),
                         along_labels.const_data_ptr<float>(), scores.mutable_data_ptr<float>(),
                         current_stream(features)),
      "client_scores");
  return scores;
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CUDA, m) {
  m.impl("client_scores", TORCH_BOX(&c2v::client_scores));
  m.impl("sgd_step", TORCH_BOX(&c2v::sgd_step));
  m.impl("weighted_sum", TORCH_BOX(&c2v::weighted_sum));
}
