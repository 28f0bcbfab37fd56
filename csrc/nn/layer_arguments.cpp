// SPDX-License-Identifier: BSD-3-Clause
#include "nn/layer_arguments.h"

#include <limits>

#include "nn/text.h"

namespace baraquant::nn {

namespace {

// The layout of a layer's integers.
const char* layout_of(int64_t dimensions) {
  return dimensions == 2 ? "out_features, in_features"
                         : "out_channels, in_channels / groups, height, width";
}

torch::Tensor plain(const torch::Tensor& tensor) {
  return tensor.requires_grad() ? tensor.detach() : tensor;
}

}  // namespace

void check_scale(const std::string& name, const char* argument, torch::Dtype dtype) {
  TORCH_CHECK_TYPE(dtype == torch::kFloat32 || dtype == torch::kFloat64, name, ": expected ",
                   argument, " to be float32 or float64, but got ", dtype_name(dtype));
}

void check_bytes(const std::string& name, const char* argument, const torch::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == torch::kByte, name, ": expected ", argument,
                   " to be uint8, but got ", text::dtype(tensor));
}

void check_integer(const std::string& name, const char* argument, const torch::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(dtype == torch::kInt8 || dtype == torch::kUInt8 || dtype == torch::kInt16 ||
                       dtype == torch::kInt32 || dtype == torch::kInt64,
                   name, ": expected ", argument, " to be integer, but got ", text::dtype(tensor));
}

void check_bits(const std::string& name, const char* argument, int64_t bits, int64_t most) {
  TORCH_CHECK_VALUE(bits >= 2 && bits <= most, name, ": expected ", argument,
                    " to be an int in [2, ", most, "], but got ", bits);
}

void check_even(const std::string& name, int64_t group_size) {
  TORCH_CHECK_VALUE(group_size > 0 && group_size % 2 == 0, name,
                    ": expected an even group_size > 0, but got ", group_size);
}

void check_weight(const std::string& name, const torch::Tensor& weight, const torch::Tensor& bias,
                  int64_t dimensions) {
  TORCH_CHECK_TYPE(weight.defined(), name, ": expected qweight to be a Tensor, but got none");
  TORCH_CHECK_TYPE(weight.scalar_type() == torch::kChar, name,
                   ": expected qweight to be int8, but got ", text::dtype(weight));
  TORCH_CHECK_VALUE(weight.dim() == dimensions, name, ": expected qweight to have ", dimensions,
                    " dimensions (", layout_of(dimensions), "), but got ", text::shape(weight));
  check_bias(name, "qweight", weight.size(0), bias);
}

void check_bias(const std::string& name, const char* weight, int64_t channels,
                const torch::Tensor& bias) {
  if (!bias.defined()) return;
  TORCH_CHECK_TYPE(bias.is_floating_point(), name, ": expected bias to be floating, but got ",
                   text::dtype(bias));
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.size(0) == channels, name, ": expected bias to have ",
                    channels, " elements (", weight, ".size(0)), but got ", text::shape(bias));
}

torch::Tensor scale_of_channels(const std::string& name, const torch::Tensor& scale,
                                int64_t channels) {
  check_scale(name, "weight_scale", scale.scalar_type());
  TORCH_CHECK_VALUE(scale.dim() == 1 && scale.size(0) == channels, name,
                    ": expected weight_scale to have ", channels,
                    " elements (one for each output channel), but got ", text::shape(scale));
  return plain(scale).contiguous();
}

torch::Dtype weight_dtype(const std::string& name, std::optional<torch::Dtype> dtype,
                          const torch::Tensor& bias, const torch::Tensor& scale) {
  if (!dtype.has_value()) return bias.defined() ? bias.scalar_type() : scale.scalar_type();
  TORCH_CHECK_TYPE(c10::isFloatingType(*dtype), name, ": expected dtype to be floating, but got ",
                   dtype_name(*dtype));
  return *dtype;
}

void check_input_granularity(const std::string& name, const std::string& granularity) {
  TORCH_CHECK_VALUE(granularity == "per_token" || granularity == "per_tensor", name,
                    ": expected granularity to be per_token or per_tensor, but got ",
                    text::quoted(granularity));
}

