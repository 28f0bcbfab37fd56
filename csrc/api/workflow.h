// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// From a float model to a prepared one, to integers: prepare_, convert_, quantize_.
///
///     torch::nn::Sequential model(torch::nn::Linear(64, 10));
///     baraquant::prepare_(model, baraquant::W8A8());
///     ... train ...
///     baraquant::convert_(model);
///
/// A call changes a model as a whole, or not at all: any exception leaves it as it was. Where more than
/// 2^28 parameters become integers, all is tried first, then each layer is freed as it is replaced.
///
/// The layers that are swapped are Linear, Conv2d and Embedding, wherever they are registered: in
/// Sequential, ModuleList, ModuleDict, or in a module of your own. A typed member
/// (`torch::nn::Linear fc{nullptr};`) would still hold the float layer, so such a layer is an error.
/// Register the layer without a member, and call it by its name:
///
///     struct Net : torch::nn::Module {
///       Net() { register_module("fc", torch::nn::Linear(64, 10)); }
///       torch::Tensor forward(const torch::Tensor& x) { return baraquant::call(*this, "fc", x); }
///     };
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config.h"
#include "export.h"

namespace baraquant {

/// What became of a model's layers, by their paths, in the order of the model.
struct BARAQUANT_API Report {
  /// What each swapped layer became.
  std::vector<std::pair<std::string, std::string>> changed;
  /// Why a layer with weights was not changed.
  std::vector<std::pair<std::string, std::string>> left_out;
  int64_t total_parameters = 0;      ///< of the model before, each counted once
  int64_t quantized_parameters = 0;  ///< of them, those of swapped layers
  int64_t bytes_before = 0;          ///< of parameters and buffers
  int64_t bytes_after = 0;
  /// A table.
  std::string str() const;
};

/// Says whether to swap a layer, by its path; empty swaps all.
using Filter = std::function<bool(const torch::nn::Module& module, const std::string& path)>;
/// Runs the model on typical inputs.
using Calibration = std::function<void()>;

/// Options of prepare_ and quantize_.
struct BARAQUANT_API Options {
  Filter filter = {};
  /// Runs the model on typical inputs, in evaluation mode: static inputs need it in quantize_, and
  /// may have it in prepare_.
  Calibration calibration = {};
};

/// Swap the layers of `model`, in place, for layers of quantization-aware training.
///
/// They share their parameters with the old ones: tied weights stay tied, and an optimizer that was
/// made before stays valid (learned scales are new parameters).
///
/// @throws c10::ValueError There is no layer to swap, or something besides its place in the model
///     owns one.
BARAQUANT_API Report prepare_(torch::nn::Module& model, const QuantConfig& config,
                              const Options& options = {});

/// Swap the layers of a prepared model, in place, for quantized layers, which give the same bits as
/// the prepared ones in evaluation.
///
/// @throws c10::ValueError No layer is prepared, or a scale is unknown, NaN or infinite.
BARAQUANT_API Report convert_(torch::nn::Module& model);

/// Quantize the layers of a trained model in place, without training.
///
/// @throws c10::ValueError No layer can be quantized, a weight is not finite, or calibration data is
///     needed and missing, or does not reach any layer.
BARAQUANT_API Report quantize_(torch::nn::Module& model, const QuantConfig& config,
                               const Options& options = {});

/// The output of the child `name` of `parent` for one tensor, whatever the child is now.
///
/// @throws c10::ValueError There is no such child, or it is no layer that takes one tensor.
BARAQUANT_API torch::Tensor call(torch::nn::Module& parent, const std::string& name,
                                 const torch::Tensor& input);

/// Tensors by their names, such as `0.weight`.
using StateDict = std::map<std::string, torch::Tensor>;

/// Parameters and buffers by their names, as Python's state_dict() returns them.
BARAQUANT_API StateDict state_dict(const torch::nn::Module& model);

/// Copy tensors into a model's parameters and buffers.
///
/// A state may lack the `scheme` and `saw_zeros` of fake quantizers, and a switch that is on.
///
/// @throws c10::ValueError A name is missing or unknown, a shape differs, or a fake quantizer is none of
///     the kind that the state comes from.
BARAQUANT_API void load_state_dict(torch::nn::Module& model, const StateDict& tensors);

namespace workflow {
BARAQUANT_API void replace_child(torch::nn::Module& parent, const std::string& name,
                                 const std::shared_ptr<torch::nn::Module>& module,
                                 const torch::nn::AnyModule& any);
}  // namespace workflow

/// Replace the child `name` of `parent`, which may be a container of torch::nn.
///
/// @throws c10::ValueError There is no such child.
template <typename M>
void replace_module(torch::nn::Module& parent, const std::string& name,
                    const std::shared_ptr<M>& module) {
  torch::nn::AnyModule any;
  if constexpr (torch::detail::has_forward<M>::value) {
    if (module != nullptr) any = torch::nn::AnyModule(module);
  }
  workflow::replace_child(parent, name, module, any);
}
template <typename M>
void replace_module(torch::nn::Module& parent, const std::string& name,
                    const torch::nn::ModuleHolder<M>& module) {
  replace_module(parent, name, module.ptr());
}

template <typename M>
Report prepare_(torch::nn::ModuleHolder<M>& model, const QuantConfig& config,
                const Options& options = {}) {
  return prepare_(*model, config, options);
}
template <typename M>
Report convert_(torch::nn::ModuleHolder<M>& model) {
  return convert_(*model);
}
template <typename M>
Report quantize_(torch::nn::ModuleHolder<M>& model, const QuantConfig& config,
                 const Options& options = {}) {
  return quantize_(*model, config, options);
}

}  // namespace baraquant
