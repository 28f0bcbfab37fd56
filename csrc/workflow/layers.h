// SPDX-License-Identifier: BSD-3-Clause
// The table of layers: every kind that can be quantized, and how.
#pragma once

#include <torch/nn/modules/container/any.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/nn.h"
#include "nn/given.h"

namespace baraquant::workflow {

// A kind of float layer.
struct Kind {
  const char* name;  // "Linear", "Conv2d" or "Embedding"
  // Whether a module is of the float class itself, not of a subclass with a forward of its own.
  bool (*matches)(const torch::nn::Module& module);
  // The layer for training, which shares the parameters.
  std::shared_ptr<nn::FakeQuantizedLayer> (*prepare)(const torch::nn::Module& module,
                                                     const QuantConfig& config);
  // Whether quantize_ leaves the input floating unless conv_inputs is true.
  bool keeps_input;
};

// The kind of a float module; nullptr if it cannot be quantized.
const Kind* kind_of(const torch::nn::Module& module);
// Why a float module of a kind stays floating; empty if it does not.
std::string why_float(const torch::nn::Module& module);

// The layer for inference that gives the same bits as a prepared layer in evaluation. `given` has the
// tensors of its quantized weight: int8 as `qweight`, or `packed`, with factors for its groups, or
// for a layer of floating arithmetic with the numbers alone.
std::shared_ptr<nn::QuantizedLayer> convert(nn::FakeQuantizedLayer& prepared, nn::Given given,
                                            bool floating_input);

// What a report says of a converted layer: its class, its rotation, and unless `floating_input` the
// input of a convolution that conv_inputs rounds.
std::string about(const nn::QuantizedLayer& layer, const nn::FakeQuantizedLayer& prepared,
                  bool floating_input = false);

bool is_prepared(const torch::nn::Module& module);
bool is_converted(const torch::nn::Module& module);

// "Linear" for torch::nn::LinearImpl.
std::string type_name(const torch::nn::Module& module);

// A layer as torch::nn::Sequential holds it: with its own type.
torch::nn::AnyModule any_module(const std::shared_ptr<torch::nn::Module>& module);

// The output for one tensor, or nothing if a module takes no tensor or is not known.
std::optional<torch::Tensor> call_layer(torch::nn::Module& module, const torch::Tensor& input);

// The parameters that quantization turns into integers: those of two and more dimensions.
std::vector<torch::Tensor> weights_of(const torch::nn::Module& module);

}  // namespace baraquant::workflow
