// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/calibrate.h"

#include <c10/util/ScopeExit.h>

#include <limits>

#include "api/ops.h"

namespace baraquant::workflow {

namespace {

constexpr double averaging_constant = 0.01;  // of "moving_average"

// Stands in the place of a float layer, calls it, and observes its input.
class ObservedLayer : public nn::Layer {
 public:
  ObservedLayer(std::shared_ptr<torch::nn::Module> layer, bool averages)
      : Layer(layer->name()), layer_(std::move(layer)), averages_(averages) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    observe(input.detach());
    return *call_layer(*layer_, input);
  }

  bool is_reached() const { return min_val.defined(); }
  bool is_finite() const { return (min_val + max_val * 0).isfinite().item<bool>(); }

  torch::Tensor min_val, max_val;  // undefined before the first input

 private:
  void observe(torch::Tensor input) {
    if (input.numel() == 0) return;
    if (!is_reached()) {
      const bool is_double = input.scalar_type() == torch::kFloat64;
      const auto options = input.options().dtype(is_double ? torch::kFloat64 : torch::kFloat32);
      const auto infinity = std::numeric_limits<double>::infinity();
      min_val = torch::full({}, infinity, options);
      max_val = torch::full({}, -infinity, options);
      skipped_ = torch::zeros({}, options.dtype(torch::kInt64));
    } else if ((input.scalar_type() == torch::kFloat64) !=
               (min_val.scalar_type() == torch::kFloat64)) {
      input = input.to(min_val.scalar_type());
    }
    observe_min_max_(input.to(min_val.device()), min_val, max_val, std::nullopt,
                     averages_ ? std::optional(averaging_constant) : std::nullopt, skipped_);
  }

  std::shared_ptr<torch::nn::Module> layer_;
  bool averages_;
  torch::Tensor skipped_;
};

// The modules as they were: of each place, and as a container holds it.
struct Original {
  Place place;
  std::shared_ptr<torch::nn::Module> module;
};

}  // namespace

std::map<std::string, Observed> observe_inputs(const std::string& caller, torch::nn::Module& model,
                                               const std::vector<Place>& places,
                                               const std::vector<Chosen>& chosen,
                                               const std::string& observer,
                                               const Calibration& calibration) {
  std::map<std::string, std::shared_ptr<ObservedLayer>> observed;
  Swaps there, back;
  for (const auto& one : chosen) {
    const auto& activation = one.prepared->config().activation();
    if (one.prepared->input_fake_quant == nullptr || activation->dynamic()) continue;
    auto layer =
        std::make_shared<ObservedLayer>(one.module->shared_from_this(), observer != "min_max");
    observed[one.path] = layer;
    there[one.module] = layer;
    back[layer.get()] = one.module->shared_from_this();
  }
  if (observed.empty()) return {};
  std::vector<std::pair<torch::nn::Module*, bool>> modes = {{&model, model.is_training()}};
  for (const auto& place : places) modes.emplace_back(place.module, place.module->is_training());
  {
    const auto restore = c10::make_scope_exit([&] {
      swap(places_of(model), back);
      // train() reaches the children too: parents come first.
      for (const auto& [module, training] : modes) module->train(training);
    });
    model.eval();
    swap(places, there);
    const torch::NoGradGuard no_grad;
    calibration();
  }
  std::map<std::string, Observed> result;
  for (const auto& [path, layer] : observed) {
    if (!layer->is_reached()) continue;
    TORCH_CHECK_VALUE(layer->is_finite(), caller, ": ", path,
                      ": expected finite calibration data, but every batch gives its input a NaN "
                      "or an infinity");
    result[path] = {layer->min_val, layer->max_val};
  }
  TORCH_CHECK_VALUE(!result.empty(), caller, ": ", observed.begin()->first,
                    ": expected the calibration data to reach the module, but it saw no input; "
                    "leave it out with filter_fn, or add data that uses it");
  return result;
}

}  // namespace baraquant::workflow
