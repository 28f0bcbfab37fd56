// SPDX-License-Identifier: BSD-3-Clause
#include "range/checks.h"

#include <initializer_list>
#include <string>

namespace baraquant::range {
namespace {

// Checks a tensor that the op writes, with one entry for each range.
void check_written_ranges(const char* op, const char* name, const at::Tensor& tensor,
                          const at::Tensor& input, std::optional<int64_t> axis) {
  check_same_device(op, name, tensor, input);
  if (axis) {
    const c10::SymInt channels = input.sym_size(*axis);
    TORCH_CHECK_VALUE(tensor.dim() == 1 && same_size(tensor.sym_size(0), channels), op,
                      ": expected ", name, " to have shape [", channels, "] (input.size(", *axis,
                      ")), but got ", tensor.sym_sizes());
  } else {
    TORCH_CHECK_VALUE(tensor.dim() == 0 || (tensor.dim() == 1 && same_size(tensor.sym_size(0), 1)),
                      op, ": expected ", name,
                      " to have 1 element (shape [] or [1], one for the tensor), but got ",
                      tensor.sym_sizes());
  }
  TORCH_CHECK_VALUE(tensor.is_contiguous(), op, ": expected ", name,
                    " to be contiguous, as it is written in place, but got strides ",
                    tensor.sym_strides());
  TORCH_CHECK_VALUE(!tensor.requires_grad(), op, ": expected ", name,
                    " not to require grad, as it is written in place; use .detach()");
}

// Whether two contiguous tensors share an element. NB: for traced tensors, whose sizes are unknown,
// only whether they are the same tensor.
bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (!a.has_storage() || !b.has_storage() || !a.storage().is_alias_of(b.storage())) return false;
  const auto bytes = [](const at::Tensor& t) -> std::optional<std::pair<int64_t, int64_t>> {
    const auto begin = t.sym_storage_offset().maybe_as_int(), size = t.sym_numel().maybe_as_int();
    if (!begin || !size) return std::nullopt;
    const auto item = static_cast<int64_t>(t.itemsize());
    return std::pair(*begin * item, (*begin + *size) * item);
  };
  const auto a_bytes = bytes(a), b_bytes = bytes(b);
  return a_bytes && b_bytes && a_bytes->first < b_bytes->second && b_bytes->first < a_bytes->second;
}

void check_distinct(const char* op, const char* a_name, const at::Tensor& a, const char* b_name,
                    const at::Tensor& b) {
  TORCH_CHECK_VALUE(!overlap(a, b), op, ": expected ", a_name, " and ", b_name,
                    " to be two tensors, as both are written, but they share memory");
}

// Checks the counter, one for all ranges. written: the other tensors that the op writes, by name.
void check_skipped_batches(
    const char* op, const at::Tensor& input, const OptionalTensor& skipped_batches,
    std::initializer_list<std::pair<const char*, const at::Tensor*>> written) {
  if (!skipped_batches) return;
  const char* name = "skipped_batches";
  check_dtype(op, name, *skipped_batches, at::kLong, "it is written in place");
  check_written_ranges(op, name, *skipped_batches, input, std::nullopt);
  for (const auto& [other, tensor] : written) {
    check_distinct(op, name, *skipped_batches, other, *tensor);
  }
}

std::optional<int64_t> checked_axis(const char* op, const at::Tensor& input,
                                    std::optional<int64_t> axis) {
  if (!axis) return std::nullopt;
  return check_axis(op, *axis, input.dim());
}

}  // namespace

void check_choose(const OpName& op, const at::Tensor& input, const RangeArgs& args,
                  std::optional<at::ScalarType> dtype) {
  check_floating(op, "input", input);
  TORCH_CHECK_TYPE(!dtype || *dtype == at::kChar || *dtype == at::kByte, op,
                   ": expected dtype to be int8 or uint8, but got ",
                   dtype_name(dtype.value_or(at::kChar)));
  check_chosen_range(op, args.quant_min, args.quant_max,
                     dtype.value_or(compute_dtype(input.scalar_type())), args.symmetric);
  check_scope(op, input, args.scope);
}

void check_row_scheme(const char* op, const RowScheme& scheme, const char* prefix) {
  const int64_t low = scheme.quant_min, high = scheme.quant_max;
  check_chosen_range(op, low, high, at::kChar, scheme.symmetric, prefix);
  TORCH_CHECK_VALUE(!scheme.symmetric || low == -high || low == -high - 1, op, ": expected ",
                    prefix, "quant_min and ", prefix,
                    "quant_max to have 0 in the middle (-n and n, or -n - 1 and n) in a symmetric "
                    "scheme, which has no zero point here, but got ",
                    low, " and ", high);
}

void check_observe(const char* op, const ObserveArgs& args) {
  const auto& [input, min_val, max_val, given_axis, averaging_constant, skipped_batches] = args;
  check_floating(op, "input", input);
  const auto axis = checked_axis(op, input, given_axis);
  const at::ScalarType compute = compute_dtype(input.scalar_type());
  check_dtype(op, "min_val", min_val, compute, "the compute type of the input");
  check_dtype(op, "max_val", max_val, compute, "the compute type of the input");
  check_written_ranges(op, "min_val", min_val, input, axis);
  check_written_ranges(op, "max_val", max_val, input, axis);
  check_distinct(op, "min_val", min_val, "max_val", max_val);
  TORCH_CHECK_VALUE(!averaging_constant || (*averaging_constant > 0 && *averaging_constant <= 1),
                    op, ": expected averaging_constant to be in (0, 1] or None, but got ",
                    averaging_constant.value_or(0));
  check_skipped_batches(op, input, skipped_batches, {{"min_val", &min_val}, {"max_val", &max_val}});
}

void check_observe_qparams(const char* op, const ObserveQparamsArgs& args) {
  check_observe(op, args.range());
  const at::Tensor &input = args.input, &scale = args.scale, &zero_point = args.zero_point;
  const auto axis = checked_axis(op, input, args.axis);
  const at::ScalarType compute = compute_dtype(input.scalar_type());
  check_dtype(op, "scale", scale, compute, "the compute type of the input");
  check_written_ranges(op, "scale", scale, input, axis);
  check_dtype(op, "zero_point", zero_point, at::kInt, "it is written in place");
  check_written_ranges(op, "zero_point", zero_point, input, axis);
  check_distinct(op, "scale", scale, "min_val", args.min_val);
  check_distinct(op, "scale", scale, "max_val", args.max_val);
  check_distinct(op, "zero_point", zero_point, "scale", scale);
  check_distinct(op, "zero_point", zero_point, "min_val", args.min_val);
  check_distinct(op, "zero_point", zero_point, "max_val", args.max_val);
  check_skipped_batches(op, input, args.skipped_batches,
                        {{"scale", &scale}, {"zero_point", &zero_point}});
  check_switch(op, "observer_enabled", args.observer_enabled, input);
  check_chosen_range(op, args.quant_min, args.quant_max, compute, args.symmetric);
}

}  // namespace baraquant::range
