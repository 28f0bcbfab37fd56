// SPDX-License-Identifier: BSD-3-Clause
// The ops of the range family: schemas, and the public ops. A public op names a granularity and
// calls the core op, which checks its arguments; numerics in math.h.
//   choose_qparams          scale and zero point from the data
//   dynamic_range_quantize  q = quantize(x, *choose_qparams(x)), with both
//   dynamic_fake_quantize   y = fake_quantize(x, *choose_qparams(x))
//   observe_min_max_        the running range of the data, in place
//   observe_fake_quantize   the same, the scale from it, and fake_quantize with that
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/checks.h"
#include "range/checks.h"

namespace baraquant::range {
namespace {

// The public ops of one granularity. G are its own arguments: none (per tensor, per token), an axis
// (per channel), or a group size and an axis (per group).
template <Granularity granularity, typename... G>
struct PublicOps {
  static RangeArgs range_args(int64_t quant_min, int64_t quant_max, bool symmetric) {
    return {granularity, -1, 1, quant_min, quant_max, symmetric};
  }
  static RangeArgs range_args(int64_t axis, int64_t quant_min, int64_t quant_max, bool symmetric) {
    return {granularity, axis, 1, quant_min, quant_max, symmetric};
  }
  static RangeArgs range_args(c10::SymInt group_size, int64_t axis, int64_t quant_min,
                              int64_t quant_max, bool symmetric) {
    return {granularity, axis,      affine::limited_group_size(std::move(group_size)),
            quant_min,   quant_max, symmetric};
  }

  static TensorPair choose(const at::Tensor& input, G... g, int64_t quant_min, int64_t quant_max,
                           bool symmetric) {
    check_dispatchable(OpName{"choose_qparams", granularity}, "input", input);
    return choose_qparams(input, range_args(g..., quant_min, quant_max, symmetric));
  }
  static TensorTriple quantize(const at::Tensor& input, G... g, int64_t quant_min,
                               int64_t quant_max, bool symmetric, at::ScalarType dtype) {
    check_dispatchable(OpName{"dynamic_range_quantize", granularity}, "input", input);
    return dynamic_quantize(input, range_args(g..., quant_min, quant_max, symmetric), dtype);
  }
  static at::Tensor fake_quantize(const at::Tensor& input, G... g, int64_t quant_min,
                                  int64_t quant_max, bool symmetric) {
    check_dispatchable(OpName{"dynamic_fake_quantize", granularity}, "input", input);
    return dynamic_fake_quantize(input, range_args(g..., quant_min, quant_max, symmetric));
  }
};

// The running range is not differentiable, and neither is the scale that is chosen from it.
void observe_min_max_(const at::Tensor& input, const at::Tensor& min_val, const at::Tensor& max_val,
                      std::optional<int64_t> axis, std::optional<double> averaging_constant,
                      const OptionalTensor& skipped_batches) {
  const char* op = "baraquant::observe_min_max_";
  check_dispatchable(op, "input", input);
  check_written(op, "min_val", min_val);
  check_written(op, "max_val", max_val);
  if (skipped_batches) check_written(op, "skipped_batches", *skipped_batches);
  observe_min_max(input.detach(), min_val, max_val, {axis, averaging_constant, skipped_batches});
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
  observe_qparams(input.detach(), {min_val, max_val, scale, zero_point}, observer_enabled,
                  {axis, averaging_constant, skipped_batches}, quant_min, quant_max, symmetric);
  const affine::OptionalTensor chosen_scale(scale), chosen_zero_point(zero_point);
  const affine::QuantArgs q{chosen_scale,
                            chosen_zero_point,
                            1,
                            0,
                            axis ? Granularity::kPerChannel : Granularity::kPerTensor,
                            axis.value_or(-1),
                            1,
                            quant_min,
                            quant_max};
  return affine::fake_quantize(input, q, /*save_mask=*/true, fake_quant_enabled);
}

void define_granularity(torch::Library& m, const std::string& name, const std::string& arguments) {
  const auto def = [&](const std::string& schema) {
    m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
  };
  const std::string head = name + "(Tensor input" + arguments +
                           ", int quant_min=-128, int quant_max=127, *, bool symmetric=True";
  def("choose_qparams_" + head + ") -> (Tensor scale, Tensor zero_point)");
  def("dynamic_range_quantize_" + head +
      ", ScalarType dtype=int8) -> (Tensor output, Tensor scale, Tensor zero_point)");
  def("dynamic_fake_quantize_" + head + ") -> Tensor");
}

template <typename Ops>
void implement_granularity(torch::Library& m, const std::string& name) {
  const auto impl = [&](const std::string& op, auto* function) { m.impl(op.c_str(), function); };
  impl("choose_qparams_" + name, &Ops::choose);
  impl("dynamic_range_quantize_" + name, &Ops::quantize);
  impl("dynamic_fake_quantize_" + name, &Ops::fake_quantize);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define_granularity(m, "per_tensor", "");
  define_granularity(m, "per_channel", ", int axis");
  define_granularity(m, "per_token", "");
  define_granularity(m, "per_group", ", SymInt group_size, int axis=-1");
  const auto def = [&](const std::string& schema) {
    m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
  };
  def("observe_min_max_(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, int? axis=None, "
      "float? averaging_constant=None, *, Tensor(c!)? skipped_batches=None) -> ()");
  def("observe_fake_quantize(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, "
      "Tensor(c!) scale, Tensor(d!) zero_point, Tensor observer_enabled, "
      "Tensor fake_quant_enabled, int? axis=None, int quant_min=-128, int quant_max=127, *, "
      "bool symmetric=True, float? averaging_constant=None, Tensor(e!)? skipped_batches=None) "
      "-> Tensor");

  // The core ops. A mask holds one bit per element, in the output's memory order.
  const std::string args =
      "(Tensor input, int granularity, int axis, SymInt group_size, int quant_min, int quant_max, "
      "bool symmetric";
  def("_choose_qparams" + args + ") -> (Tensor scale, Tensor zero_point)");
  def("_dynamic_quantize" + args +
      ", ScalarType dtype) -> (Tensor output, Tensor scale, Tensor zero_point)");
  def("_dynamic_fake_quantize" + args + ") -> Tensor");
  def("_dynamic_fake_quantize_with_mask" + args + ") -> (Tensor output, Tensor mask)");
  def("_observe_min_max_(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, int? axis, "
      "float? averaging_constant, Tensor(c!)? skipped_batches=None) -> ()");
  def("_observe_qparams_(Tensor input, Tensor(a!) min_val, Tensor(b!) max_val, Tensor(c!) scale, "
      "Tensor(d!) zero_point, Tensor observer_enabled, int? axis, float? averaging_constant, "
      "int quant_min, int quant_max, bool symmetric, Tensor(e!)? skipped_batches=None) -> ()");
}

TORCH_LIBRARY_IMPL(baraquant, CompositeImplicitAutograd, m) {
  implement_granularity<PublicOps<Granularity::kPerTensor>>(m, "per_tensor");
  implement_granularity<PublicOps<Granularity::kPerChannel, int64_t>>(m, "per_channel");
  implement_granularity<PublicOps<Granularity::kPerToken>>(m, "per_token");
  implement_granularity<PublicOps<Granularity::kPerGroup, c10::SymInt, int64_t>>(m, "per_group");
  m.impl("observe_min_max_", &observe_min_max_);
  m.impl("observe_fake_quantize", &observe_fake_quantize);
}

}  // namespace baraquant::range
