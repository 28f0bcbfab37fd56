// SPDX-License-Identifier: BSD-3-Clause
// LearnedFakeQuantizeInt4. Esser et al. 2020, "Learned Step Size Quantization", equation 3 and section
// 2.2, twice: the steps quantize the weight, and the scale of a row quantizes its steps.
#include <limits>
#include <ostream>

#include "api/nn/int4.h"
#include "api/ops.h"
#include "frame/dtypes.h"
#include "int4/math.h"
#include "nn/by_granularity.h"
#include "nn/clone.h"
#include "nn/layer_arguments.h"
#include "nn/learned_formulas.h"
#include "nn/product.h"
#include "nn/text.h"
#include "search/range.h"
#include "search/weights.h"

namespace baraquant::nn {

namespace {

constexpr const char* kLearnedInt4 = "LearnedFakeQuantizeInt4";
constexpr int64_t largest_factor = int4::kMaxFactor, middle = int4::kMiddle;

LearnedFakeQuantizeOptions checked(const LearnedFakeQuantizeInt4Options& options) {
  check_even(kLearnedInt4, options.group_size());
  const auto& shape = options.shape();
  TORCH_CHECK_VALUE(shape.size() == 2 && shape[0] >= 0 && shape[1] >= 0, kLearnedInt4,
                    ": expected shape to be [rows, groups], but got ",
                    c10::str(at::IntArrayRef(shape)));
  text::check_choice(kLearnedInt4, "scale_rule", options.scale_rule(), text::scale_rules);
  check_scale(kLearnedInt4, "dtype", options.dtype());
  check_bits(kLearnedInt4, "bits", options.bits(), 4);
  return LearnedFakeQuantizeOptions()
      .granularity("per_group")
      .group_size(options.group_size())
      .shape(shape)
      .quant_min(low_of(options.bits()))
      .quant_max(high_of(options.bits()))
      .symmetric(options.symmetric())
      .device(options.device())
      .dtype(options.dtype())
      .master(options.master());
}

}  // namespace

LearnedFakeQuantizeInt4Impl::LearnedFakeQuantizeInt4Impl(
    const LearnedFakeQuantizeInt4Options& given)
    : LearnedFakeQuantizeImpl(kLearnedInt4, checked(given)), given_(given) {
  const auto unknown = std::numeric_limits<double>::quiet_NaN();
  largest_step =
      register_parameter("largest_step", torch::full({given.shape()[0]}, unknown, scale.options()));
}

void LearnedFakeQuantizeInt4Impl::initialize(const torch::Tensor& input) {
  const auto rows = scale.size(0), columns = scale.size(1) * group_size();
  TORCH_CHECK_VALUE(input.dim() == 2 && input.size(0) == rows && input.size(1) == columns,
                    kLearnedInt4, ": expected input to have the shape [", rows, ", ", columns,
                    "], but got ", text::shape(input));
  start_by(input, /*only_unknown=*/false);
  note_if_known();
}

void LearnedFakeQuantizeInt4Impl::start_by(const torch::Tensor& input, bool only_unknown) {
  const torch::NoGradGuard no_grad;
  const auto weight = input.detach();
  const auto fitted = [&] {
    const auto [scale, factor, zeros, is_exact] = search::fit_int4_factors(
        weight, group_size(), options.symmetric(), scale_rule(), given_.bits());
    return std::tuple{scale, factor, zeros};
  };
  const auto given = PackedInt4::of(
      scale_rule() != "max"
          ? fitted()
          : choose_int4_qparams(weight, group_size(), options.symmetric(), given_.bits()));
  set(given, is_new(given.scale, largest_step, only_unknown));
}

void LearnedFakeQuantizeInt4Impl::start_from(const PackedInt4& given) {
  set(given, torch::ones_like(given.scale, torch::kBool));
  initialized_ = true;
}

void LearnedFakeQuantizeInt4Impl::set(const PackedInt4& given, const torch::Tensor& is_taken) {
  const torch::NoGradGuard no_grad;
  const auto put = [](torch::Tensor& parameter, const torch::Tensor& value,
                      const torch::Tensor& is_taken) {
    parameter.copy_(torch::where(is_taken, value.to(parameter.options()), parameter));
  };
  const auto of_groups = is_taken.to(scale.device()).unsqueeze(1);
  put(scale, given.scale.unsqueeze(1) * given.group_factor, of_groups);
  put(largest_step, given.scale * largest_factor, is_taken.to(scale.device()));
  if (!zero_point.defined()) return;
  const auto zeros = given.group_zero_point.to(zero_point.scalar_type()) - middle;
  put(zero_point, zeros, of_groups);
}

std::tuple<torch::Tensor, torch::Tensor> LearnedFakeQuantizeInt4Impl::calculate_qparams() const {
  const auto found = qparams();
  return {found.scale.unsqueeze(1) * found.group_factor,
          found.group_zero_point.to(torch::kInt32) - middle};
}

PackedInt4 LearnedFakeQuantizeInt4Impl::qparams_of(const torch::Tensor& input) {
  set_by_first(input);
  return qparams_in(compute_dtype(input.scalar_type()));
}

torch::Tensor LearnedFakeQuantizeInt4Impl::smooth(const torch::Tensor& input) {
  if (!torch::GradMode::is_enabled()) return input;
  const auto dtype = input.scalar_type();
  const auto [steps, zeros] = parameters_of(dtype);
  return smooth_int4(input, steps, row_scale(dtype), maybe(zeros), group_size(), given_.bits());
}

PackedInt4 LearnedFakeQuantizeInt4Impl::qparams_in(torch::Dtype dtype) const {
  const auto [steps, zeros] = parameters_of(dtype);
  return PackedInt4::of(learned_int4_qparams(steps, row_scale(dtype), maybe(zeros), given_.bits()));
}

torch::Tensor LearnedFakeQuantizeInt4Impl::row_scale(torch::Dtype dtype) const {
  const auto rounded = round_master(largest_step, options.master());
  const auto largest = rounded.to(compute_dtype(dtype)).abs();
  return (largest / largest_factor).clamp_min(search::kSmallestNormal);
}

void LearnedFakeQuantizeInt4Impl::set_by_first(const torch::Tensor& input) {
  if (is_initialized()) return;
  TORCH_CHECK(is_training(), kLearnedInt4,
              ": expected a finite weight in training mode, or initialize(), before anything is "
              "rounded: the factors are not known");
  start_by(input, /*only_unknown=*/true);
  note_if_known();
}

BARAQUANT_CLONE_BY(LearnedFakeQuantizeInt4Impl, clone_into(*copy, device), given_)

void LearnedFakeQuantizeInt4Impl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::LearnedFakeQuantizeInt4(group_size=" << group_size()
         << ", symmetric=" << (options.symmetric() ? "true" : "false");
  if (bits() != 4) stream << ", bits=" << bits();
  stream << ")";
}

}  // namespace baraquant::nn
