// SPDX-License-Identifier: BSD-3-Clause
// Converts prepared layers; layers with tied weights share the integers.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "workflow/layers.h"

namespace baraquant::workflow {

// A prepared layer, and whether its input is to stay floating.
using ToConvert = std::pair<nn::FakeQuantizedLayer*, bool>;

class Converter {
 public:
  // The weight, and how it is quantized: equal for layers that can share integers.
  using Tie = std::pair<const void*, std::string>;
  static Tie tie_of(nn::FakeQuantizedLayer& prepared);

  // All layers that will be converted. Linear layers of floating arithmetic pack integers of at most
  // four bits, unless another one of these layers shares them as int8.
  explicit Converter(const std::vector<ToConvert>& layers);

  // The layer that replaces a prepared one; `floating_input` leaves its input floating.
  std::shared_ptr<nn::QuantizedLayer> convert(nn::FakeQuantizedLayer& prepared,
                                              bool floating_input = false);
  // Free the integers that are kept for layers with the same weight.
  void forget() { known_.clear(); }

 private:
  // The tie, and the quantizer if it has a scale of its own.
  using Key = std::pair<Tie, const void*>;

  const nn::Given& integers_of(nn::FakeQuantizedLayer& prepared, bool floating_input);

  std::map<Key, nn::Given> known_;  // the tensors of weights
  std::set<Tie> held_;              // of what is stored as int8
};

}  // namespace baraquant::workflow
