// SPDX-License-Identifier: BSD-3-Clause
// FakeQuantizeInt4, QuantizedInt4Linear and StaticQuantizedInt4Linear.
#include <ostream>

#include "api/nn/int4.h"
#include "api/ops.h"
#include "nn/copied_options.h"
#include "nn/layer_arguments.h"
#include "nn/product.h"
#include "nn/text.h"

namespace baraquant::nn {

namespace {

constexpr int64_t kWeightBits = 4;

void check_bytes(const char* name, const char* argument, const torch::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == torch::kByte, name, ": expected ", argument,
                   " to be uint8, but got ", text::dtype(tensor));
}

void check_given(const FakeQuantizeInt4Options& options) {
  constexpr const char* name = "FakeQuantizeInt4";
  check_even(name, options.group_size());
  const torch::Tensor &scale = options.scale(), &factor = options.group_factor(),
                      &zero_point = options.group_zero_point();
  TORCH_CHECK_VALUE(
      scale.defined() == factor.defined() && scale.defined() == zero_point.defined(), name,
      ": expected scale, group_factor and group_zero_point together, or none of them");
  if (!scale.defined()) return;
  const bool is_exact =
      scale.scalar_type() == torch::kFloat || scale.scalar_type() == torch::kDouble;
  TORCH_CHECK_TYPE(is_exact, name, ": expected scale to be float32 or float64, but got ",
                   text::dtype(scale));
  const std::pair<const char*, const torch::Tensor&> groups[] = {{"group_factor", factor},
                                                                 {"group_zero_point", zero_point}};
  for (const auto& [what, tensor] : groups) {
    check_bytes(name, what, tensor);
    const bool fits = tensor.dim() == 2 && scale.dim() == 1 && scale.size(0) == tensor.size(0) &&
                      tensor.sizes() == factor.sizes();
    TORCH_CHECK_VALUE(fits, name, ": expected ", what,
                      " to have the shape [rows, groups] and scale [rows], but got ",
                      text::shape(tensor), " and ", text::shape(scale));
  }
}

}  // namespace

// ---- RoundsToInt4 -------------------------------------------------------------------------------

PackedInt4 RoundsToInt4::pack(const torch::Tensor& input) {
  auto result = qparams_of(input);
  result.packed = quantize_int4(input.detach(), result.scale, result.group_factor, group_size(),
                                result.group_zero_point);
  return result;
}

Quantized RoundsToInt4::int8_of(const torch::Tensor& input) {
  const auto weight = pack(input);
  const auto integers = expand_int4(weight.packed, weight.group_factor, group_size(), input.size(1),
                                    weight.group_zero_point);
  return {integers, weight.scale, torch::zeros_like(weight.scale, torch::kInt32)};
}

torch::Tensor RoundsToInt4::rounded(const torch::Tensor& input) {
  const auto [integers, of_rows, zeros] = int8_of(input);
  const auto result =
      dequantize_per_channel(integers, of_rows, std::nullopt, 0, input.scalar_type());
  return straight_through(result, smooth(input));
}

// ---- FakeQuantizeInt4 ---------------------------------------------------------------------------

FakeQuantizeInt4Impl::FakeQuantizeInt4Impl(FakeQuantizeInt4Options given)
    : Quantizer("FakeQuantizeInt4"), options(std::move(given)) {
  check_given(options);
  if (!options.scale().defined()) return;
  scale = register_buffer("scale", options.scale());
  group_factor = register_buffer("group_factor", options.group_factor());
  group_zero_point = register_buffer("group_zero_point", options.group_zero_point());
  options.scale({}).group_factor({}).group_zero_point({});
}

torch::Tensor FakeQuantizeInt4Impl::forward(const torch::Tensor& input) {
  return rounds_ ? round(input) : input;
}

PackedInt4 FakeQuantizeInt4Impl::qparams_of(const torch::Tensor& input) {
  PackedInt4 result{{}, scale, group_factor, group_zero_point};
  if (is_dynamic()) {
    std::tie(result.scale, result.group_factor, result.group_zero_point) =
        choose_int4_qparams(input.detach(), options.group_size(), options.symmetric());
  }
  return result;
}

