// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the range family below autograd, one function each for CPU, CUDA and Meta. It
// checks, allocates and launches. If the device can hold a segment, one kernel reads it once. If
// not, a first kernel chooses the scales and the affine family's kernel does the rest.
#include <ATen/ops/empty.h>

#include "affine/checks.h"
#include "affine/launch.h"
#include "frame/copies.h"
#include "frame/devices.h"
#include "frame/outputs.h"
#include "granularity/memory_order.h"
#include "range/checks.h"
#include "range/launch.h"
#include "range/quantize_rows.h"

namespace baraquant::range {
namespace {

// The scale and the zero point that an op returns. `call` has the tensors that the kernels write.
class Choice {
 public:
  Choice(const at::Tensor& x, const RangeArgs& args) {
    std::tie(scale, zero_point) =
        empty_qparams(x, scale_sizes(x.sym_sizes().vec(), args.scope), args.scheme());
    if (!has_work(x)) return;
    order_.emplace(x, args.scope);
    call.input = x;
    call.scale = order_->buffer_for(scale);
    call.zero_point = order_->buffer_for(zero_point);
    call.map = scale_map_of(x, args.scope);
    call.scheme = args.scheme();
  }
  void restore() const {
    order_->restore(call.scale, scale);
    order_->restore(call.zero_point, zero_point);
  }

  at::Tensor scale, zero_point;
  RangeCall call;

