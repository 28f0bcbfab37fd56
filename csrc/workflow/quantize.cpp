// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "api/workflow.h"
#include "search/weights.h"
#include "workflow/calibrate.h"
#include "workflow/convert.h"
#include "workflow/select.h"

namespace baraquant {

namespace {

using namespace workflow;

constexpr const char* quantize_name = "baraquant.quantize_";

// A configuration as it is without training.
QuantConfig after_training(const QuantConfig& config, const Kind& kind) {
  auto weight = config.weight();
  weight.learned(false).dynamic(true);
  auto activation = config.activation();
  const bool keeps_input = kind.keeps_input && !config.conv_inputs().value_or(false);
  if (keeps_input) {
    activation = std::nullopt;
    weight.group_factors(false);
  } else if (activation.has_value() && activation->learned()) {
    activation->learned(false).dynamic(false);
  }
  auto result = QuantConfig(weight, activation);
  result.observer(config.observer()).scale_rule(config.scale_rule());
  result.scale_dtype(config.scale_dtype()).rotate(config.rotate()).master(config.master());
  if (!keeps_input) result.conv_inputs(config.conv_inputs());
  return result;
}

void check_weights(const torch::nn::Module& module) {
  for (const auto& weight : weights_of(module)) {
    TORCH_CHECK_VALUE(!weight.is_meta(),
                      "expected a weight with data, but it is on the meta device");
    TORCH_CHECK_VALUE(weight.isfinite().all().item<bool>(),
                      "expected a finite weight, but it holds NaN or infinity");
  }
}

// Give layers with static inputs the scales of the calibration data.
void calibrate(torch::nn::Module& model, const std::vector<Place>& places,
               std::vector<Chosen>& chosen, const QuantConfig& config, const Options& options) {
  const auto ranges =
      observe_inputs(quantize_name, model, places, chosen, config.observer(), options.calibration);
  for (auto& one : chosen) {
    if (!one.prepared->config().is_static()) continue;
    const auto found = ranges.find(one.path);
    if (found == ranges.end()) {
      one.prepared->set_input_quantizer(nullptr);
      one.remark = "; its input stays floating, as the calibration data does not reach it";
      continue;
    }
    const auto& activation = *one.prepared->config().activation();
    const auto [scale, zero_point] = found->second->qparams(
        activation.quant_min(), activation.quant_max(), activation.symmetric());
    const auto device = one.prepared->weight.device();
    one.prepared->set_input_quantizer(
        std::make_shared<nn::FakeQuantizeImpl>(nn::FakeQuantizeOptions()
                                                   .scale(scale.to(device))
                                                   .zero_point(zero_point.to(device))
                                                   .quant_min(activation.quant_min())
                                                   .quant_max(activation.quant_max())));
  }
}

struct Fit {
  std::shared_ptr<nn::Quantizer> quantizer;
  double exact_share = 0.0;
};

double share_of(const torch::Tensor& is_true) {
  const auto count = static_cast<double>(std::max<int64_t>(1, is_true.numel()));
  return static_cast<double>(is_true.sum().item<int64_t>()) / count;
}

// The quantizers of a weight, `[rows, columns]`, with the scales or factors of the least squared error,
// and the share of the scales that give the weight's own bits.
Fit fit_factors(const torch::Tensor& rows, const nn::FakeQuantizeInt4Impl& quantizer,
                const std::string& scale_rule) {
  auto options = quantizer.options;
  const auto [scale, factor, zero_point, is_exact] = search::fit_int4_factors(
      rows, options.group_size(), options.symmetric(), scale_rule, options.bits());
  options.scale(scale).group_factor(factor).group_zero_point(zero_point);
  return {std::make_shared<nn::FakeQuantizeInt4Impl>(options), share_of(is_exact)};
}

// Nothing with eight bits and no exact scale: the weight's dynamic quantizer is right.
Fit fit_scale(const torch::Tensor& rows, const nn::FakeQuantizeImpl& quantizer,
              const std::string& scale_rule) {
  auto options = quantizer.options;
  const auto size = options.group_size().value_or(0);
  std::vector<int64_t> shape = {rows.size(0)};
  if (options.granularity() == "per_tensor") shape = {};
  if (options.granularity() == "per_group") shape = {rows.size(0), -1};
  const auto segments =
      size > 0 ? rows.reshape({-1, size}) : rows.reshape({shape.empty() ? 1 : rows.size(0), -1});
  const auto [scale, zero_point, is_exact] =
      search::search_scale(segments, options.quant_min(), options.quant_max(), options.symmetric(),
                           options.scale_dtype(), /*importance=*/std::nullopt, scale_rule);
  const double share = share_of(is_exact);
  if (share == 0.0 && options.quant_max() - options.quant_min() == 255) return {};
  options.mode("fixed").symmetric(true);
  options.scale(scale.reshape(shape)).zero_point(zero_point.reshape(shape));
  return {std::make_shared<nn::FakeQuantizeImpl>(options), share};
}

Fit fit(const torch::Tensor& rows, const nn::Quantizer& quantizer, const std::string& scale_rule) {
  if (const auto* int4 = dynamic_cast<const nn::FakeQuantizeInt4Impl*>(&quantizer)) {
    return fit_factors(rows, *int4, scale_rule);
  }
  return fit_scale(rows, dynamic_cast<const nn::FakeQuantizeImpl&>(quantizer), scale_rule);
}

using Fitted = std::map<Converter::Tie, Fit>;

// Search the scale of a weight, which layers with one weight share; return the share of exact ones.
double search_scale(nn::FakeQuantizedLayer& prepared, const QuantConfig& config, Fitted& fitted) {
  if (prepared.config().weight().ternary() || config.scale_rule() == "max") return 0.0;
  auto& known = fitted[Converter::tie_of(prepared)];
  if (known.quantizer == nullptr) {
    known = fit(prepared.rows_of_weight(), *prepared.weight_fake_quant, config.scale_rule());
  }
  if (known.quantizer != nullptr) prepared.set_weight_quantizer(known.quantizer);
  return known.exact_share;
}

// What the report says of weights that are integers times scales already.
std::string about_lattice(double exact_share) {
  if (exact_share <= 0.0) return "";
  std::array<char, 16> percent{};
  const double tenths = std::floor(1000 * exact_share) / 10;  // 100 % means all
  std::snprintf(percent.data(), percent.size(), "%.1f", tenths);
  return "; " + std::string(exact_share < 1.0 ? percent.data() : "100") +
         " % of its scales give the weight's own bits";
}

}  // namespace

Report quantize_(torch::nn::Module& model, const QuantConfig& config, const Options& options) {
  TORCH_CHECK_VALUE(options.calibration || !config.is_static(), quantize_name,
                    ": expected calibration data for a static input, but got None");
  Transaction change;
  Report report;
  const auto places = places_of(model);
  const Choice choice{quantize_name, [&](const Kind& kind) { return after_training(config, kind); },
                      check_weights};
  auto chosen = choose(model, places, choice, options.filter, report);
  TORCH_CHECK_VALUE(!chosen.empty(), quantize_name, ": ",
                    nothing_to("quantize", model, places, report));
  if (config.is_static()) calibrate(model, places, chosen, config, options);
  Fitted fitted;
  std::vector<ToConvert> layers;
  layers.reserve(chosen.size());
  for (const auto& one : chosen) layers.emplace_back(one.prepared.get(), false);
  Converter converter(layers);
  double exact_share = 0.0;  // of the layer that was converted last
  const auto converted = [&](const Chosen& one) {
    std::shared_ptr<nn::QuantizedLayer> layer;
    auto* linear = dynamic_cast<nn::FakeQuantizedLinearImpl*>(one.prepared.get());
    with_path(quantize_name, one.path, [&] {
      if (linear != nullptr) linear->copy_rotated_weight();
      exact_share = search_scale(*one.prepared, config, fitted);
      layer = converter.convert(*one.prepared);
    });
    if (linear != nullptr) linear->drop_rotated_weight();
    return layer;
  };
  if (report.quantized_parameters > kKept) {
    for (const auto& one : chosen) {
      converted(one);
      converter.forget();
    }
    change.finish();  // from here on nothing fails, and each layer is freed before the next is made
  }
  report.changed.clear();
  for (auto& one : chosen) {
    const auto layer = converted(one);
    report.changed.emplace_back(
        one.path, about(*layer, *one.prepared) + one.remark + about_lattice(exact_share));
    one.prepared.reset();
    swap(change, places, {{one.module, layer}});
  }
  report.bytes_after = total_bytes(model);
  change.finish();
  return report;
}

}  // namespace baraquant