std::tuple<torch::Tensor, torch::Tensor> FakeQuantizeInt4Impl::calculate_qparams() const {
  TORCH_CHECK(!is_dynamic(),
              "FakeQuantizeInt4: expected given scales, but each weight has its own");
  return {scale, torch::zeros_like(scale, torch::kInt32)};
}

std::shared_ptr<torch::nn::Module> FakeQuantizeInt4Impl::clone(
    const std::optional<torch::Device>& device) const {
  auto given = options;
  given.scale(cloned(scale, device)).group_factor(cloned(group_factor, device));
  given.group_zero_point(cloned(group_zero_point, device));
  auto copy = std::make_shared<FakeQuantizeInt4Impl>(given);
  copy->rounds_ = rounds_;
  copy->train(is_training());
  return copy;
}

BARAQUANT_CLONE_CHILD(FakeQuantizeInt4Impl)

void FakeQuantizeInt4Impl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::FakeQuantizeInt4(" << (is_dynamic() ? "dynamic" : "fixed")
         << ", group_size=" << options.group_size()
         << ", symmetric=" << (options.symmetric() ? "true" : "false") << ")";
}

// ---- Int4Linear ---------------------------------------------------------------------------------

void Int4Linear::store(const GivenInt4& given) {
  const std::string own = name();
  const char* kind = own.c_str();
  check_even(kind, given.group_size);
  const torch::Tensor& bytes = given.weight.packed;
  const torch::Tensor& factor = given.weight.group_factor;
  const torch::Tensor& zeros = given.weight.group_zero_point;
  TORCH_CHECK_TYPE(bytes.defined() && factor.defined() && given.weight.scale.defined(), kind,
                   ": expected packed, weight_scale and group_factor, but one is missing");
  check_packed(kind, bytes, given.in_features);
  const std::vector<int64_t> groups = {bytes.size(0),
                                       groups_of(given.in_features, given.group_size)};
  const std::pair<const char*, const torch::Tensor&> of_groups[] = {{"group_factor", factor},
                                                                    {"group_zero_point", zeros}};
  for (const auto& [what, tensor] : of_groups) {
    if (!tensor.defined()) continue;
    check_bytes(kind, what, tensor);
    TORCH_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(groups), kind, ": expected ", what,
                      " to have the shape ", at::IntArrayRef(groups), " (groups of ",
                      given.group_size, "), but got ", text::shape(tensor));
  }
  check_bias(kind, "packed", bytes.size(0), given.bias);
  check_bits(kind, "bits", given.bits);
  check_rotate(kind, given.rotate, given.in_features);
  in_features_ = given.in_features;
  group_size_ = given.group_size;
  bits_ = given.bits;
  weight_bits_ = kWeightBits;
  rotate_ = given.rotate;
  const auto scale = scale_of_channels(kind, given.weight.scale, bytes.size(0));
  dtype_ = weight_dtype(kind, given.dtype, given.bias, scale);
  packed = register_buffer("packed", bytes.contiguous());
  group_factor = register_buffer("group_factor", factor.contiguous());
  if (zeros.defined()) group_zero_point = register_buffer("group_zero_point", zeros.contiguous());
  weight_scale = register_buffer("weight_scale", scale);
  if (given.bias.defined()) bias = register_buffer("bias", given.bias.detach());
}

torch::Tensor Int4Linear::int8_weight() const {
  return expand_int4(packed, group_factor, group_size_, in_features_, maybe(group_zero_point));
}

torch::Tensor Int4Linear::dequantized_weight() {
  return rotated(dequantize_per_channel(int8_weight(), weight_scale, std::nullopt, 0).to(dtype_));
}

void Int4Linear::check_products() const {
  auto numbers =
      torch::stack({packed.bitwise_and(15), packed.bitwise_right_shift(4)}, 2).flatten(1);
  numbers = numbers.slice(1, 0, in_features_).to(torch::kInt16);
  int64_t low = 0, high = 0;
  for (int64_t group = 0; group < group_factor.size(1) && numbers.numel() > 0; ++group) {
    const auto of_group = torch::indexing::Slice(group, group + 1);
    const auto zeros = group_zero_point.defined()
                           ? group_zero_point.index({torch::indexing::Slice(), of_group})
                           : torch::full({1, 1}, 8, packed.options());
    const auto part = numbers.slice(1, group * group_size_, (group + 1) * group_size_);
    const auto [least, most] =
        ((part - zeros) * group_factor.index({torch::indexing::Slice(), of_group})).aminmax();
    low = std::min(low, least.item<int64_t>());
    high = std::max(high, most.item<int64_t>());
  }
  TORCH_CHECK_VALUE(
      low >= -128 && high <= 127,
      "packed: expected numbers that stand for int8 weights, but (u - z) * f reaches ", low, " to ",
      high);
}