 private:
  std::optional<ScaleOrder> order_;
};

// The affine family's call with the chosen scales.
affine::Call affine_call(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
  affine::Call next;
  next.first = call.input;
  next.result = result;
  next.mask = mask;
  next.scale = call.scale;
  next.zero_point = call.zero_point;
  next.quant_min = call.scheme.quant_min;
  next.quant_max = call.scheme.quant_max;
  next.own_range = true;
  next.map = call.map;
  return next;
}

// An undefined mask is not written.
void run_quantize(const RangeCall& call, const at::Tensor& result, const at::Tensor& mask) {
  const at::Tensor& x = call.input;
  if (kernels(x).quantize(call, result, mask)) return;
  kernels(x).choose(call);
  affine::kernels(x).quantize(affine_call(call, result, mask));
}

TensorPair choose_qparams_device(const at::Tensor& input, const RangeArgs& args) {
  check_choose({"choose_qparams", args.scope.granularity}, input, args);
  const at::Tensor x = dense(input);
  const Choice choice(x, args);
  if (has_work(x)) {
    kernels(x).choose(choice.call);
    choice.restore();
  }
  return {choice.scale, choice.zero_point};
}

TensorTriple dynamic_quantize_device(const at::Tensor& input, const RangeArgs& args,
                                     at::ScalarType dtype) {
  check_choose({"dynamic_range_quantize", args.scope.granularity}, input, args, dtype);
  const at::Tensor x = dense(input);
  const at::Tensor output = empty_as(x, dtype);
  const Choice choice(x, args);
  if (has_work(x)) {
    run_quantize(choice.call, output, {});
    choice.restore();
  }
  return {output, choice.scale, choice.zero_point};
}

TensorPair run_fake_quantize(const at::Tensor& input, const RangeArgs& args, bool with_mask) {
  check_choose({"dynamic_fake_quantize", args.scope.granularity}, input, args);
  const at::Tensor x = dense(input);
  const at::Tensor output = empty_as(x, x.scalar_type());
  const at::Tensor mask = with_mask ? empty_mask(x) : at::Tensor();
  if (has_work(x)) {
    const Choice choice(x, args);
    if (!kernels(x).fake_quantize(choice.call, output, mask)) {
      kernels(x).choose(choice.call);
      affine::kernels(x).fake_quantize(affine_call(choice.call, output, mask));
    }
  }
  return {output, mask};
}

at::Tensor dynamic_fake_quantize_device(const at::Tensor& input, const RangeArgs& args) {
  return std::get<0>(run_fake_quantize(input, args, false));
}

TensorPair dynamic_fake_quantize_with_mask_device(const at::Tensor& input, const RangeArgs& args) {
  return run_fake_quantize(input, args, true);
}

ObserveCall observe_call(const at::Tensor& x, const ObserveArgs& args) {
  const Scope scope = args.axis ? PerChannel::from_flat(*args.axis) : PerTensor::from_flat();
  ObserveCall call;
  call.range.input = x;
  call.range.map = scale_map_of(x, scope);
  call.min = args.min_val;
  call.max = args.max_val;
  call.averaging_constant = args.averaging_constant.value_or(-1);
  if (args.skipped_batches) call.skipped_batches = *args.skipped_batches;
  return call;
}

void observe_min_max_device(const ObserveArgs& args) {
  check_observe("baraquant::observe_min_max_", args);
  if (!has_work(args.input)) return;
  const at::Tensor x = dense(args.input);
  kernels(x).observe(observe_call(x, args));
}

void observe_qparams_device(const ObserveQparamsArgs& args) {
  check_observe_qparams("baraquant::observe_fake_quantize", args);
  if (!has_work(args.input)) return;
  const at::Tensor x = dense(args.input);
  ObserveCall call = observe_call(x, args.range());
  call.enabled = args.observer_enabled;
  call.range.scale = args.scale;
  call.range.zero_point = args.zero_point;
  call.range.scheme = args.scheme();
  kernels(x).observe(call);
}

void register_kernels(torch::Library& m) {
  m.impl("_choose_qparams", kernel_of<&choose_qparams_device>);
  m.impl("_dynamic_quantize", kernel_of<&dynamic_quantize_device>);
  m.impl("_dynamic_fake_quantize", kernel_of<&dynamic_fake_quantize_device>);
  m.impl("_dynamic_fake_quantize_with_mask", kernel_of<&dynamic_fake_quantize_with_mask_device>);
  m.impl("_observe_min_max_", kernel_of<&observe_min_max_device>);
  m.impl("_observe_qparams_", kernel_of<&observe_qparams_device>);
}

RangeCall call_of_rows(const at::Tensor& rows, const RowScheme& scheme, const RowTargets& to) {
  RangeCall call;
  call.input = rows;
  call.scale = to.scale;
  call.zero_point = to.zero_point;
  call.map = make_per_group_map(rows.size(0), rows.size(1), 1, rows.size(1));
  call.scheme = scheme;
  return call;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> empty_qparams(const at::Tensor& x, c10::SymIntArrayRef sizes,
                                                const RowScheme& scheme) {
  const auto options = x.options().dtype(compute_dtype(x.scalar_type()));
  const auto integers = options.dtype(at::kInt);
  if (x.is_meta() || x.sym_numel() != 0) {
    return {at::empty_symint(sizes, options), at::empty_symint(sizes, integers)};
  }
  return {filled(sizes, 1, options),
          filled(sizes, Rule<double>(scheme).zero_point_of_zeros(), integers)};
}

void quantize_rows_into(const at::Tensor& rows, const RowScheme& scheme, const RowTargets& to) {
  run_quantize(call_of_rows(rows, scheme, to), to.values, {});
}

QuantizedRows quantize_rows(const at::Tensor& rows, const RowScheme& scheme, bool with_mask) {
  const int64_t count = rows.size(0), length = rows.size(1);
  const auto options = rows.options().dtype(compute_dtype(rows.scalar_type()));
  QuantizedRows q;
  q.values = with_huge_pages(at::empty({count, length}, options.dtype(at::kChar)));
  if (with_mask) q.mask = empty_mask(rows);
  if (scheme.symmetric) {
    q.scale = has_work(rows) ? at::empty({count}, options) : filled({count}, 1, options);
  } else {
    std::tie(q.scale, q.zero_point) = empty_qparams(rows, {count}, scheme);
  }
  if (!has_work(rows)) return q;
  const RangeCall call = call_of_rows(rows, scheme, {q.values, q.scale, q.zero_point});
  run_quantize(call, q.values, q.mask);
  return q;
}

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::range
