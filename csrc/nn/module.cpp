// SPDX-License-Identifier: BSD-3-Clause
#include "api/nn/module.h"

namespace baraquant::nn {

void Module::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  convert(device, dtype, non_blocking);
}

void Module::to(torch::Dtype dtype, bool non_blocking) {
  convert(std::nullopt, dtype, non_blocking);
}

void Module::to(torch::Device device, bool non_blocking) {
  convert(device, std::nullopt, non_blocking);
}

bool Module::is_scale(const std::string&) const { return false; }

void Module::converted(const std::optional<torch::Device>&, const std::optional<torch::Dtype>&) {}

void Module::convert(const std::optional<torch::Device>& device,
                     const std::optional<torch::Dtype>& dtype, bool non_blocking) {
  for (const auto& child : children()) {
    if (device.has_value() && dtype.has_value()) {
      child->to(*device, *dtype, non_blocking);
    } else if (device.has_value()) {
      child->to(*device, non_blocking);
    } else if (dtype.has_value()) {
      child->to(*dtype, non_blocking);
    }
  }
  const auto convert_one = [&](const std::string& name, const torch::Tensor& tensor) {
    auto target = tensor.scalar_type();
    if (dtype.has_value() && tensor.is_floating_point() && c10::isFloatingType(*dtype)) {
      const bool is_exact = *dtype == torch::kFloat32 || *dtype == torch::kFloat64;
      target = is_scale(name) && !is_exact ? torch::kFloat32 : *dtype;
    }
    tensor.set_data(tensor.to(device.value_or(tensor.device()), target, non_blocking));
  };
  for (const auto& item : named_parameters(/*recurse=*/false)) convert_one(item.key(), *item);
  for (const auto& item : named_buffers(/*recurse=*/false)) convert_one(item.key(), *item);
  converted(device, dtype);
}

}  // namespace baraquant::nn
