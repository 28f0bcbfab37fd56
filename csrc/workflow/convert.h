// SPDX-License-Identifier: BSD-3-Clause
// Converts prepared layers; layers with tied weights share the integers.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "workflow/layers.h"

namespace baraquant::workflow {

class Converter {
 public:
  // The layer that replaces a prepared one; `floating_input` leaves its input floating.
  std::shared_ptr<nn::QuantizedLayer> convert(nn::FakeQuantizedLayer& prepared,
                                              bool floating_input = false);

 private:
  // The weight, the quantizer if it has a scale of its own, and how it is quantized.
  using Key = std::tuple<const void*, const void*, std::string>;

  const Integers& integers_of(nn::FakeQuantizedLayer& prepared);

  std::map<Key, Integers> known_;
};

}  // namespace baraquant::workflow
