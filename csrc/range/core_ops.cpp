// SPDX-License-Identifier: BSD-3-Clause
#include "range/core_ops.h"

#include "frame/core_op.h"

namespace baraquant::range {

TensorPair choose_qparams(const at::Tensor& input, const RangeArgs& args) {
  static const CoreOp<decltype(choose_qparams)> op("baraquant::_choose_qparams");
  return op(input, args);
}

TensorTriple dynamic_quantize(const at::Tensor& input, const RangeArgs& args,
                              at::ScalarType dtype) {
  static const CoreOp<decltype(dynamic_quantize)> op("baraquant::_dynamic_quantize");
  return op(input, args, dtype);
}

at::Tensor dynamic_fake_quantize(const at::Tensor& input, const RangeArgs& args) {
  static const CoreOp<decltype(dynamic_fake_quantize)> op("baraquant::_dynamic_fake_quantize");
  return op(input, args);
}

TensorPair dynamic_fake_quantize_with_mask(const at::Tensor& input, const RangeArgs& args) {
  static const CoreOp<decltype(dynamic_fake_quantize_with_mask)> op(
      "baraquant::_dynamic_fake_quantize_with_mask");
  return op(input, args);
}

void observe_min_max(const at::Tensor& input, const at::Tensor& min_val, const at::Tensor& max_val,
                     const ObserveArgs& args) {
  static const CoreOp<void(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           std::optional<int64_t>, std::optional<double>, const OptionalTensor&)>
      op("baraquant::_observe_min_max_");
  op(input, min_val, max_val, args.axis, args.averaging_constant, args.skipped_batches);
}

void observe_qparams(const at::Tensor& input, const Observed& observed,
                     const at::Tensor& observer_enabled, const ObserveArgs& args, int64_t quant_min,
                     int64_t quant_max, bool symmetric) {
  static const CoreOp<void(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           const at::Tensor&, const at::Tensor&, const at::Tensor&,
                           std::optional<int64_t>, std::optional<double>, int64_t, int64_t, bool,
                           const OptionalTensor&)>
      op("baraquant::_observe_qparams_");
  op(input, observed.min_val, observed.max_val, observed.scale, observed.zero_point,
     observer_enabled, args.axis, args.averaging_constant, quant_min, quant_max, symmetric,
     args.skipped_batches);
}

}  // namespace baraquant::range
