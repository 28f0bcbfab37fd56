// SPDX-License-Identifier: BSD-3-Clause
// FakeQuantizeInt4, QuantizedInt4Linear and StaticQuantizedInt4Linear.
#include <ostream>

#include "api/nn/linear.h"
#include "api/ops.h"
#include "nn/by_granularity.h"
#include "nn/layer_arguments.h"
#include "nn/product.h"
#include "nn/served.h"
#include "nn/text.h"

namespace baraquant::nn {

namespace {

void check_given(const FakeQuantizeInt4Options& options) {
  constexpr const char* name = "FakeQuantizeInt4";
  check_even(name, options.group_size());
  check_bits(name, "bits", options.bits(), 4);
  const torch::Tensor &scale = options.scale(), &factor = options.group_factor(),
                      &zero_point = options.group_zero_point();
  TORCH_CHECK_VALUE(
      scale.defined() == factor.defined() && scale.defined() == zero_point.defined(), name,
      ": expected scale, group_factor and group_zero_point together, or none of them");
  if (!scale.defined()) return;
  check_scale(name, "scale", scale.scalar_type());
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
                                result.group_zero_point, bits());
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
  const auto size = options.group_size();
  keep_state("int4",
             {.granularity = "per_group",
              .axis = -1,
              .group_size = size,
              .low = quant_min(),
              .high = quant_max()},
             options.symmetric(), options.scale().defined() ? options.scale().numel() : 0);
  if (!options.scale().defined()) return;
  scale = register_buffer("scale", options.scale());
  group_factor = register_buffer("group_factor", options.group_factor());
  group_zero_point = register_buffer("group_zero_point", options.group_zero_point());
  options.scale({}).group_factor({}).group_zero_point({});
}

PackedInt4 FakeQuantizeInt4Impl::qparams_of(const torch::Tensor& input) {
  if (!is_dynamic()) return {{}, scale, group_factor, group_zero_point};
  return PackedInt4::of(
      choose_int4_qparams(input.detach(), group_size(), options.symmetric(), bits()));
}

std::tuple<torch::Tensor, torch::Tensor> FakeQuantizeInt4Impl::calculate_qparams() const {
  TORCH_CHECK(!is_dynamic(),
              "FakeQuantizeInt4: expected given scales, but each weight has its own");
  return {scale, torch::zeros_like(scale, torch::kInt32)};
}

BARAQUANT_CLONE_BY(FakeQuantizeInt4Impl, copy->enable_fake_quant(rounds());
                   copy_tensors(*copy, *this, device),
                   FakeQuantizeInt4Options(options)
                       .scale(cloned(scale, device))
                       .group_factor(cloned(group_factor, device))
                       .group_zero_point(cloned(group_zero_point, device)))

void FakeQuantizeInt4Impl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::FakeQuantizeInt4(" << (is_dynamic() ? "dynamic" : "fixed")
         << ", group_size=" << options.group_size()
         << ", symmetric=" << (options.symmetric() ? "true" : "false");
  if (bits() != 4) stream << ", bits=" << bits();
  stream << ")";
}

// ---- Int4Linear ---------------------------------------------------------------------------------

Int4Linear::Int4Linear(const char* name, const Given& given) : IntegerLinear(name) {
  const torch::Tensor &factor = given.group_factor, &zeros = given.group_zero_point;
  check_even(name, *given.group_size);
  TORCH_CHECK_TYPE(given.packed.defined() && factor.defined() && given.weight_scale.defined(), name,
                   ": expected packed, weight_scale and group_factor, but one is missing");
  store_integers(given);
  const std::vector<int64_t> groups = {out_features(), groups_of(in_features_, *given.group_size)};
  const std::pair<const char*, const torch::Tensor&> of_groups[] = {{"group_factor", factor},
                                                                    {"group_zero_point", zeros}};
  for (const auto& [what, tensor] : of_groups) {
    if (!tensor.defined()) continue;
    check_bytes(name, what, tensor);
    TORCH_CHECK_VALUE(tensor.sizes() == at::IntArrayRef(groups), name, ": expected ", what,
                      " to have the shape ", at::IntArrayRef(groups), " (groups of ",
                      *given.group_size, "), but got ", text::shape(tensor));
  }
  group_factor = register_buffer("group_factor", factor.contiguous());
  if (zeros.defined()) group_zero_point = register_buffer("group_zero_point", zeros.contiguous());
  store_scales(given);
}

torch::Tensor Int4Linear::int8_weight() const {
  return expand_int4(packed, group_factor, group_size(), in_features_, maybe(group_zero_point));
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
    const auto part = numbers.slice(1, group * group_size(), (group + 1) * group_size());
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

std::string Int4Linear::weight_text(const char* whole) const {
  return IntegerLinear::weight_text(whole) + (group_zero_point.defined() ? " asymmetric" : "") +
         " factors";
}

torch::Tensor Int4Linear::dynamic_product(const torch::Tensor& rows, bool symmetric,
                                          std::optional<torch::Dtype> dtype) const {
  return quantized_int4_linear(rows, packed, weight_scale, group_factor, group_size(), maybe(bias),
                               maybe(group_zero_point), symmetric, std::nullopt, low_of(bits_),
                               high_of(bits_), dtype);
}

torch::Tensor Int4Linear::static_product(const torch::Tensor& rows, const torch::Tensor& scale,
                                         const torch::Tensor& zero_point,
                                         const torch::Tensor& smooth_scale,
                                         std::optional<torch::Dtype> dtype) const {
  return static_quantized_int4_linear(rows, packed, weight_scale, group_factor, group_size(), scale,
                                      maybe(bias), maybe(group_zero_point), maybe(zero_point),
                                      maybe(smooth_scale), std::nullopt, low_of(bits_),
                                      high_of(bits_), dtype);
}

// ---- QuantizedInt4Linear and StaticQuantizedInt4Linear ------------------------------------------

template class DynamicInput<Int4Linear>;
template class StaticInput<Int4Linear>;

BARAQUANT_SERVED(QuantizedInt4Linear, DynamicInput, QuantizedInt4LinearOptions)
BARAQUANT_SERVED(StaticQuantizedInt4Linear, StaticInput, StaticQuantizedInt4LinearOptions)

}  // namespace baraquant::nn
