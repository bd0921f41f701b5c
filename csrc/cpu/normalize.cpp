// normalize, normalize_backward: group or batch norm of images, a shortcut added, cut at 0 and at a
// most, channels_last. The work is done by normalize/passes.h, for the vectors of this CPU.
#include "kinds_of_vectors.h"
#include "normalize/shape.h"

#include <optional>
#include <tuple>

namespace c2v {
namespace {

struct Kind {  // of vectors
  decltype(&avx2::norm_forward) forward;
  decltype(&avx2::norm_backward) backward;
};

const Kind& kind() {
  static const Kind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) return Kind{avx512::norm_forward, avx512::norm_backward};
#endif
    return Kind{avx2::norm_forward, avx2::norm_backward};
  }();
  return chosen;
}

NormShape shape_of(const Tensor& x, int64_t groups, double eps, double most) {
  return {x.size(0), x.size(2) * x.size(3), x.size(1), groups, static_cast<float>(eps),
          static_cast<float>(most)};
}

double* doubles(const Tensor& t) { return static_cast<double*>(t.data_ptr()); }
float* floats_or_null(const std::optional<Tensor>& t) { return t ? floats_of(*t) : nullptr; }

Tensor images_as(const Tensor& x, bool wanted) {
  return images_like(x, wanted ? x.size(0) : 0, x.size(2), x.size(3), x.size(1));
}

}  // namespace

// The memory of images is [N, H, W, C]. mean and var, in double: those to take, or none.
std::tuple<Tensor, Tensor, Tensor> normalize_cpu(Tensor x, Tensor w, Tensor b,
                                                 std::optional<Tensor> shortcut,
                                                 std::optional<Tensor> mean,
                                                 std::optional<Tensor> var, int64_t groups,
                                                 double eps, double most) {
  const NormShape s = shape_of(x, groups, eps, most);
  Tensor y = images_as(x, true);
  const auto copied = [&](const std::optional<Tensor>& from) {
    Tensor to = torch::stable::new_empty(x, {s.statistics()}, ScalarType::Double);
    if (from) std::memcpy(doubles(to), doubles(*from), s.statistics() * sizeof(double));
    return to;
  };
  Tensor means = copied(mean), vars = copied(var);
  kind().forward(s, floats_of(x), floats_of(w), floats_of(b), floats_or_null(shortcut),
                 mean.has_value(), doubles(means), doubles(vars), floats_of(y),
                 work_space(s.floats()));
  return {y, means, vars};
}

// The gradients of x, w, b and the shortcut, which is dy itself where nothing is cut.
std::tuple<Tensor, Tensor, Tensor, Tensor> normalize_backward_cpu(
    Tensor dy, Tensor x, Tensor y, Tensor w, Tensor mean, Tensor var, int64_t groups, double eps,
    double most, bool need_shortcut) {
  const NormShape s = shape_of(x, groups, eps, most);
  const bool cut = need_shortcut && most > 0;
  Tensor dx = images_as(x, true), cut_dy = images_as(x, cut);
  Tensor dw = torch::stable::new_empty(x, {s.channels});
  Tensor db = torch::stable::new_empty(x, {s.channels});
  kind().backward(s, floats_of(dy), floats_of(x), floats_of(y), floats_of(w), doubles(mean),
                  doubles(var), floats_of(dx), floats_of(dw), floats_of(db),
                  cut ? floats_of(cut_dy) : nullptr, work_space(s.floats()));
  return {dx, dw, db, cut_dy};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("normalize", TORCH_BOX(&c2v::normalize_cpu));
  m.impl("normalize_backward", TORCH_BOX(&c2v::normalize_backward_cpu));
}
