// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/calibrate.h"

#include <limits>
#include <utility>
#include <vector>

#include "api/ops.h"
#include "frame/dtypes.h"
#include "search/histogram.h"
#include "search/range.h"

namespace baraquant::workflow {

namespace {

constexpr double percentile = 99.99;

// Stands in the place of a float layer, calls it, and observes its input.
class ObservedLayer : public nn::Layer {
 public:
  ObservedLayer(std::shared_ptr<torch::nn::Module> layer, std::shared_ptr<Observer> observer,
                std::optional<int64_t> rotate)
      : Layer(layer->name()),
        layer_(std::move(layer)),
        observer_(std::move(observer)),
        rotate_(rotate) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    observer_->observe(rotate_.has_value() ? hadamard(input, *rotate_) : input);
    return *call_layer(*layer_, input);
  }

 private:
  std::shared_ptr<torch::nn::Module> layer_;
  std::shared_ptr<Observer> observer_;
  std::optional<int64_t> rotate_;  // the layer will see the rotated input
};

}  // namespace

bool follows_training(const std::string& observer) {
  return observer == "min_max" || observer == "moving_average";
}

void Observer::observe(at::Tensor input) {
  if (input.numel() == 0) return;
  input = input.detach();
  const bool is_double = input.scalar_type() == at::kDouble;
  if (!is_reached()) {
    const auto options = input.options().dtype(compute_dtype(input.scalar_type()));
    const auto infinity = std::numeric_limits<double>::infinity();
    min_val_ = at::full({}, infinity, options);
    max_val_ = at::full({}, -infinity, options);
    skipped_ = at::zeros({}, options.dtype(at::kLong));
  } else if (is_double != (min_val_.scalar_type() == at::kDouble)) {
    input = input.to(min_val_.scalar_type());
  }
  input = input.to(min_val_.device());
  const auto before = skipped_.clone();
  const bool averages = name_ == "moving_average";
  observe_min_max_(input, min_val_, max_val_, std::nullopt,
                   averages ? std::optional(search::kAveragingConstant) : std::nullopt, skipped_);
  if (follows_training(name_)) return;
  const auto counts = search::histogram(input) * (skipped_ == before);
  counts_ = counts_.defined() ? counts_ + counts : counts;
}

bool Observer::is_finite() const { return (min_val_ + max_val_ * 0).isfinite().item<bool>(); }

std::tuple<at::Tensor, at::Tensor> Observer::range(int64_t quant_min, int64_t quant_max,
                                                   bool symmetric) const {
  if (follows_training(name_)) return {min_val_, max_val_};
  const auto [low, high] =
      name_ == "percentile"
          ? search::percentile_range(counts_, min_val_, max_val_, percentile, symmetric)
          : search::least_error_range(counts_, min_val_, max_val_, quant_min, quant_max, symmetric);
  // As in Python, where a number becomes a float32 tensor first.
  return {at::full({}, low, at::kFloat).to(min_val_.options()),
          at::full({}, high, at::kFloat).to(min_val_.options())};
}

std::tuple<at::Tensor, at::Tensor> Observer::qparams(int64_t quant_min, int64_t quant_max,
                                                     bool symmetric) const {
  const auto [low, high] = range(quant_min, quant_max, symmetric);
  return search::qparams_of_range(low, high, quant_min, quant_max, symmetric);
}

std::map<std::string, std::shared_ptr<Observer>> observe_inputs(const std::string& caller,
                                                                torch::nn::Module& model,
                                                                const std::vector<Place>& places,
                                                                const std::vector<Chosen>& chosen,
                                                                const std::string& observer,
                                                                const Calibration& calibration) {
  std::map<std::string, std::shared_ptr<Observer>> observed;
  Swaps there;
  for (const auto& one : chosen) {
    const auto& activation = one.prepared->config().activation();
    if (one.prepared->input_fake_quant == nullptr || activation->dynamic()) continue;
    observed[one.path] = std::make_shared<Observer>(observer);
    there[one.module] = std::make_shared<ObservedLayer>(
        one.module->shared_from_this(), observed[one.path], one.prepared->config().rotate());
  }
  if (observed.empty()) return {};
  std::vector<std::pair<torch::nn::Module*, bool>> modes = {{&model, model.is_training()}};
  for (const auto& place : places) modes.emplace_back(place.module, place.module->is_training());
  Transaction change;
  for (const auto& buffer : model.buffers()) change.keep_values(buffer);
  // train() reaches the children too: parents come first.
  change.undo_by([modes] {
    for (const auto& [module, training] : modes) module->train(training);
  });
  model.eval();
  swap(change, places, there);
  calibration();
  change.undo();
  const auto first = observed.begin()->first;
  std::erase_if(observed, [](const auto& one) { return !one.second->is_reached(); });
  TORCH_CHECK_VALUE(!observed.empty(), caller, ": ", first,
                    ": expected the calibration data to reach the module, but it saw no input; "
                    "leave it out with filter_fn, or add data that uses it");
  for (const auto& [path, one] : observed) {
    TORCH_CHECK_VALUE(one->is_finite(), caller, ": ", path,
                      ": expected finite calibration data, but every batch gives its input a NaN "
                      "or an infinity");
  }
  return observed;
}

}  // namespace baraquant::workflow
