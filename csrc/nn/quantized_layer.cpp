// SPDX-License-Identifier: BSD-3-Clause
// The base of the layers for inference, and the checks of their arguments.
#include "nn/layer_arguments.h"

#include <limits>
#include <ostream>

#include "api/ops.h"
#include "nn/given.h"
#include "nn/text.h"

namespace baraquant::nn {

namespace {

// The layout of a layer's integers.
const char* layout_of(int64_t dimensions) {
  return dimensions == 2 ? "out_features, in_features"
                         : "out_channels, in_channels / groups, height, width";
}

// Check the shape of a tensor; the last arguments are what was wanted.
template <typename... Wanted>
void check_shape(const std::string& name, const torch::Tensor& tensor, bool fits,
                 const Wanted&... wanted) {
  TORCH_CHECK_VALUE(fits, name, ": expected ", wanted..., ", but got ", tensor.sizes());
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
  text::check(name, bits >= 2 && bits <= most,
              c10::str(argument, " to be an int in [2, ", most, "]"), text::of(bits));
}

void check_even(const std::string& name, int64_t group_size) {
  text::check(name, group_size > 0 && group_size % 2 == 0, "an even group_size > 0",
              text::of(group_size));
}

void check_input_granularity(const std::string& name, const std::string& granularity) {
  text::check(name, granularity == "per_token" || granularity == "per_tensor",
              "granularity to be per_token or per_tensor", text::quoted(granularity));
}

torch::Tensor int32_of(const torch::Tensor& integers) {
  if (integers.scalar_type() == torch::kInt32) return integers;
  using Limits = std::numeric_limits<int32_t>;
  return integers.to(torch::kInt64).clamp(Limits::min(), Limits::max()).to(torch::kInt32);
}

torch::Tensor scale_of_inputs(const std::string& name, const char* argument,
                              const torch::Tensor& smooth, int64_t features) {
  check_scale(name, argument, smooth.scalar_type());
  check_shape(name, smooth, smooth.dim() == 1 && smooth.size(0) == features, argument, " to have ",
              features, " elements (qweight.size(1))");
  return plain(smooth).contiguous();
}

std::tuple<torch::Tensor, torch::Tensor> scale_of_tensor(const std::string& name,
                                                         const torch::Tensor& scale,
                                                         const torch::Tensor& zero_point) {
  TORCH_CHECK_TYPE(scale.defined(), name, ": expected act_scale to be a Tensor, but got none");
  check_scale(name, "act_scale", scale.scalar_type());
  check_shape(name, scale, scale.numel() == 1, "act_scale to have one element");
  const auto one = plain(scale).reshape(at::IntArrayRef{});
  if (!zero_point.defined()) return {one, zero_point};
  check_integer(name, "act_zero_point", zero_point);
  check_shape(name, zero_point, zero_point.numel() == 1, "act_zero_point to have one element");
  return {one, int32_of(plain(zero_point)).reshape(at::IntArrayRef{})};
}

// ---- QuantizedLayer -----------------------------------------------------------------------------

namespace {

constexpr int64_t kPackedBits = 4;  // the most, and those of a layer that has no such option

// Check int8 weights.
void check_weight(const std::string& name, const torch::Tensor& weight, int64_t dimensions) {
  TORCH_CHECK_TYPE(weight.defined(), name, ": expected qweight to be a Tensor, but got none");
  TORCH_CHECK_TYPE(weight.scalar_type() == torch::kChar, name,
                   ": expected qweight to be int8, but got ", text::dtype(weight));
  check_shape(name, weight, weight.dim() == dimensions, "qweight to have ", dimensions,
              " dimensions (", layout_of(dimensions), ")");
}

// Check packed integers of at most four bits: their dtype and shape.
void check_packed(const std::string& name, const torch::Tensor& packed, int64_t features) {
  TORCH_CHECK_TYPE(packed.defined(), name, ": expected packed to be a Tensor, but got none");
  text::check(name, features >= 0, "in_features to be an int >= 0", text::of(features));
  const auto width = features / 2 + features % 2;
  check_shape(name, packed, packed.dim() == 2 && packed.size(1) == width,
              "packed to have the shape [out_features, ", width, "] (ceil(in_features / 2))");
  check_bytes(name, "packed", packed);
}

// Check a bias; `weight` is the name of the tensor that has the channels.
void check_bias(const std::string& name, const char* weight, int64_t channels,
                const torch::Tensor& bias) {
  if (!bias.defined()) return;
  TORCH_CHECK_TYPE(bias.is_floating_point(), name, ": expected bias to be floating, but got ",
                   text::dtype(bias));
  check_shape(name, bias, bias.dim() == 1 && bias.size(0) == channels, "bias to have ", channels,
              " elements (", weight, ".size(0))");
}

// The dtype of the floating weight: as given, else of the bias, else of the scale.
torch::Dtype weight_dtype(const std::string& name, std::optional<torch::Dtype> dtype,
                          const torch::Tensor& bias, const torch::Tensor& scale) {
  if (!dtype.has_value()) return bias.defined() ? bias.scalar_type() : scale.scalar_type();
  TORCH_CHECK_TYPE(c10::isFloatingType(*dtype), name, ": expected dtype to be floating, but got ",
                   dtype_name(*dtype));
  return *dtype;
}

// A scale for each output channel of a weight of this shape, or for each of its groups of inputs.
torch::Tensor scale_of_weight(const std::string& name, const torch::Tensor& scale,
                              at::IntArrayRef shape, std::optional<int64_t> group_size) {
  TORCH_CHECK_TYPE(scale.defined(), name, ": expected weight_scale to be a Tensor, but got none");
  const auto channels = shape[0], features = shape[1];
  const int64_t size = group_size.value_or(1);
  TORCH_CHECK_VALUE(size > 0, name, ": expected group_size > 0, but got ", size);
  check_scale(name, "weight_scale", scale.scalar_type());
  if (group_size.has_value()) {
    const auto groups = groups_of(features, size);
    check_shape(name, scale, scale.sizes() == at::IntArrayRef({channels, groups}),
                "weight_scale to have the shape [", channels, ", ", groups, "] (groups of ", size,
                ")");
  } else {
    check_shape(name, scale, scale.dim() == 1 && scale.size(0) == channels, "weight_scale to have ",
                channels, " elements (one for each output channel)");
  }
  return plain(scale).contiguous();
}

// An int32 zero point for each scale; undefined if there is none.
torch::Tensor zero_point_of_weight(const std::string& name, const torch::Tensor& zero_point,
                                   const torch::Tensor& scale) {
  if (!zero_point.defined()) return zero_point;
  check_integer(name, "weight_zero_point", zero_point);
  check_shape(name, zero_point, zero_point.sizes() == scale.sizes(),
              "weight_zero_point to have the shape of weight_scale (", scale.sizes(), ")");
  return int32_of(plain(zero_point)).contiguous();
}

// Check the block of a rotation, which divides the features.
void check_rotate(const std::string& name, std::optional<int64_t> rotate, int64_t features) {
  if (!rotate.has_value()) return;
  const int64_t block = *rotate;
  TORCH_CHECK_VALUE(block >= 2 && (block & (block - 1)) == 0 && features % block == 0, name,
                    ": expected rotate to be a power of two >= 2 that divides in_features (",
                    features, "), but got ", block);
}

}  // namespace

bool QuantizedLayer::is_scale(const std::string& name) const {
  return name.ends_with("scale") || name == "smooth";
}

void QuantizedLayer::converted(const std::optional<torch::Device>&,
                               const std::optional<torch::Dtype>& dtype) {
  if (dtype.has_value() && c10::isFloatingType(*dtype)) dtype_ = *dtype;
}

std::vector<int64_t> QuantizedLayer::weight_sizes() const {
  return qweight.defined() ? qweight.sizes().vec() : std::vector{packed.size(0), in_features_};
}

void QuantizedLayer::store_integers(const Given& given, int64_t dimensions) {
  const bool is_packed = given.in_features.has_value();
  weight_bits_ = given.weight_bits.value_or(kPackedBits);
  if (is_packed) {
    in_features_ = *given.in_features;
    check_packed(name(), given.packed, in_features_);
    packed = register_buffer("packed", given.packed.contiguous());
  } else {
    check_weight(name(), given.qweight, dimensions);
    qweight = register_buffer("qweight", given.qweight.contiguous());
  }
  check_bias(name(), is_packed ? "packed" : "qweight", out_features(), given.bias);
  check_bits(name(), "weight_bits", weight_bits_, is_packed ? kPackedBits : 8);
}

void QuantizedLayer::store_scales(const Given& given) {
  const auto shape = weight_sizes();
  check_rotate(name(), given.rotate, shape[1]);
  rotate_ = given.rotate;
  group_size_ = given.group_size;
  const auto of_scale = given.group_factor.defined() ? std::nullopt : group_size_;
  const auto scale = scale_of_weight(name(), given.weight_scale, shape, of_scale);
  const auto zeros = zero_point_of_weight(name(), given.weight_zero_point, scale);
  dtype_ = weight_dtype(name(), given.dtype, given.bias, scale);
  weight_scale = register_buffer("weight_scale", scale);
  if (given.bias.defined()) bias = register_buffer("bias", given.bias.detach());
  if (zeros.defined()) weight_zero_point = register_buffer("weight_zero_point", zeros);
}

std::string QuantizedLayer::weight_text(const char* whole) const {
  const auto groups = "per_group(" + std::to_string(group_size_.value_or(0)) + ")";
  return c10::str(", weight=int", weight_bits_, " ", group_size_.has_value() ? groups : whole,
                  weight_zero_point.defined() ? " asymmetric" : "");
}

void QuantizedLayer::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::" << name() << "(in_features=" << in_features()
         << ", out_features=" << out_features() << ", bias=" << (bias.defined() ? "true" : "false")
         << weight_text() << input_text();
  if (rotate_.has_value()) stream << ", rotate=" << *rotate_;
  stream << ")";
}

torch::Tensor QuantizedLayer::rotated(const torch::Tensor& input) const {
  return rotate_.has_value() ? hadamard(input, *rotate_) : input;
}

}  // namespace baraquant::nn
