// SPDX-License-Identifier: BSD-3-Clause
#include <ostream>

#include "api/nn/quantizers.h"
#include "frame/dtypes.h"
#include "nn/by_granularity.h"
#include "nn/clone.h"
#include "nn/freeze.h"
#include "nn/product.h"
#include "nn/quantizer_arguments.h"
#include "nn/text.h"
#include "search/range.h"

namespace baraquant::nn {

FakeQuantizeImpl::FakeQuantizeImpl(FakeQuantizeOptions given)
    : FakeQuantizeImpl(std::move(given), "") {}

FakeQuantizeImpl::FakeQuantizeImpl(FakeQuantizeOptions given, const std::string& kind)
    : Quantizer("FakeQuantize"), options(std::move(given)) {
  check_mode(options);
  check_granularity(options.granularity(), options.axis(), options.group_size());
  check_range(options);
  text::check_choice("FakeQuantize", "scale_dtype", options.scale_dtype(), text::scale_dtypes);
  if (is_observed()) {
    check_observed(options);
    std::vector<int64_t> shape;
    if (options.channels().has_value()) shape.push_back(*options.channels());
    const auto infinity = std::numeric_limits<float>::infinity();
    min_val = register_buffer("min_val", torch::full(shape, infinity));
    max_val = register_buffer("max_val", torch::full(shape, -infinity));
    const auto [first, zeros] = FakeQuantizeImpl::calculate_qparams();
    scale = register_buffer("scale", first);
    zero_point = register_buffer("zero_point", zeros);
    // The flags are uint8: broadcasts of NCCL have no bool.
    observer_enabled = register_buffer("observer_enabled", torch::ones({1}, torch::kUInt8));
    fake_quant_enabled = register_buffer("fake_quant_enabled", torch::ones({1}, torch::kUInt8));
    skipped_batches = register_buffer("skipped_batches", torch::zeros({}, torch::kInt64));
  } else if (!is_dynamic()) {
    const auto given = search::rounded_scale(scale_tensor(options), options.scale_dtype());
    scale = register_buffer("scale", given);
    zero_point = register_buffer("zero_point", zero_point_tensor(options, scale));
  }
  options.scale(std::monostate{}).zero_point(std::monostate{});
  if (!options.keeps_state()) return;
  keep_state(kind.empty() ? options.mode() : kind, ops_of(options), options.symmetric(),
             is_dynamic() ? 0 : scale.numel());
}

torch::Tensor FakeQuantizeImpl::forward(const torch::Tensor& input) {
  if (!is_observed()) return Quantizer::forward(input);
  return rounds_scale() ? observe_and_round(input) : observe(input, fake_quant_enabled);
}

torch::Tensor FakeQuantizeImpl::observe(const torch::Tensor& input, const torch::Tensor& rounds) {
  const bool per_channel = options.granularity() == "per_channel";
  return observe_fake_quantize(input, min_val, max_val, scale, zero_point, observer_enabled, rounds,
                               per_channel ? options.axis() : std::nullopt, options.quant_min(),
                               options.quant_max(), options.symmetric(),
                               options.averaging_constant(), skipped_batches);
}

// The same with a scale that is rounded: the op of forward() does not know of it.
torch::Tensor FakeQuantizeImpl::observe_and_round(const torch::Tensor& input) {
  observe(input.detach(), torch::zeros_like(fake_quant_enabled));
  const auto [step, zeros] = calculate_qparams();
  const auto is_new = observer_enabled.to(torch::kBool) & min_val.isfinite() & max_val.isfinite() &
                      (min_val <= max_val);
  scale.copy_(torch::where(is_new, step, scale).reshape(scale.sizes()));
  zero_point.copy_(torch::where(is_new, zeros, zero_point).reshape(zero_point.sizes()));
  // The next forward pass writes into the buffers, maybe before this backward pass.
  const auto rounded =
      ops_of(options).fake_quantize(input, scale.clone(), zero_point.clone(), options.save_mask());
  return torch::where(fake_quant_enabled.to(torch::kBool), rounded, input);
}

std::tuple<torch::Tensor, torch::Tensor> FakeQuantizeImpl::qparams_of_rows(
    const torch::Tensor& rows) const {
  return search::qparams_of_range(rows.amin(1), rows.amax(1), options.quant_min(),
                                  options.quant_max(), options.symmetric(), options.scale_dtype());
}

std::tuple<torch::Tensor, torch::Tensor> FakeQuantizeImpl::qparams_of(
    const torch::Tensor& input) const {
  const auto values = input.detach();
  auto rows =
      ops_of(options).segments("FakeQuantize", values).to(compute_dtype(input.scalar_type()));
  if (rows.size(1) == 0) rows = rows.new_zeros({rows.size(0), 1});
  const auto [step, zeros] = qparams_of_rows(rows);
  std::vector<int64_t> shape;
  if (options.granularity() == "per_channel") shape = {rows.size(0)};
  if (options.granularity() == "per_token" || options.granularity() == "per_group") {
    shape = values.sizes().vec();
    shape.back() = options.granularity() == "per_token" ? 1 : shape.back() / *options.group_size();
  }
  return {step.reshape(shape), zeros.reshape(shape)};
}

// Check that the scale of a prepared layer is known, before evaluation rounds with it.
void FakeQuantizeImpl::check_seen() {
  if (!is_observed() || is_seen_ || scale.is_meta()) return;
  const bool is_unknown = scale.isnan().any().item<bool>();
  TORCH_CHECK_VALUE(!is_unknown || !(min_val > max_val).any().item<bool>(),
                    "FakeQuantize: ", kUnseen, skipped(this));
  is_seen_ = true;
}

torch::Tensor FakeQuantizeImpl::round(const torch::Tensor& input) {
  const auto ops = ops_of(options);
  if (computes_scale()) {
    const auto [step, zeros] = qparams_of(input);
    return ops.fake_quantize(input, step, zeros, options.save_mask());
  }
  if (is_dynamic()) return ops.dynamic_fake_quantize(input, options.symmetric());
  check_seen();
  return ops.fake_quantize(input, scale, zero_point, options.save_mask());
}

Quantized FakeQuantizeImpl::quantize(const torch::Tensor& input) {
  const auto ops = ops_of(options);
  if (computes_scale()) {
    const auto [step, zeros] = qparams_of(input);
    return {ops.quantize(input, step, zeros), step, zeros};
  }
  if (is_dynamic()) return ops.dynamic_quantize(input, options.symmetric());
  check_seen();
  return {ops.quantize(input, scale, zero_point), scale, zero_point};
}

std::tuple<torch::Tensor, torch::Tensor> FakeQuantizeImpl::calculate_qparams() const {
  if (is_observed()) {
    return search::qparams_of_range(min_val, max_val, options.quant_min(), options.quant_max(),
                                    options.symmetric(), options.scale_dtype());
  }
  TORCH_CHECK(!is_dynamic(),
              "FakeQuantize: expected mode 'fixed' or 'observed' for a scale, but got 'dynamic', "
              "with which each input has its own");
  return {scale, zero_point};
}

void FakeQuantizeImpl::enable_fake_quant(bool enabled) {
  if (is_observed()) {
    fake_quant_enabled.fill_(enabled ? 1 : 0);
  } else {
    Quantizer::enable_fake_quant(enabled);
  }
}

void FakeQuantizeImpl::enable_observer(bool enabled) {
  TORCH_CHECK(is_observed(), "FakeQuantize: expected mode 'observed' for an observer, but got ",
              text::quoted(options.mode()));
  observer_enabled.fill_(enabled ? 1 : 0);
}

void FakeQuantizeImpl::reset_min_max_vals() {
  TORCH_CHECK(is_observed(), "FakeQuantize: expected mode 'observed' for a range, but got ",
              text::quoted(options.mode()));
  min_val.fill_(std::numeric_limits<float>::infinity());
  max_val.fill_(-std::numeric_limits<float>::infinity());
  skipped_batches.fill_(0);
}

std::shared_ptr<FakeQuantizeImpl> FakeQuantizeImpl::freeze() const {
  if (is_dynamic()) calculate_qparams();  // raises
  auto frozen = options;
  frozen.mode("fixed").symmetric(true).scale(scale).zero_point(zero_point);
  frozen.averaging_constant(std::nullopt).channels(std::nullopt).keeps_state(false);
  auto result = std::make_shared<FakeQuantizeImpl>(frozen);
  result->train(is_training());
  return result;
}

std::shared_ptr<FakeQuantizeImpl> FakeQuantizeImpl::without_state() const {
  const auto copy = std::dynamic_pointer_cast<FakeQuantizeImpl>(clone());
  copy->options.keeps_state(false);
  return std::dynamic_pointer_cast<FakeQuantizeImpl>(copy->clone());  // of this one's class
}

void FakeQuantizeImpl::loaded() {
  Quantizer::loaded();
  is_seen_ = false;
}

BARAQUANT_CLONE_BY(FakeQuantizeImpl, copy->enable_fake_quant(rounds());
                   copy_tensors(*copy, *this, device),
                   options.mode() == "fixed"
                       ? FakeQuantizeOptions(options).scale(scale).zero_point(zero_point)
                       : options)

void FakeQuantizeImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::FakeQuantize(";
  if (options.mode() != "fixed") stream << options.mode() << ", ";
  stream << options.granularity();
  if (options.granularity() == "per_group") stream << ", group_size=" << *options.group_size();
  if (options.granularity() == "per_channel" || options.granularity() == "per_group") {
    stream << ", axis=" << options.axis().value_or(-1);
  }
  stream << ", quant_min=" << options.quant_min() << ", quant_max=" << options.quant_max() << ")";
}

FakeQuantizeTernaryImpl::FakeQuantizeTernaryImpl(const FakeQuantizeOptions& given)
    : FakeQuantizeImpl(FakeQuantizeOptions()
                           .mode("dynamic")
                           .granularity(given.granularity())
                           .axis(given.axis())
                           .group_size(given.group_size())
                           .quant_min(-1)
                           .quant_max(1)
                           .scale_dtype(given.scale_dtype())
                           .keeps_state(given.keeps_state()),
                       "ternary") {}

torch::Tensor FakeQuantizeTernaryImpl::round(const torch::Tensor& input) {
  return straight_through(FakeQuantizeImpl::round(input.detach()), input);
}

std::tuple<torch::Tensor, torch::Tensor> FakeQuantizeTernaryImpl::qparams_of_rows(
    const torch::Tensor& rows) const {
  const auto largest = rows.abs().amax(1);
  const auto sum = search::sum_of_magnitudes(rows, largest, rows.size(1));
  const auto mean = search::mean_of_magnitudes(sum, largest, rows.size(1));
  const auto step = search::rounded_scale(mean, options.scale_dtype());
  return {step, torch::zeros_like(step, torch::kInt32)};
}

BARAQUANT_CLONE_BY(FakeQuantizeTernaryImpl, copy->enable_fake_quant(rounds());
                   copy_tensors(*copy, *this, device), options)

}  // namespace baraquant::nn
