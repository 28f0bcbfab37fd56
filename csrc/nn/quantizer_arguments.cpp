// SPDX-License-Identifier: BSD-3-Clause
#include "nn/quantizer_arguments.h"

#include <array>

#include "nn/layer_arguments.h"
#include "nn/text.h"

namespace baraquant::nn {

namespace {

using text::check_choice;

void check(bool fits, const std::string& wanted, const std::string& got) {
  text::check("FakeQuantize", fits, wanted, got);
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
  const bool is_fixed = mode == "fixed", is_observed = mode == "observed";
  const bool has_scale = !std::holds_alternative<std::monostate>(options.scale());
  const bool has_zero_point = !std::holds_alternative<std::monostate>(options.zero_point());
  check(has_scale || !is_fixed, "a scale for mode 'fixed'",
        "None; 'dynamic' and 'observed' take it from the data");
  TORCH_CHECK_VALUE(options.symmetric() || !is_fixed,
                    "FakeQuantize: expected symmetric=False with mode 'dynamic' or 'observed' "
                    "only: with mode 'fixed' the zero point is given");
  const auto averaging = options.averaging_constant();
  const auto mask = options.save_mask();
  const auto used = " for mode " + text::quoted(mode);
  if (!is_fixed) {
    check(!has_scale, "no scale" + used, value_of(options.scale()));
    check(!has_zero_point, "no zero_point" + used, value_of(options.zero_point()));
    check(!mask, "no save_mask" + used, text::of(mask.value_or(false)));
  }
  check(is_observed || !averaging, "no averaging_constant" + used,
        text::of(averaging.value_or(0.0)));
  check(is_observed || !options.channels(), "no channels" + used, text::of(options.channels()));
}

void check_granularity(const std::string& granularity, std::optional<int64_t> axis,
                       std::optional<int64_t> group_size) {
  check_choice("FakeQuantize", "granularity", granularity,
               {"per_tensor", "per_channel", "per_token", "per_group"});
  const bool has_axis = granularity == "per_channel" || granularity == "per_group";
  check(granularity != "per_channel" || axis, "an axis for per_channel", "None");
  check(has_axis || !axis, "no axis for " + granularity, text::of(axis));
  if (granularity == "per_group") {
    check(group_size.value_or(0) > 0, "a group_size > 0 for per_group", text::of(group_size));
  } else {
    check(!group_size, "no group_size for " + granularity, text::of(group_size));
  }
}

void check_range(const FakeQuantizeOptions& options) {
  const auto low = options.quant_min(), high = options.quant_max();
  const auto ends = c10::str(low, " and ", high);
  check(low < high, "quant_min < quant_max", ends);
  const bool has_scale = options.mode() != "fixed" && options.symmetric();
  // high - low may be more than 64 bits hold
  check(!has_scale || low < high - 1, "quant_max - quant_min >= 2 for a symmetric scale", ends);
}

void check_observed(const FakeQuantizeOptions& options) {
  const auto& granularity = options.granularity();
  const auto channels = options.channels();
  const bool per_channel = granularity == "per_channel";
  check(granularity == "per_tensor" || per_channel,
        "granularity to be per_tensor or per_channel for mode 'observed'",
        text::quoted(granularity));
  check(per_channel || !channels, "no channels for per_tensor", text::of(channels));
  check(!per_channel || channels.value_or(0) > 0, "channels > 0 for an observed per_channel scale",
        text::of(channels));
  const auto averaging = options.averaging_constant().value_or(1.0);
  // NB: a NaN is refused too.
  check(averaging > 0.0 && averaging <= 1.0, "averaging_constant to lie in (0, 1]",
        text::of(averaging));
}

void check_learned(const LearnedFakeQuantizeOptions& options) {
  constexpr const char* name = "LearnedFakeQuantize";
  const auto& granularity = options.granularity();
  check_choice(name, "scale_dtype", options.scale_dtype(), text::scale_dtypes);
  if (options.master()) check_choice(name, "master", *options.master(), text::masters);
  if (options.scale_rule()) {
    check_choice(name, "scale_rule", *options.scale_rule(), text::scale_rules);
  }
  check_granularity(granularity, options.axis(), options.group_size());
  text::check(name, granularity != "per_token",
              "granularity to be per_tensor, per_channel or per_group", "'per_token'");
  text::check(name, options.quant_min() < options.quant_max() && options.quant_max() > 0,
              "quant_min < quant_max and quant_max > 0",
              c10::str(options.quant_min(), " and ", options.quant_max()));
  const auto& shape = options.shape();
  const bool fits = granularity == "per_tensor"    ? shape == std::vector<int64_t>{1}
                    : granularity == "per_channel" ? shape.size() == 1
                                                   : true;
  const char* wanted = granularity == "per_tensor" ? "[1]" : "one dimension";
  text::check(name, fits, c10::str("shape to have ", wanted, " for ", granularity),
              c10::str(at::IntArrayRef(shape)));
}

torch::Tensor scale_tensor(const FakeQuantizeOptions& options) {
  const auto& granularity = options.granularity();
  if (const auto* number = std::get_if<double>(&options.scale())) {
    TORCH_CHECK_VALUE(granularity == "per_tensor",
                      "FakeQuantize: expected scale to be a tensor for ", granularity);
    check(*number > 0.0 && *number < std::numeric_limits<double>::infinity(),
          "scale to be finite and > 0", text::of(*number));
    return torch::tensor(*number, torch::kFloat32);
  }
  const auto& scale = std::get<torch::Tensor>(options.scale());
  check_scale("FakeQuantize", "scale", scale.scalar_type());
  const bool fits = granularity == "per_tensor"
                        ? scale.dim() == 0 || (scale.dim() == 1 && scale.size(0) == 1)
                    : granularity == "per_channel" ? scale.dim() == 1
                                                   : true;
  const char* wanted = granularity == "per_tensor" ? "[] or [1]" : "one dimension";
  check(fits, c10::str("scale to have ", wanted, " for ", granularity), text::shape(scale));
  return scale.detach().clone();
}

torch::Tensor zero_point_tensor(const FakeQuantizeOptions& options, const torch::Tensor& scale) {
  const auto int32 = scale.options().dtype(torch::kInt32);
  if (std::holds_alternative<std::monostate>(options.zero_point())) {
    return torch::zeros_like(scale, int32);
  }
  if (const auto* number = std::get_if<int64_t>(&options.zero_point())) {
    const auto low = options.quant_min(), high = options.quant_max();
    check(*number >= low && *number <= high,
          c10::str("zero_point to lie in [", low, ", ", high, "]"), text::of(*number));
    return torch::full_like(scale, *number, int32);
  }
  const auto& zero_point = std::get<torch::Tensor>(options.zero_point());
  check_integer("FakeQuantize", "zero_point", zero_point);
  check(zero_point.sizes() == scale.sizes(),
        c10::str("zero_point to have the shape of scale (", scale.sizes(), ")"),
        text::shape(zero_point));
  return int32_of(zero_point.detach()).clone();
}

}  // namespace baraquant::nn
