// SPDX-License-Identifier: BSD-3-Clause
// WeightOnlyInt4Linear: a linear layer of floating arithmetic whose weights take half a byte each.
#include <algorithm>
#include <ostream>

#include "api/nn/inference.h"
#include "api/ops.h"
#include "nn/copied_options.h"
#include "nn/layer_arguments.h"
#include "nn/product.h"

namespace baraquant::nn {

namespace {

constexpr const char* kName = "WeightOnlyInt4Linear";

}  // namespace

WeightOnlyInt4LinearImpl::WeightOnlyInt4LinearImpl(const WeightOnlyInt4LinearOptions& options)
    : DequantizedLayer(kName, options.group_size(), options.input_fake_quant()),
      in_features_(options.in_features()) {
  const auto bits = options.weight_bits();
  TORCH_CHECK_VALUE(bits >= 2 && bits <= 4, kName,
                    ": expected weight_bits to be an int in [2, 4], but got ", bits);
  check_packed(kName, options.packed(), in_features_);
  check_bias(kName, "packed", options.packed().size(0), options.bias());
  packed = register_buffer("packed", options.packed().contiguous());
  store_scales({.qweight = {},
                .weight_scale = options.weight_scale(),
                .bias = options.bias(),
                .weight_zero_point = options.weight_zero_point(),
                .weight_bits = bits,
                .dtype = options.dtype(),
                .group_size = options.group_size(),
                .rotate = options.rotate()},
               {packed.size(0), in_features_});
}

torch::Tensor WeightOnlyInt4LinearImpl::int8_weight() const {
  // In a group of all columns with the factor 1, the numbers stand for themselves.
  const auto size = std::max<int64_t>(in_features_ + in_features_ % 2, 2);
  const auto groups = std::min<int64_t>(in_features_, 1);
  const auto factor = torch::ones({packed.size(0), groups}, packed.options());
  return expand_int4(packed, factor, size, in_features_);
}

torch::Tensor WeightOnlyInt4LinearImpl::forward(const torch::Tensor& input) {
  const auto own_bias = bias.defined() ? bias.to(input.scalar_type()) : bias;
  return weight_only_linear(rounded_input(rotated(input)), packed, weight_scale, maybe(own_bias),
                            maybe(weight_zero_point), group_size());
}

BARAQUANT_CLONE(WeightOnlyInt4LinearImpl, copied_options(*this, device))

void WeightOnlyInt4LinearImpl::pretty_print(std::ostream& stream) const {
  print_begin(stream);
  print_scheme(stream);
}

}  // namespace baraquant::nn
