// SPDX-License-Identifier: BSD-3-Clause
#include "api/workflow.h"
#include "workflow/calibrate.h"
#include "workflow/select.h"

namespace baraquant {

namespace {

using namespace workflow;

constexpr const char* prepare_name = "baraquant.qat.prepare_";

// Give a static input the range of the calibration data.
void start_range(nn::Quantizer& quantizer, const Observer& observer, bool follows_training) {
  const auto quant_min = quantizer.quant_min(), quant_max = quantizer.quant_max();
  if (auto* learned = dynamic_cast<nn::LearnedFakeQuantizeImpl*>(&quantizer)) {
    const auto [scale, zero_point] =
        observer.qparams(quant_min, quant_max, learned->options.symmetric());
    learned->start(scale, zero_point);
    return;
  }
  auto& one = dynamic_cast<nn::FakeQuantizeImpl&>(quantizer);
  const auto [low, high] = observer.range(quant_min, quant_max, one.options.symmetric());
  one.min_val.copy_(low);
  one.max_val.copy_(high);
  const auto [scale, zero_point] = one.calculate_qparams();
  one.scale.copy_(scale);
  one.zero_point.copy_(zero_point);
  if (!follows_training) one.disable_observer();
}

// Check that static inputs have data where training cannot find their range by itself.
void check_calibration(const std::vector<Chosen>& chosen, const QuantConfig& config,
                       const Options& options) {
  if (options.calibration || follows_training(config.observer())) return;
  for (const auto& one : chosen) {
    const auto& own = one.prepared->config();
    const bool is_observed = own.is_static() && !own.activation()->learned();
    TORCH_CHECK_VALUE(!is_observed, prepare_name, ": ", one.path,
                      ": expected calibration data for the observer '", config.observer(),
                      "', but got None; training by itself follows min_max and moving_average");
  }
}

}  // namespace

Report prepare_(torch::nn::Module& model, const QuantConfig& config, const Options& options) {
  Transaction change;
  Report report;
  const auto places = places_of(model);
  const Choice choice{prepare_name, [&](const Kind&) { return config; }, [](const auto&) {}};
  const auto chosen = choose(model, places, choice, options.filter, report);
  TORCH_CHECK_VALUE(!chosen.empty(), prepare_name, ": ",
                    nothing_to("prepare", model, places, report));
  check_calibration(chosen, config, options);
  if (options.calibration) {
    const auto observers =
        observe_inputs(prepare_name, model, places, chosen, config.observer(), options.calibration);
    const bool follows = follows_training(config.observer());
    for (const auto& one : chosen) {
      const auto found = observers.find(one.path);
      if (found == observers.end()) continue;
      start_range(*one.prepared->input_fake_quant, *found->second, follows);
    }
  }
  Swaps swaps;
  for (const auto& one : chosen) {
    swaps[one.module] = one.prepared;
    if (!one.prepared->config().rotate().has_value()) continue;
    change.keep_values(one.prepared->weight);
    dynamic_cast<nn::FakeQuantizedLinearImpl&>(*one.prepared).rotate_weight();
  }
  swap(change, places, swaps);
  report.bytes_after = total_bytes(model);
  change.finish();
  return report;
}

}  // namespace baraquant