void Int4Linear::print_scheme(std::ostream& stream) const {
  print_begin(stream);
  stream << ", weight=int4 per_group(" << group_size_ << ")"
         << (group_zero_point.defined() ? " asymmetric" : "") << " factors";
}

// ---- QuantizedInt4Linear ------------------------------------------------------------------------

QuantizedInt4LinearImpl::QuantizedInt4LinearImpl(const QuantizedInt4LinearOptions& options)
    : Int4Linear("QuantizedInt4Linear"),
      symmetric_(options.symmetric()),
      granularity_(options.granularity()) {
  store({{options.packed(), options.weight_scale(), options.group_factor(),
          options.group_zero_point()},
         options.group_size(),
         options.in_features(),
         options.bias(),
         options.bits(),
         options.dtype(),
         options.rotate()});
  check_input_granularity("QuantizedInt4Linear", granularity_);
}

torch::Tensor QuantizedInt4LinearImpl::forward(const torch::Tensor& input) {
  const auto low = low_of(bits()), high = high_of(bits());
  const auto zeros = maybe(group_zero_point);
  if (granularity_ == "per_token") {
    return quantized_int4_linear(rotated(input), packed, weight_scale, group_factor, group_size(),
                                 maybe(bias), zeros, symmetric_, std::nullopt, low, high);
  }
  const auto rows = rotated(input);
  const auto [scale, zero_point] = choose_qparams_per_tensor(rows.detach(), low, high, symmetric_);
  return static_quantized_int4_linear(
      rows, packed, weight_scale, group_factor, group_size(), scale, maybe(bias), zeros,
      symmetric_ ? std::nullopt : std::optional(zero_point), std::nullopt, std::nullopt, low, high);
}

BARAQUANT_CLONE(QuantizedInt4LinearImpl, copied_options(*this, device))

void QuantizedInt4LinearImpl::pretty_print(std::ostream& stream) const {
  print_scheme(stream);
  stream << text::input(bits(), granularity_, symmetric_, "dynamic");
  print_end(stream);
}

// ---- StaticQuantizedInt4Linear ------------------------------------------------------------------

StaticQuantizedInt4LinearImpl::StaticQuantizedInt4LinearImpl(
    const StaticQuantizedInt4LinearOptions& options)
    : Int4Linear("StaticQuantizedInt4Linear") {
  store({{options.packed(), options.weight_scale(), options.group_factor(),
          options.group_zero_point()},
         options.group_size(),
         options.in_features(),
         options.bias(),
         options.bits(),
         options.dtype(),
         options.rotate()});
  const auto [one, zero] =
      scale_of_tensor("StaticQuantizedInt4Linear", options.act_scale(), options.act_zero_point());
  act_scale = register_buffer("act_scale", one);
  if (zero.defined()) act_zero_point = register_buffer("act_zero_point", zero);
}

torch::Tensor StaticQuantizedInt4LinearImpl::forward(const torch::Tensor& input) {
  return static_quantized_int4_linear(rotated(input), packed, weight_scale, group_factor,
                                      group_size(), act_scale, maybe(bias), maybe(group_zero_point),
                                      maybe(act_zero_point), std::nullopt, std::nullopt,
                                      low_of(bits()), high_of(bits()));
}

BARAQUANT_CLONE(StaticQuantizedInt4LinearImpl, copied_options(*this, device))

void StaticQuantizedInt4LinearImpl::pretty_print(std::ostream& stream) const {
  print_scheme(stream);
  stream << text::input(bits(), "per_tensor", !act_zero_point.defined(), "static");
  print_end(stream);
}

}  // namespace baraquant::nn
