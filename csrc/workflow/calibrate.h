// SPDX-License-Identifier: BSD-3-Clause
// Finds the ranges of static inputs: the layers observe their inputs while the model runs.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "workflow/observers.h"
#include "workflow/select.h"

namespace baraquant::workflow {

// Run the calibration; returns the observers of the static inputs by the paths of the layers that the
// data reaches. The model is as it was afterwards, also after an error.
//
// Throws c10::ValueError if the data reaches no layer, or if all of a layer's inputs held a NaN or an
// infinity.
std::map<std::string, std::shared_ptr<Observer>> observe_inputs(
    const std::string& caller, torch::nn::Module& model, const std::vector<Place>& places,
    const std::vector<Chosen>& chosen, const std::string& observer, const Calibration& calibration);

}  // namespace baraquant::workflow
