// SPDX-License-Identifier: BSD-3-Clause
#include "api/workflow.h"
#include "nn/range.h"
#include "workflow/calibrate.h"
#include "workflow/select.h"

namespace baraquant {

namespace {

using namespace workflow;

constexpr const char* prepare_name = "baraquant.qat.prepare_";

std::string nothing_to_prepare(const std::vector<Place>& places, const torch::nn::Module& model,
                               const Report& report) {
  const auto kind = type_name(model);
  for (const auto& place : places) {
    if (is_prepared(*place.module)) {
      return "expected a float model, but " + kind + " is prepared already";
    }
    if (is_converted(*place.module)) {
      return "expected a float model, but " + kind + " is converted already";
    }
  }
  return "expected a model with a Linear, Conv1d, Conv2d, Embedding or another layer to prepare, "
         "but " +
         kind + " has none" + reasons(report);
}

// Give a static input the range of the calibration data.
void start_range(nn::Quantizer& quantizer, const Observed& observed) {
  if (auto* learned = dynamic_cast<nn::LearnedFakeQuantizeImpl*>(&quantizer)) {
    const auto [scale, zero_point] =
        nn::qparams_of_range(observed.min_val, observed.max_val, learned->quant_min(),
                             learned->quant_max(), learned->options.symmetric());
    learned->start(scale, zero_point);
    return;
  }
  auto& one = dynamic_cast<nn::FakeQuantizeImpl&>(quantizer);
  const torch::NoGradGuard no_grad;
  one.min_val.copy_(observed.min_val);
  one.max_val.copy_(observed.max_val);
  const auto [scale, zero_point] = one.calculate_qparams();
  one.scale.copy_(scale);
  one.zero_point.copy_(zero_point);
}

}  // namespace

Report prepare_(torch::nn::Module& model, const QuantConfig& config, const Options& options) {
  Report report;
  const auto places = places_of(model);
  const Choice choice{prepare_name, [&](const Kind&) { return config; }, [](const auto&) {}};
  const auto chosen = choose(model, places, choice, options.filter, report);
  TORCH_CHECK_VALUE(!chosen.empty(), prepare_name, ": ", nothing_to_prepare(places, model, report));
  if (options.calibration) {
    for (const auto& [path, observed] : observe_inputs(prepare_name, model, places, chosen,
                                                       config.observer(), options.calibration)) {
      for (const auto& one : chosen) {
        if (one.path == path) start_range(*one.prepared->input_fake_quant, observed);
      }
    }
  }
  Swaps swaps;
  for (const auto& one : chosen) swaps[one.module] = one.prepared;
  swap(places, swaps);
  report.bytes_after = total_bytes(model);
  return report;
}

}  // namespace baraquant