void check_packed(const std::string& name, const torch::Tensor& packed, int64_t features) {
  TORCH_CHECK_TYPE(packed.defined(), name, ": expected packed to be a Tensor, but got none");
  TORCH_CHECK_VALUE(features >= 0, name, ": expected in_features to be an int >= 0, but got ",
                    features);
  const auto width = features / 2 + features % 2;
  TORCH_CHECK_VALUE(packed.dim() == 2 && packed.size(1) == width, name,
                    ": expected packed to have the shape [out_features, ", width,
                    "] (ceil(in_features / 2)), but got ", text::shape(packed));
  check_bytes(name, "packed", packed);
}

torch::Tensor scale_of_weight(const std::string& name, const torch::Tensor& scale,
                              at::IntArrayRef shape, std::optional<int64_t> group_size) {
  TORCH_CHECK_TYPE(scale.defined(), name, ": expected weight_scale to be a Tensor, but got none");
  const auto channels = shape[0], features = shape[1];
  if (!group_size.has_value()) return scale_of_channels(name, scale, channels);
  TORCH_CHECK_VALUE(*group_size > 0, name, ": expected group_size > 0, but got ", *group_size);
  check_scale(name, "weight_scale", scale.scalar_type());
  const auto groups = groups_of(features, *group_size);
  TORCH_CHECK_VALUE(scale.sizes() == at::IntArrayRef({channels, groups}), name,
                    ": expected weight_scale to have the shape [", channels, ", ", groups,
                    "] (groups of ", *group_size, "), but got ", text::shape(scale));
  return plain(scale).contiguous();
}

torch::Tensor int32_of(const torch::Tensor& integers) {
  if (integers.scalar_type() == torch::kInt32) return integers;
  using Limits = std::numeric_limits<int32_t>;
  return integers.to(torch::kInt64).clamp(Limits::min(), Limits::max()).to(torch::kInt32);
}

torch::Tensor zero_point_of_weight(const std::string& name, const torch::Tensor& zero_point,
                                   const torch::Tensor& scale) {
  if (!zero_point.defined()) return zero_point;
  check_integer(name, "weight_zero_point", zero_point);
  TORCH_CHECK_VALUE(zero_point.sizes() == scale.sizes(), name,
                    ": expected weight_zero_point to have the shape of weight_scale (",
                    text::shape(scale), "), but got ", text::shape(zero_point));
  return int32_of(plain(zero_point)).contiguous();
}

torch::Tensor scale_of_inputs(const std::string& name, const char* argument,
                              const torch::Tensor& smooth, int64_t features) {
  check_scale(name, argument, smooth.scalar_type());
  TORCH_CHECK_VALUE(smooth.dim() == 1 && smooth.size(0) == features, name, ": expected ", argument,
                    " to have ", features, " elements (qweight.size(1)), but got ",
                    text::shape(smooth));
  return plain(smooth).contiguous();
}

std::tuple<torch::Tensor, torch::Tensor> scale_of_tensor(const std::string& name,
                                                         const torch::Tensor& scale,
                                                         const torch::Tensor& zero_point) {
  TORCH_CHECK_TYPE(scale.defined(), name, ": expected act_scale to be a Tensor, but got none");
  check_scale(name, "act_scale", scale.scalar_type());
  TORCH_CHECK_VALUE(scale.numel() == 1, name, ": expected act_scale to have one element, but got ",
                    text::shape(scale));
  const auto one = plain(scale).reshape(at::IntArrayRef{});
  if (!zero_point.defined()) return {one, zero_point};
  check_integer(name, "act_zero_point", zero_point);
  TORCH_CHECK_VALUE(zero_point.numel() == 1, name,
                    ": expected act_zero_point to have one element, but got ",
                    text::shape(zero_point));
  return {one, int32_of(plain(zero_point)).reshape(at::IntArrayRef{})};
}

void check_rotate(const std::string& name, std::optional<int64_t> rotate, int64_t features) {
  if (!rotate.has_value()) return;
  const int64_t block = *rotate;
  TORCH_CHECK_VALUE(block >= 2 && (block & (block - 1)) == 0 && features % block == 0, name,
                    ": expected rotate to be a power of two >= 2 that divides in_features (",
                    features, "), but got ", block);
}

}  // namespace baraquant::nn
