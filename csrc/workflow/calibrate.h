// SPDX-License-Identifier: BSD-3-Clause
// Finds the ranges of static inputs: layers observe them while the model runs, in constant memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "workflow/select.h"

namespace baraquant::workflow {

// Whether training can update the range with each batch; else it comes from calibration alone.
bool follows_training(const std::string& observer);

class Observer {
 public:
  // `name` is "min_max", "moving_average", "percentile" or "mse".
  explicit Observer(std::string name) : name_(std::move(name)) {}

  // Observe a floating input of any shape; an empty one changes nothing. An input with a NaN or an
  // infinity changes nothing either.
  void observe(at::Tensor input);
  // Whether an input was seen, and whether one of them was finite.
  bool is_reached() const { return min_val_.defined(); }
  bool is_finite() const;
  // The ends of the range that the scale must cover, `[]` each.
  std::tuple<at::Tensor, at::Tensor> range(int64_t quant_min, int64_t quant_max,
                                           bool symmetric) const;
  // The scale and the zero point of that range.
  std::tuple<at::Tensor, at::Tensor> qparams(int64_t quant_min, int64_t quant_max,
                                             bool symmetric) const;

 private:
  std::string name_;
  at::Tensor min_val_, max_val_, skipped_, counts_;  // undefined before the first input
};

// Run the calibration; returns the observers of the static inputs by the paths of the layers that the
// data reaches. The model is as it was afterwards, also after an error.
//
// Throws c10::ValueError if the data reaches no layer, or if all of a layer's inputs held a NaN or an
// infinity.
std::map<std::string, std::shared_ptr<Observer>> observe_inputs(
    const std::string& caller, torch::nn::Module& model, const std::vector<Place>& places,
    const std::vector<Chosen>& chosen, const std::string& observer, const Calibration& calibration);

}  // namespace baraquant::workflow
