// SPDX-License-Identifier: BSD-3-Clause
#include "nn/product.h"

#include <torch/enum.h>

#include "api/ops.h"
#include "int8_mm/math.h"

namespace baraquant::nn {

using Options = torch::nn::Conv2dOptions;

namespace {

// The fewest inputs of a group whose product of integers is worth it; one input is depthwise.
constexpr int64_t kMinInputs = 16;

}  // namespace

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
  if (const auto* sizes = std::get_if<torch::ExpandingArray<2>>(&options.padding())) {
    return at::conv2d(input, weight, maybe(bias), stride, **sizes, dilation, options.groups());
  }
  const bool is_same = std::holds_alternative<torch::enumtype::kSame>(options.padding());
  const char* padding = is_same ? "same" : "valid";
  return at::conv2d(input, weight, maybe(bias), stride, padding, dilation, options.groups());
}

bool is_integer_conv(bool rounds, bool is_flat, at::IntArrayRef weight, int64_t groups) {
  const auto inputs = weight[1];
  const bool fits = groups == 1 || inputs == 1 || inputs >= kMinInputs;
  return rounds && is_flat && fits &&
         c10::multiply_integers(weight.slice(1)) <= int8_mm::kMaxShiftedDepth;
}

at::Tensor channels_inside(const at::Tensor& weight) {
  return weight.movedim(1, -1).contiguous().movedim(-1, 1);
}

at::Tensor integer_conv2d(const at::Tensor& input, Quantizer& rounder, const IntegerConv& layer,
                          const torch::nn::Conv2dOptions& options) {
  const std::string mode = padding_mode_of(options.padding_mode());
  const auto sides = padding_sides_of(options);
  auto values = input.detach();
  std::vector<int64_t> padding = {sides[2], sides[0]};
  if (mode != "zeros" || sides[0] != sides[1] || sides[2] != sides[3]) {
    values = at::pad(values, sides, mode == "zeros" ? "constant" : mode);
    padding = {0, 0};
  }
  const auto [integers, scale, zero_point] = rounder.quantize(values);
  const auto dtype = input.scalar_type();
  auto bias = layer.bias;
  if (bias.defined() && bias.scalar_type() != layer.weight_scale.scalar_type()) {
    bias = bias.to(dtype);
  }
  return int8_conv(integers, layer.qweight, scale, layer.weight_scale, maybe(bias),
                   layer.has_zero_point ? std::optional(zero_point) : std::nullopt, std::nullopt,
                   *options.stride(), padding, *options.dilation(), options.groups(), dtype);
}

}  // namespace baraquant::nn
