// SPDX-License-Identifier: BSD-3-Clause
#include "nn/product.h"

#include <torch/enum.h>

namespace baraquant::nn {

using Options = torch::nn::Conv2dOptions;

std::vector<int64_t> padding_sides_of(const Options& options) {
  std::vector<int64_t> sides;
  for (size_t dim = 2; dim-- > 0;) {
    if (std::holds_alternative<torch::enumtype::kSame>(options.padding())) {
      const auto total = (*options.dilation())[dim] * ((*options.kernel_size())[dim] - 1);
      sides.insert(sides.end(), {total / 2, total - total / 2});
    } else if (std::holds_alternative<torch::enumtype::kValid>(options.padding())) {
      sides.insert(sides.end(), {0, 0});
    } else {
      const auto size = (*std::get<torch::ExpandingArray<2>>(options.padding()))[dim];
      sides.insert(sides.end(), {size, size});
    }
  }
  return sides;
}

const char* padding_mode_of(const torch::nn::detail::conv_padding_mode_t& mode) {
  if (std::holds_alternative<torch::enumtype::kReflect>(mode)) return "reflect";
  if (std::holds_alternative<torch::enumtype::kReplicate>(mode)) return "replicate";
  if (std::holds_alternative<torch::enumtype::kCircular>(mode)) return "circular";
  return "zeros";
}

at::Tensor float_conv2d(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                        const Options& options) {
  const std::string mode = padding_mode_of(options.padding_mode());
  const auto &stride = *options.stride(), &dilation = *options.dilation();
  if (mode != "zeros") {
    const auto padded = at::pad(input, padding_sides_of(options), mode);
    return at::conv2d(padded, weight, maybe(bias), stride, "valid", dilation, options.groups());
  }
  if (std::holds_alternative<torch::enumtype::kSame>(options.padding())) {
    return at::conv2d(input, weight, maybe(bias), stride, "same", dilation, options.groups());
  }
  if (std::holds_alternative<torch::enumtype::kValid>(options.padding())) {
    return at::conv2d(input, weight, maybe(bias), stride, "valid", dilation, options.groups());
  }
  const auto& padding = *std::get<torch::ExpandingArray<2>>(options.padding());
  return at::conv2d(input, weight, maybe(bias), stride, padding, dilation, options.groups());
}

}  // namespace baraquant::nn
