// SPDX-License-Identifier: BSD-3-Clause
#include "nn/quantizer_arguments.h"

#include <array>

#include "nn/layer_arguments.h"
#include "nn/text.h"

namespace baraquant::nn {

namespace {

using text::check_choice;

void check_unused(const char* name, bool is_given, const std::string& mode,
                  const std::string& value) {
  TORCH_CHECK_VALUE(!is_given, "FakeQuantize: expected no ", name, " for mode ", text::quoted(mode),
                    ", but got ", value);
}

// A number, a tensor or nothing.
template <typename Value>
std::string value_of(const Value& value) {
  if (const auto* tensor = std::get_if<torch::Tensor>(&value)) return c10::str(*tensor);
  if (const auto* number = std::get_if<1>(&value)) return text::of(*number);
  return "None";
}

}  // namespace

void check_mode(const FakeQuantizeOptions& options) {
  const auto& mode = options.mode();
  check_choice("FakeQuantize", "mode", mode, {"fixed", "dynamic", "observed"});
  const bool has_scale = !std::holds_alternative<std::monostate>(options.scale());
  const bool has_zero_point = !std::holds_alternative<std::monostate>(options.zero_point());
  const auto averaging = options.averaging_constant();
  if (mode == "fixed") {
    TORCH_CHECK_VALUE(has_scale,
                      "FakeQuantize: expected a scale for mode 'fixed', but got None; 'dynamic' "
                      "and 'observed' take it from the data");
    TORCH_CHECK_VALUE(options.symmetric(),
                      "FakeQuantize: expected symmetric=False with mode 'dynamic' or 'observed' "
                      "only: with mode 'fixed' the zero point is given");
  } else {
    check_unused("scale", has_scale, mode, value_of(options.scale()));
    check_unused("zero_point", has_zero_point, mode, value_of(options.zero_point()));
    check_unused("save_mask", options.save_mask().has_value(), mode,
                 text::of(options.save_mask().value_or(false)));
  }
  if (mode != "observed") {
    check_unused("averaging_constant", averaging.has_value(), mode,
                 text::of(averaging.value_or(0.0)));
    check_unused("channels", options.channels().has_value(), mode, text::of(options.channels()));
  }
}

void check_granularity(const std::string& granularity, std::optional<int64_t> axis,
                       std::optional<int64_t> group_size) {
  check_choice("FakeQuantize", "granularity", granularity,
               {"per_tensor", "per_channel", "per_token", "per_group"});
  const bool has_axis = granularity == "per_channel" || granularity == "per_group";
  TORCH_CHECK_VALUE(granularity != "per_channel" || axis.has_value(),
                    "FakeQuantize: expected an axis for per_channel, but got None");
  TORCH_CHECK_VALUE(has_axis || !axis.has_value(), "FakeQuantize: expected no axis for ",
                    granularity, ", but got ", text::of(axis));
  if (granularity == "per_group") {
    TORCH_CHECK_VALUE(group_size.has_value() && *group_size > 0,
                      "FakeQuantize: expected a group_size > 0 for per_group, but got ",
                      text::of(group_size));
  } else {
    TORCH_CHECK_VALUE(!group_size.has_value(), "FakeQuantize: expected no group_size for ",
                      granularity, ", but got ", text::of(group_size));
  }
}

void check_range(const FakeQuantizeOptions& options) {
  const auto low = options.quant_min(), high = options.quant_max();
  TORCH_CHECK_VALUE(low < high, "FakeQuantize: expected quant_min < quant_max, but got ", low,
                    " and ", high);
  const bool has_scale = options.mode() != "fixed" && options.symmetric();
  TORCH_CHECK_VALUE(!has_scale || low < high - 1,  // high - low may be more than 64 bits hold
                    "FakeQuantize: expected quant_max - quant_min >= 2 for a symmetric scale, but "
                    "got ",
                    low, " and ", high);
}

void check_observed(const FakeQuantizeOptions& options) {
  const auto& granularity = options.granularity();
  const auto channels = options.channels();
  TORCH_CHECK_VALUE(granularity == "per_tensor" || granularity == "per_channel",
                    "FakeQuantize: expected granularity to be per_tensor or per_channel for mode "
                    "'observed', but got ",
                    text::quoted(granularity));
  TORCH_CHECK_VALUE(granularity != "per_tensor" || !channels.has_value(),
                    "FakeQuantize: expected no channels for per_tensor, but got ",
                    text::of(channels));
  TORCH_CHECK_VALUE(granularity != "per_channel" || (channels.has_value() && *channels > 0),
                    "FakeQuantize: expected channels > 0 for an observed per_channel scale, but "
                    "got ",
                    text::of(channels));
  const auto averaging = options.averaging_constant();
  // NB: a NaN is refused too.
  TORCH_CHECK_VALUE(!averaging.has_value() || (*averaging > 0.0 && *averaging <= 1.0),
                    "FakeQuantize: expected averaging_constant to lie in (0, 1], but got ",
                    text::of(averaging.value_or(0.0)));
}

void check_learned(const LearnedFakeQuantizeOptions& options) {
  const auto& granularity = options.granularity();
  check_choice("LearnedFakeQuantize", "scale_dtype", options.scale_dtype(), text::scale_dtypes);
  if (options.master()) {
    check_choice("LearnedFakeQuantize", "master", *options.master(), text::masters);
  }
  check_granularity(granularity, options.axis(), options.group_size());
  TORCH_CHECK_VALUE(granularity != "per_token",
                    "LearnedFakeQuantize: expected granularity to be per_tensor, per_channel or "
                    "per_group, but got 'per_token'");
  TORCH_CHECK_VALUE(options.quant_min() < options.quant_max() && options.quant_max() > 0,
                    "LearnedFakeQuantize: expected quant_min < quant_max and quant_max > 0, but "
                    "got ",
                    options.quant_min(), " and ", options.quant_max());
  const auto& shape = options.shape();
  const bool fits = granularity == "per_tensor"    ? shape == std::vector<int64_t>{1}
                    : granularity == "per_channel" ? shape.size() == 1
                                                   : true;
  TORCH_CHECK_VALUE(fits, "LearnedFakeQuantize: expected shape to have ",
                    granularity == "per_tensor" ? "[1]" : "one dimension", " for ", granularity,
                    ", but got ", c10::str(at::IntArrayRef(shape)));
}

torch::Tensor scale_tensor(const FakeQuantizeOptions& options) {
  const auto& granularity = options.granularity();
  if (const auto* number = std::get_if<double>(&options.scale())) {
    TORCH_CHECK_VALUE(granularity == "per_tensor",
                      "FakeQuantize: expected scale to be a tensor for ", granularity);
    TORCH_CHECK_VALUE(*number > 0.0 && *number < std::numeric_limits<double>::infinity(),
                      "FakeQuantize: expected scale to be finite and > 0, but got ",
                      text::of(*number));
    return torch::tensor(*number, torch::kFloat32);
  }
  const auto& scale = std::get<torch::Tensor>(options.scale());
  check_scale("FakeQuantize", "scale", scale.scalar_type());
  const bool fits = granularity == "per_tensor"
                        ? scale.dim() == 0 || (scale.dim() == 1 && scale.size(0) == 1)
                    : granularity == "per_channel" ? scale.dim() == 1
                                                   : true;
  TORCH_CHECK_VALUE(fits, "FakeQuantize: expected scale to have ",
                    granularity == "per_tensor" ? "[] or [1]" : "one dimension", " for ",
                    granularity, ", but got ", text::shape(scale));
  return scale.detach().clone();
}

torch::Tensor zero_point_tensor(const FakeQuantizeOptions& options, const torch::Tensor& scale) {
  const auto int32 = scale.options().dtype(torch::kInt32);
  if (std::holds_alternative<std::monostate>(options.zero_point())) {
    return torch::zeros_like(scale, int32);
  }
  if (const auto* number = std::get_if<int64_t>(&options.zero_point())) {
    TORCH_CHECK_VALUE(*number >= options.quant_min() && *number <= options.quant_max(),
                      "FakeQuantize: expected zero_point to lie in [", options.quant_min(), ", ",
                      options.quant_max(), "], but got ", *number);
    return torch::full_like(scale, *number, int32);
  }
  const auto& zero_point = std::get<torch::Tensor>(options.zero_point());
  check_integer("FakeQuantize", "zero_point", zero_point);
  TORCH_CHECK_VALUE(zero_point.sizes() == scale.sizes(),
                    "FakeQuantize: expected zero_point to have the shape of scale (",
                    text::shape(scale), "), but got ", text::shape(zero_point));
  return int32_of(zero_point.detach()).clone();
}

}  // namespace baraquant::nn
