// SPDX-License-Identifier: BSD-3-Clause
// QuantizedConv2d and QuantizedEmbedding.
#include <ATen/ops/embedding.h>

#include <ostream>

#include "api/nn/inference.h"
#include "api/ops.h"
#include "nn/product.h"
#include "nn/served.h"

namespace baraquant::nn {

// ---- QuantizedConv2d ----------------------------------------------------------------------------

namespace {

// Whether what rounds an input gives int8 with one scale.
bool rounds_to_int8(const std::shared_ptr<FakeQuantizeImpl>& rounder) {
  return rounder != nullptr && !rounder->is_observed() &&
         rounder->options.granularity() == "per_tensor" && rounder->quant_min() >= -128 &&
         rounder->quant_max() <= 127;
}

// Whether the zero point of what rounds an input is surely 0.
bool is_around_zero(const FakeQuantizeImpl& rounder) {
  const auto middle = rounder.quant_min() + rounder.quant_max() + 1;
  return rounder.is_dynamic() && rounder.options.symmetric() && (middle == 0 || middle == 1);
}

}  // namespace

QuantizedConv2dImpl::QuantizedConv2dImpl(const DequantizedOptions& options,
                                         const torch::nn::Conv2dOptions& given)
    : QuantizedConv2dImpl(given_of(DequantizedOptions(options).rotate(std::nullopt)), given) {}

QuantizedConv2dImpl::QuantizedConv2dImpl(const Given& layer, const torch::nn::Conv2dOptions& given)
    : DequantizedLayer("QuantizedConv2d", layer, 4), conv(given) {
  const int64_t groups = conv.groups(), outputs = qweight.size(0);
  int64_t inputs = 0;
  const bool fits = groups > 0 && outputs % groups == 0 &&
                    !__builtin_mul_overflow(qweight.size(1), groups, &inputs);
  TORCH_CHECK_VALUE(fits, "QuantizedConv2d: expected groups to divide the ", outputs,
                    " outputs, but got ", groups);
  const bool is_same = std::holds_alternative<torch::enumtype::kSame>(conv.padding());
  const auto& stride = *conv.stride();
  TORCH_CHECK_VALUE(!is_same || (stride[0] == 1 && stride[1] == 1),
                    "QuantizedConv2d: expected a stride of 1 beside the padding same, but got ",
                    at::IntArrayRef(stride));
  conv.in_channels(inputs)
      .out_channels(outputs)
      .kernel_size({qweight.size(2), qweight.size(3)})
      .bias(bias.defined());
  // PyTorch's module checks the options; it gets no memory for a weight.
  const auto checked = conv;
  const torch::nn::Conv2d like(
      torch::nn::Conv2dOptions(checked).in_channels(groups).out_channels(groups).bias(false));
  const bool is_flat = !weight_zero_point.defined() && !group_size().has_value();
  is_integer_ = is_integer_conv(rounds_to_int8(input_fake_quant), is_flat, qweight.sizes(), groups);
  if (is_integer_) qweight.set_data(channels_inside(qweight));
}

torch::Tensor QuantizedConv2dImpl::float_weight(torch::Dtype dtype) {
  const auto weight = dequantized(dtype);
  return channels_last ? weight.clone(torch::MemoryFormat::ChannelsLast) : weight.contiguous();
}

torch::Tensor QuantizedConv2dImpl::dequantized_weight() { return float_weight(dtype_); }

torch::Tensor QuantizedConv2dImpl::forward(const torch::Tensor& input) {
  const bool is_double = input.scalar_type() == torch::kFloat64;
  if (!is_integer_ || !input_fake_quant->rounds() ||
      is_double != (weight_scale.scalar_type() == torch::kFloat64)) {
    return float_output(input);
  }
  const auto output = integer_conv2d(input, *input_fake_quant,
                                     {.qweight = qweight,
                                      .weight_scale = weight_scale,
                                      .bias = bias,
                                      .has_zero_point = !is_around_zero(*input_fake_quant)},
                                     conv);
  return with_gradient(output, input.requires_grad(), [&] { return float_output(input); });
}

torch::Tensor QuantizedConv2dImpl::float_output(const torch::Tensor& input) {
  return float_conv2d(rounded_input(input), float_weight(input.scalar_type()), bias, conv);
}

BARAQUANT_CLONE_BY(QuantizedConv2dImpl, copy->channels_last = channels_last;
                   copy->train(is_training()), copy_of(*this, device), conv)

void QuantizedConv2dImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::QuantizedConv2d(" << conv.in_channels() << ", " << conv.out_channels()
         << ", kernel_size=" << conv.kernel_size() << ", stride=" << conv.stride()
         << ", groups=" << conv.groups() << ", bias=" << (bias.defined() ? "true" : "false")
         << weight_text() << ")";
}

// ---- QuantizedEmbedding -------------------------------------------------------------------------

QuantizedEmbeddingImpl::QuantizedEmbeddingImpl(const QuantizedEmbeddingOptions& options)
    : QuantizedEmbeddingImpl(given_of(options)) {}

QuantizedEmbeddingImpl::QuantizedEmbeddingImpl(const Given& given)
    : QuantizedLayer("QuantizedEmbedding"), padding_idx_(given.padding_idx) {
  store_integers(given);
  store_scales(given);
}

torch::Tensor QuantizedEmbeddingImpl::forward(const torch::Tensor& input) {
  const auto rows = at::embedding(qweight, input);  // [..., embedding_dim] int8
  const auto zeros =
      weight_zero_point.defined() ? weight_zero_point.index({input}) : torch::Tensor();
  return dequantized(rows, weight_scale.index({input}), zeros);
}

torch::Tensor QuantizedEmbeddingImpl::dequantized_weight() {
  return dequantized(qweight, weight_scale, weight_zero_point);
}

torch::Tensor QuantizedEmbeddingImpl::dequantized(const torch::Tensor& rows,
                                                  const torch::Tensor& scale,
                                                  const torch::Tensor& zero_point) const {
  if (!group_size_.has_value()) return dequantize_per_token(rows, scale, maybe(zero_point), dtype_);
  return dequantize_per_group(rows, scale, maybe(zero_point), *group_size_, -1, dtype_);
}

BARAQUANT_CLONE(QuantizedEmbeddingImpl, copy_of(*this, device))

void QuantizedEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "baraquant::nn::QuantizedEmbedding(" << qweight.size(0) << ", " << qweight.size(1)
         << weight_text("per_row") << ")";
}

}  // namespace baraquant::nn
