// SPDX-License-Identifier: BSD-3-Clause
// The ops of the range family: schemas, and the public ops. A public op names a granularity and
// calls a core op, which checks its arguments. The arithmetic is in math.h:
//   choose_qparams          scale and zero point from the data
//   dynamic_range_quantize  q = quantize(x, *choose_qparams(x)), and the scale and zero point
//   dynamic_fake_quantize   y = fake_quantize(x, *choose_qparams(x))
//   observe_min_max_        the running range of the data, in place
//   observe_fake_quantize   updates the running range, and fake-quantizes with the scale from it
#include "affine/core_ops.h"
#include "frame/checks.h"
#include "granularity/public_op.h"
#include "range/checks.h"

namespace baraquant::range {
namespace {

// `more` is what the core op takes besides.
template <Text verb, const auto& core, typename... More>
auto public_op(const at::Tensor& input, const RangeArgs& args, More... more) {
  check_dispatchable(OpName{verb.characters, args.scope.granularity}, "input", input);
  return core(input, args, more...);
}

// Neither the running range nor the scale that is chosen from it is differentiable.
void observe_min_max_(const ObserveArgs& args) {
  const char* op = "baraquant::observe_min_max_";
  check_dispatchable(op, "input", args.input);
  check_written(op, "min_val", args.min_val);
  check_written(op, "max_val", args.max_val);
  if (args.skipped_batches) check_written(op, "skipped_batches", *args.skipped_batches);
  observe_min_max({args.input.detach(), args.min_val, args.max_val, args.axis,
                   args.averaging_constant, args.skipped_batches});
}

at::Tensor observe_fake_quantize(const at::Tensor& input, const at::Tensor& min_val,
                                 const at::Tensor& max_val, const at::Tensor& scale,
                                 const at::Tensor& zero_point, const at::Tensor& observer_enabled,
                                 const at::Tensor& fake_quant_enabled, std::optional<int64_t> axis,
                                 int64_t quant_min, int64_t quant_max, bool symmetric,
                                 std::optional<double> averaging_constant,
                                 const OptionalTensor& skipped_batches) {
  const char* op = "baraquant::observe_fake_quantize";
  check_dispatchable(op, "input", input);
  check_written(op, "min_val", min_val);
  check_written(op, "max_val", max_val);
  check_written(op, "scale", scale);
  check_written(op, "zero_point", zero_point);
  check_dispatchable(op, "observer_enabled", observer_enabled);
  check_dispatchable(op, "fake_quant_enabled", fake_quant_enabled);
  if (skipped_batches) check_written(op, "skipped_batches", *skipped_batches);
  check_switch(op, "fake_quant_enabled", fake_quant_enabled, input);
  observe_qparams({.input = input.detach(),
                   .min_val = min_val,
                   .max_val = max_val,
                   .scale = scale,
                   .zero_point = zero_point,
                   .observer_enabled = observer_enabled,
                   .axis = axis,
                   .averaging_constant = averaging_constant,
                   .quant_min = quant_min,
                   .quant_max = quant_max,
                   .symmetric = symmetric,
                   .skipped_batches = skipped_batches});
  const OptionalTensor chosen_scale(scale), chosen_zero_point(zero_point);
  const affine::QuantArgs q{.scale = chosen_scale,
                            .zero_point = chosen_zero_point,
                            .scope = axis ? PerChannel::from_flat(*axis) : PerTensor::from_flat(),
                            .quant_min = quant_min,
                            .quant_max = quant_max};
  return affine::fake_quantize(input, q, /*save_mask=*/true, fake_quant_enabled);
}

// A mask holds one bit for each element, in the output's memory order.
void define_core_ops(torch::Library& m) {
  const std::string args = "(Tensor input, " + RangeArgs::schema();
  define(m, "_choose_qparams" + args + ") -> (Tensor scale, Tensor zero_point)");
  define(m, "_dynamic_quantize" + args +
                ", ScalarType dtype) -> (Tensor output, Tensor scale, Tensor zero_point)");
  define(m, "_dynamic_fake_quantize" + args + ") -> Tensor");
  define(m, "_dynamic_fake_quantize_with_mask" + args + ") -> (Tensor output, Tensor mask)");
  define(m,
         "_observe_min_max_(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, int? axis, "
         "float? averaging_constant, Tensor(c!)? skipped_batches=None) -> ()");
  define(m,
         "_observe_qparams_(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, "
         "Tensor(c!) scale, Tensor(d!) zero_point, Tensor observer_enabled, int? axis, "
         "float? averaging_constant, int quant_min, int quant_max, bool symmetric, "
         "Tensor(e!)? skipped_batches=None) -> ()");
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  const std::string ranged =
      "(Tensor input, ..., int quant_min=-128, int quant_max=127, *, bool symmetric=True";
  define_public_ops(m, "choose_qparams_per_*" + ranged + ") -> (Tensor scale, Tensor zero_point)");
  define_public_ops(m, "dynamic_range_quantize_per_*" + ranged +
                           ", ScalarType dtype=int8) -> "
                           "(Tensor output, Tensor scale, Tensor zero_point)");
  define_public_ops(m, "dynamic_fake_quantize_per_*" + ranged + ") -> Tensor");
  define(m,
         "observe_min_max_(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, int? axis=None, "
         "float? averaging_constant=None, *, Tensor(c!)? skipped_batches=None) -> ()");
  define(m,
         "observe_fake_quantize(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, "
         "Tensor(c!) scale, Tensor(d!) zero_point, Tensor observer_enabled, "
         "Tensor fake_quant_enabled, int? axis=None, int quant_min=-128, int quant_max=127, *, "
         "bool symmetric=True, float? averaging_constant=None, "
         "Tensor(e!)? skipped_batches=None) -> Tensor");
  define_core_ops(m);
}

TORCH_LIBRARY_IMPL(baraquant, CompositeImplicitAutograd, m) {
  implement_public_ops<&public_op<"choose_qparams", choose_qparams>>(m, "choose_qparams_per_*");
  implement_public_ops<&public_op<"dynamic_range_quantize", dynamic_quantize, at::ScalarType>>(
      m, "dynamic_range_quantize_per_*");
  implement_public_ops<&public_op<"dynamic_fake_quantize", dynamic_fake_quantize>>(
      m, "dynamic_fake_quantize_per_*");
  m.impl("observe_min_max_", kernel_of<&observe_min_max_>);
  m.impl("observe_fake_quantize", &observe_fake_quantize);
}

}  // namespace baraquant::range
