// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// What the modules of baraquant::nn share.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "../config.h"
#include "../export.h"

/// Declares what torch::nn clones a module with. Private members may follow.
#define BARAQUANT_CLONES                                                                \
 public:                                                                                \
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = \
                                               std::nullopt) const override;            \
                                                                                        \
 private:                                                                               \
  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;

namespace baraquant::nn {

/// A module whose integers stay integers, and whose scales keep their precision, when it is
/// converted: scales stay float32 in a float16 or bfloat16 module, as the ops require.
class BARAQUANT_API Module : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 protected:
  /// Whether a tensor of this name is a scale, which stays float32 or float64.
  virtual bool is_scale(const std::string& name) const;
  /// Called after a conversion, for what is no parameter and no buffer.
  virtual void converted(const std::optional<torch::Device>& device,
                         const std::optional<torch::Dtype>& dtype);

 private:
  void convert(const std::optional<torch::Device>& device, const std::optional<torch::Dtype>& dtype,
               bool non_blocking);
};

/// A module with one input and one output, as all layers here are.
class BARAQUANT_API Layer : public Module {
 public:
  using Module::Module;
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

/// An int8 tensor, its scale, and its zero point (int32, shaped like the scale).
using Quantized = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;

}  // namespace baraquant::nn
