// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>
#include <ostream>

#include "api/nn/quantizers.h"
#include "frame/dtypes.h"
#include "nn/by_granularity.h"
#include "nn/clone.h"
#include "nn/learned_formulas.h"
#include "nn/product.h"
#include "nn/quantizer_arguments.h"
#include "search/range.h"

namespace baraquant::nn {

LearnedFakeQuantizeImpl::LearnedFakeQuantizeImpl(LearnedFakeQuantizeOptions given)
    : LearnedFakeQuantizeImpl("LearnedFakeQuantize", std::move(given)) {}

LearnedFakeQuantizeImpl::LearnedFakeQuantizeImpl(std::string name, LearnedFakeQuantizeOptions given)
    : Quantizer(std::move(name)), options(std::move(given)) {
  check_learned(options);
  const auto unknown = torch::full(
      options.shape(), std::numeric_limits<double>::quiet_NaN(),
      torch::TensorOptions().dtype(options.dtype()).device(options.device().value_or(torch::kCPU)));
  const auto zeros = unknown.clone();
  scale = register_parameter("scale", unknown);
  if (!options.symmetric()) zero_point = register_parameter("zero_point", zeros);
  const auto counter = torch::TensorOptions().dtype(torch::kInt64).device(scale.device());
  skipped_batches = register_buffer("skipped_batches", torch::zeros({}, counter));
  saw_zeros = register_buffer("saw_zeros", torch::zeros({1}, counter.dtype(torch::kUInt8)));
  const bool is_int4 = this->name() == "LearnedFakeQuantizeInt4";
  keep_state(is_int4 ? "learned int4" : "learned", ops_of(options), options.symmetric(),
             scale.numel());
}

bool LearnedFakeQuantizeImpl::is_initialized() const {
  // If other code wrote into the parameter, its value decides.
  if (!initialized_ && !scale.is_meta()) {
    initialized_ = !scale.detach().isnan().any().item<bool>();
  }
  return initialized_;
}

torch::Tensor LearnedFakeQuantizeImpl::forward(const torch::Tensor& input) {
  if (is_training() && (saw_zeros_.read(saw_zeros) || !is_initialized())) {
    initialize_by_first(input);
    if (saw_zeros_.is_on) {
      // A 0 that depends on the parameters, which may still be written before backward.
      auto total = scale.sum();
      if (zero_point.defined()) total = total + zero_point.sum();
      return input + (total * 0.0).to(input.scalar_type());
    }
    // If this batch was skipped, the scale is unknown, and the result is NaN.
    return rounds() && input.numel() > 0 ? round_to_grid(input) : input;
  }
  return rounds() ? round(input) : input;
}

void LearnedFakeQuantizeImpl::initialize(const torch::Tensor& input) {
  if (input.numel() == 0) return;
  start_by(input, /*only_unknown=*/false);
  saw_zeros_.write(saw_zeros, false);
  note_if_known();
}

void LearnedFakeQuantizeImpl::initialize_by_first(const torch::Tensor& input) {
  if (input.numel() == 0) return;
  const bool only_zeros = !input.is_meta() && !input.detach().any().item<bool>();
  if (only_zeros && saw_zeros_.is_on) return;
  if (saw_zeros_.is_on) {  // the scales of zeros were none
    const torch::NoGradGuard no_grad;
    scale.fill_(std::numeric_limits<double>::quiet_NaN());
    initialized_ = false;
  }
  start_by(input, /*only_unknown=*/true);
  saw_zeros_.write(saw_zeros, only_zeros);
  note_if_known();
}

torch::Tensor LearnedFakeQuantizeImpl::is_new(const torch::Tensor& given,
                                              const torch::Tensor& known, bool only_unknown) {
  const auto is_finite = given.isfinite();
  const auto is_wanted = only_unknown ? known.isnan() : torch::ones_like(is_finite);
  skipped_batches.add_((is_wanted & is_finite.logical_not()).any());
  return is_wanted & is_finite;
}

void LearnedFakeQuantizeImpl::note_if_known() {
  initialized_ = scale.is_meta() || !scale.detach().isnan().any().item<bool>();
}

void LearnedFakeQuantizeImpl::start_by(const torch::Tensor& input, bool only_unknown) {
  const torch::NoGradGuard no_grad;
  // [scales, values]
  const auto rows = ops_of(options).segments("LearnedFakeQuantize", input.detach());
  const auto low = options.quant_min(), high = options.quant_max();
  const bool is_symmetric = !zero_point.defined();
  auto [step, zeros] = options.scale_rule()
                           ? fitted_qparams(rows, low, high, is_symmetric, options.scale_dtype(),
                                            *options.scale_rule())
                           : first_learned_qparams(rows.to(scale.scalar_type()), low, high,
                                                   is_symmetric, options.scale_dtype());
  step = step.to(scale.scalar_type()).reshape(scale.sizes());
  const auto is_taken = is_new(step, scale, only_unknown);
  scale.copy_(torch::where(is_taken, step, scale));
  if (!zero_point.defined()) return;
  zeros = zeros.reshape(zero_point.sizes()).to(zero_point.scalar_type());
  zero_point.copy_(torch::where(is_taken, zeros, zero_point));
}

void LearnedFakeQuantizeImpl::start(const torch::Tensor& given, const torch::Tensor& zeros) {
  const torch::NoGradGuard no_grad;
  scale.copy_(given.reshape(-1));
  if (zero_point.defined()) zero_point.copy_(zeros.reshape(-1));
  initialized_ = true;
}

torch::Tensor LearnedFakeQuantizeImpl::round(const torch::Tensor& input) {
  if (!is_initialized()) {
    if (input.numel() == 0) return input;
    TORCH_CHECK(false,
                "LearnedFakeQuantize: expected a finite batch in training mode, or initialize(), "
                "before anything is rounded: the scale is not known; a copy of the model that "
                "averages its parameters (EMA) has to be made after that first batch");
  }
  return round_to_grid(input);
}

torch::Tensor LearnedFakeQuantizeImpl::round_to_grid(const torch::Tensor& input) {
  auto values = input.numel() / scale.numel();
  if (options.per_sample() && input.dim() > 1) values /= std::max<int64_t>(input.size(0), 1);
  const auto count = std::max<int64_t>(values, 1) * options.quant_max();
  const auto factor = std::pow(static_cast<double>(count), -0.5);
  auto [step, zeros] = parameters_of(input.scalar_type());
  const auto gradient = step * factor;
  step =
      search::rounded_scale(step.detach(), options.scale_dtype()) + (gradient - gradient.detach());
  if (zeros.defined()) zeros = with_gradient_factor(zeros, factor);
  return ops_of(options).fake_quantize(input, step, maybe(zeros), std::nullopt);
}

Quantized LearnedFakeQuantizeImpl::quantize(const torch::Tensor& input) {
  if (!is_initialized()) round(input);  // raises
  auto [step, zeros] = calculate_qparams();
  step = step.to(compute_dtype(input.scalar_type()));
  return {ops_of(options).quantize(input, step, zeros), step, zeros};
}

std::tuple<torch::Tensor, torch::Tensor> LearnedFakeQuantizeImpl::calculate_qparams() const {
  auto [step, zeros] = parameters_of(scale.scalar_type());
  step = search::rounded_scale(step.detach(), options.scale_dtype());
  if (!zeros.defined()) return {step, torch::zeros_like(step, torch::kInt32)};
  const auto low = options.quant_min(), high = options.quant_max();
  const auto rounded = zeros.detach().round().clamp(low, high);
  return {step, rounded.nan_to_num(static_cast<double>(low)).to(torch::kInt32)};
}

std::tuple<torch::Tensor, torch::Tensor> LearnedFakeQuantizeImpl::parameters_of(
    torch::Dtype dtype) const {
  const auto compute = compute_dtype(dtype);
  const auto step = round_master(scale, options.master()).to(compute).abs();
  const auto zeros = round_master(zero_point, options.master());
  return {step.clamp_min(search::kSmallestNormal), zeros.defined() ? zeros.to(compute) : zeros};
}

void LearnedFakeQuantizeImpl::clone_into(LearnedFakeQuantizeImpl& copy,
                                         const std::optional<torch::Device>& device) const {
  copy.enable_fake_quant(rounds());
  copy.initialized_ = initialized_;
  copy.saw_zeros_.version = -1;
  copy_tensors(copy, *this, device);
}

void LearnedFakeQuantizeImpl::loaded() {
  Quantizer::loaded();
  saw_zeros_.version = -1;
  note_if_known();
}

BARAQUANT_CLONE_BY(LearnedFakeQuantizeImpl, clone_into(*copy, device), options)

void LearnedFakeQuantizeImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::LearnedFakeQuantize(" << options.granularity()
         << ", quant_min=" << options.quant_min() << ", quant_max=" << options.quant_max() << ")";
}

}  // namespace baraquant::nn
