// SPDX-License-Identifier: BSD-3-Clause
#include "range/core_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace baraquant::range {
namespace {

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

template <typename R, typename... Extra>
class CoreOp {
 public:
  explicit CoreOp(const char* name) : handle_(find<Signature>(name)) {}

  R operator()(const at::Tensor& input, const RangeArgs& args, Extra... extra) const {
    return handle_.call(input, static_cast<int64_t>(args.granularity), args.axis, args.group_size,
                        args.quant_min, args.quant_max, args.symmetric, extra...);
  }

 private:
  using Signature = R(const at::Tensor&, int64_t, int64_t, c10::SymInt, int64_t, int64_t, bool,
                      Extra...);
  c10::TypedOperatorHandle<Signature> handle_;
};

}  // namespace

TensorPair choose_qparams(const at::Tensor& input, const RangeArgs& args) {
  static const CoreOp<TensorPair> op("baraquant::_choose_qparams");
  return op(input, args);
}

TensorTriple dynamic_quantize(const at::Tensor& input, const RangeArgs& args,
                              at::ScalarType dtype) {
  static const CoreOp<TensorTriple, at::ScalarType> op("baraquant::_dynamic_quantize");
  return op(input, args, dtype);
}

at::Tensor dynamic_fake_quantize(const at::Tensor& input, const RangeArgs& args) {
  static const CoreOp<at::Tensor> op("baraquant::_dynamic_fake_quantize");
  return op(input, args);
}

TensorPair dynamic_fake_quantize_with_mask(const at::Tensor& input, const RangeArgs& args) {
  static const CoreOp<TensorPair> op("baraquant::_dynamic_fake_quantize_with_mask");
  return op(input, args);
}

void observe_min_max(const at::Tensor& input, const at::Tensor& min_val, const at::Tensor& max_val,
                     const ObserveArguments& args) {
  using Signature = void(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         std::optional<int64_t>, std::optional<double>, const OptionalTensor&);
  static const auto op = find<Signature>("baraquant::_observe_min_max_");
  op.call(input, min_val, max_val, args.axis, args.averaging_constant, args.skipped_batches);
}

void observe_qparams(const at::Tensor& input, const Observed& observed,
                     const at::Tensor& observer_enabled, const ObserveArguments& args,
                     int64_t quant_min, int64_t quant_max, bool symmetric) {
  using Signature = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const at::Tensor&, const at::Tensor&, std::optional<int64_t>,
                         std::optional<double>, int64_t, int64_t, bool, const OptionalTensor&);
  static const auto op = find<Signature>("baraquant::_observe_qparams_");
  op.call(input, observed.min_val, observed.max_val, observed.scale, observed.zero_point,
          observer_enabled, args.axis, args.averaging_constant, quant_min, quant_max, symmetric,
          args.skipped_batches);
}

}  // namespace baraquant::range
