// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/checks.h"

#include <string>
#include <vector>

#include "frame/checks.h"
#include "int4/checks.h"
#include "int8_mm/math.h"
#include "range/checks.h"

namespace baraquant::int8_mm {
namespace {

// The sizes of a tensor with one entry for each output: [N], or [E, N] for a grouped op.
c10::SymIntArrayRef output_sizes(const LinearArgs& args) {
  const auto sizes = args.weight.sym_sizes();
  if (!args.has_weight) return sizes.slice(sizes.size() - 1);
  return sizes.slice(0, args.is_grouped() ? 2 : 1);
}

void check_per_output(const LinearArgs& args, const char* name, const at::Tensor& tensor) {
  check_same_device(args.op, name, tensor, args.input);
  const auto outputs = output_sizes(args);
  TORCH_CHECK_VALUE(has_sizes(tensor, outputs), args.op, ": expected ", name, " to have shape ",
                    outputs, " (", args.has_weight ? args.weight_name() : "input",
                    args.is_grouped()  ? ".shape[:2]"
                    : !args.has_weight ? ".size(-1)"
                                       : ".size(0)",
                    "), but got ", tensor.sym_sizes());
}

// Checks the offsets, one for each group, and that int32 can count the rows.
void check_offsets(const LinearArgs& args) {
  const at::Tensor& offsets = *args.offsets;
  check_dtype(args.op, "offsets", offsets, at::kInt, "the end of each group's rows");
  check_same_device(args.op, "offsets", offsets, args.input);
  const c10::SymInt groups = args.weight.sym_size(0);
  TORCH_CHECK_VALUE(has_sizes(offsets, {groups}), args.op, ": expected offsets to have shape [",
                    groups, "] (weight.size(0)), but got ", offsets.sym_sizes());
  const c10::SymInt rows = args.input.sym_size(0);
  TORCH_CHECK_VALUE(rows.sym_le(kMaxGroupedRows).expect_true(__FILE__, __LINE__), args.op,
                    ": expected input.size(0) to be at most ", kMaxGroupedRows,
                    ", the most that int32 offsets can reach, but got ", rows);
}

void check_contiguous(const LinearArgs& args, const char* shape) {
  TORCH_CHECK_VALUE(args.weight.is_contiguous(), args.op, ": expected ", args.weight_name(),
                    " to be contiguous (", shape, ", row by row), but got strides ",
                    args.weight.sym_strides(),
                    "; call .contiguous() once, where the weight is stored");
}

void check_has_dimension(const LinearArgs& args) {
  TORCH_CHECK_VALUE(args.input.dim() >= 1, args.op,
                    ": expected input to have at least 1 dimension, but got 0");
}

void check_packed_weight(const LinearArgs& args) {
  check_has_dimension(args);
  const c10::SymInt depth = args.depth();
  int4::check_packed(args.op, "packed", args.weight, depth, "input.size(-1)");
  check_same_device(args.op, "packed", args.weight, args.input);
  check_contiguous(args, "[N, ceil(K / 2)]");
  int4::check_groups(args.op, *args.int4, args.weight.sym_size(0), depth, args.input, "input");
}

void check_matrices(const LinearArgs& args) {
  const at::Tensor &input = args.input, &weight = args.weight;
  check_same_device(args.op, "weight", weight, input);
  TORCH_CHECK_VALUE(weight.dim() == (args.is_grouped() ? 3 : 2), args.op,
                    ": expected weight to have ",
                    args.is_grouped() ? "3 dimensions [E, N, K]" : "2 dimensions [N, K]",
                    ", but got shape ", weight.sym_sizes());
  if (args.is_grouped()) {
    TORCH_CHECK_VALUE(input.dim() == 2, args.op,
                      ": expected input to have 2 dimensions [T, K], but got shape ",
                      input.sym_sizes());
    check_offsets(args);
  }
  check_has_dimension(args);
  const c10::SymInt depth = args.depth();
  TORCH_CHECK_VALUE(same_size(input.sym_size(-1), depth), args.op,
                    ": expected input to have shape [", args.is_grouped() ? "T" : "...", ", ",
                    depth, "] (weight.size(", args.is_grouped() ? 2 : 1, ") last), but got ",
                    input.sym_sizes());
}

// Checks a weight of integers, int8 or packed, and the input's shape.
void check_integer_weight(const LinearArgs& args) {
  if (args.int4) return check_packed_weight(args);
  check_dtype(args.op, "weight", args.weight, at::kChar, "quantized weights");
  if (args.weight.dim() == (args.is_grouped() ? 3 : 2)) {
    check_contiguous(args, args.is_grouped() ? "[E, N, K]" : "[N, K]");
  }
  check_matrices(args);
}

void check_depth(const LinearArgs& args, bool shifted) {
  const int64_t max_depth = shifted ? kMaxShiftedDepth : kMaxDepth;
  const c10::SymInt depth = args.depth();
  TORCH_CHECK_VALUE(depth.sym_le(max_depth).expect_true(__FILE__, __LINE__), args.op,
                    ": expected input.size(-1) to be at most ", max_depth,
                    shifted ? " (of uint8, or with a zero point)" : "",
                    ", so that int32 holds every sum exactly, but got ", depth);
}

void check_bias(const LinearArgs& args, at::ScalarType dtype) {
  if (!args.bias) return;
  check_bias_dtype(args.op, *args.bias, dtype);
  check_per_output(args, "bias", *args.bias);
}

void check_weight_scale(const LinearArgs& args, at::ScalarType compute, const char* why) {
  check_dtype(args.op, "weight_scale", *args.weight_scale, compute, why);
  check_per_output(args, "weight_scale", *args.weight_scale);
}

void check_weight_sum(const LinearArgs& args) {
  if (!*args.weight_sum) return;
  check_dtype(args.op, "weight_sum", **args.weight_sum, at::kInt, "weight.sum(1)");
  check_per_output(args, "weight_sum", **args.weight_sum);
}

void check_weight_qparams(const LinearArgs& args, at::ScalarType compute, const char* why) {
  check_weight_scale(args, compute, why);
  check_weight_sum(args);
}

// Whether a tensor has one element. A traced size that is unknown counts as more.
bool is_single(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return true;
  return tensor.dim() == 1 && tensor.sym_size(0).sym_eq(1).guard_or_false(__FILE__, __LINE__);
}

void check_of_rows(const LinearArgs& args, const char* name, const at::Tensor& tensor,
                   bool per_token) {
  check_same_device(args.op, name, tensor, args.input);
  if (is_single(tensor)) return;
  TORCH_CHECK_VALUE(per_token, args.op, ": expected ", name,
                    " to have 1 element (shape [] or [1]), but got shape ", tensor.sym_sizes());
  std::vector<c10::SymInt> tokens = args.input.sym_sizes().vec();
  tokens.back() = 1;
  if (tensor.dim() == args.input.dim() - 1) tokens.pop_back();
  TORCH_CHECK_VALUE(has_sizes(tensor, tokens), args.op, ": expected ", name,
                    " to have 1 element (shape [] or [1]) or one for each token (shape ",
                    c10::SymIntArrayRef(tokens), "), but got shape ", tensor.sym_sizes());
}

void check_input_qparams(const LinearArgs& args, const InputQparams& q, at::ScalarType compute,
                         const char* why) {
  if (q.scale) {
    check_dispatchable(args.op, q.scale_name, *q.scale);
    check_dtype(args.op, q.scale_name, *q.scale, compute, why);
    check_of_rows(args, q.scale_name, *q.scale, q.scale_per_token);
  } else {
    check_scale_number(args.op, q.scale_name, q.scale_number, compute);
  }
  if (q.zero_point && *q.zero_point) {
    const at::Tensor& zero_point = **q.zero_point;
    check_dispatchable(args.op, q.zero_point_name, zero_point);
    check_integer(args.op, q.zero_point_name, zero_point);
    check_of_rows(args, q.zero_point_name, zero_point, q.zero_point_per_token);
  }
  if (q.zero_point_number) {
    const auto [lowest, highest] = exact_integers(args.input.scalar_type());
    TORCH_CHECK_VALUE(*q.zero_point_number >= lowest && *q.zero_point_number <= highest, args.op,
                      ": expected ", q.zero_point_name, " to lie in [", lowest, ", ", highest,
                      "] (the input's integers), but got ", *q.zero_point_number);
  }
}

// Checks the smoothing factors [K], one for each input.
void check_smooth_scale(const LinearArgs& args, const at::Tensor& smooth_scale,
                        at::ScalarType compute) {
  check_dispatchable(args.op, "smooth_scale", smooth_scale);
  check_dtype(args.op, "smooth_scale", smooth_scale, compute, "the compute type of the input");
  check_same_device(args.op, "smooth_scale", smooth_scale, args.input);
  const c10::SymInt inputs = args.depth();
  TORCH_CHECK_VALUE(has_sizes(smooth_scale, {inputs}), args.op,
                    ": expected smooth_scale to have shape [", inputs,
                    "] (input.size(-1)), but got ", smooth_scale.sym_sizes());
}

// Checks the dtype of a weight that is trained: it may be wider than the input, as a master weight
// under autocast is, since its integers and scales depend on the compute type alone.
void check_master_weight(const LinearArgs& args) {
  check_floating(args.op, "weight", args.weight);
  const at::ScalarType given = args.weight.scalar_type(), from = args.input.scalar_type();
  TORCH_CHECK_TYPE(compute_dtype(given) == compute_dtype(from), args.op, ": expected weight to be ",
                   from == at::kDouble ? "float64" : "float32, float16 or bfloat16",
                   " (the input is ", dtype_name(from), "), but got ", dtype_name(given));
}

// Checks the integers and the scale that stand for a floating weight.
void check_given_weight(const LinearArgs& args, const GivenWeight& given) {
  TORCH_CHECK_VALUE(given.integers.has_value() == given.scale.has_value(), args.op,
                    ": expected qweight and weight_scale, or neither, but got ",
                    given.integers ? "qweight" : "weight_scale", " alone");
  if (!given) return;
  const at::Tensor& integers = *given.integers;
  check_dispatchable(args.op, "qweight", integers);
  check_dtype(args.op, "qweight", integers, at::kChar, "the integers of the weight");
  check_same_device(args.op, "qweight", integers, args.input);
  TORCH_CHECK_VALUE(has_sizes(integers, args.weight.sym_sizes()), args.op,
                    ": expected qweight to have the shape of weight (", args.weight.sym_sizes(),
                    "), but got ", integers.sym_sizes());
  TORCH_CHECK_VALUE(integers.is_contiguous(), args.op,
                    ": expected qweight to be contiguous ([N, K], row by row), but got strides ",
                    integers.sym_strides(), "; call .contiguous() first");
  check_dispatchable(args.op, "weight_scale", *given.scale);
  check_dtype(args.op, "weight_scale", *given.scale, compute_dtype(args.input.scalar_type()),
              "the compute type of the input");
  check_per_output(args, "weight_scale", *given.scale);
}

// Checks an input and a weight of integers, and that int32 holds their sums.
void check_integers(const LinearArgs& args, const InputQparams& qparams) {
  check_all_dispatchable(args);
  const at::ScalarType from = args.input.scalar_type();
  check_quantized_input(args.op, args.input);
  check_integer_weight(args);
  check_depth(args, from == at::kByte || qparams.has_zero_point());
}

// An op with a floating input needs an output of the same compute type: scales and bias have it.
void check_same_compute(const LinearArgs& args, at::ScalarType dtype) {
  const at::ScalarType compute = compute_dtype(args.input.scalar_type());
  TORCH_CHECK_TYPE(is_supported_floating(dtype) && compute_dtype(dtype) == compute, args.op,
                   ": expected dtype to be ",
                   compute == at::kDouble ? "float64" : "float32, float16 or bfloat16",
                   " (the input, ", dtype_name(args.input.scalar_type()), ", is computed with in ",
                   dtype_name(compute), "), but got ", dtype_name(dtype));
}

}  // namespace

void check_all_dispatchable(const LinearArgs& args) {
  check_dispatchable(args.op, "input", args.input);
  check_dispatchable(args.op, args.weight_name(), args.weight);
  if (args.int4) int4::check_groups_dispatchable(args.op, *args.int4);
  if (args.weight_scale) check_dispatchable(args.op, "weight_scale", *args.weight_scale);
  if (args.bias) check_dispatchable(args.op, "bias", *args.bias);
  if (args.weight_sum && *args.weight_sum) {
    check_dispatchable(args.op, "weight_sum", **args.weight_sum);
  }
  if (args.offsets) check_dispatchable(args.op, "offsets", *args.offsets);
}

void check_product(const LinearArgs& args, const InputQparams& qparams, at::ScalarType dtype) {
  check_integers(args, qparams);
  check_output_dtype(args.op, dtype);
  const at::ScalarType compute = compute_dtype(dtype);
  check_weight_qparams(args, compute, "the compute type of the output");
  check_input_qparams(args, qparams, compute, "the compute type of the output");
  check_bias(args, dtype);
}

void check_integer_product(const LinearArgs& args, const InputQparams& qparams) {
  check_integers(args, qparams);
  check_weight_sum(args);
  check_input_qparams(args, qparams, at::kFloat, "");
}

void check_rescale(const LinearArgs& args, const InputQparams& qparams, at::ScalarType dtype) {
  check_all_dispatchable(args);
  check_dtype(args.op, "input", args.input, at::kInt, "the sums of a product of integers");
  check_has_dimension(args);
  check_output_dtype(args.op, dtype);
  const at::ScalarType compute = compute_dtype(dtype);
  check_input_qparams(args, qparams, compute, "the compute type of the output");
  check_weight_scale(args, compute, "the compute type of the output");
  check_bias(args, dtype);
}

void check_quantized_linear(const LinearArgs& args, const RowScheme& scheme, at::ScalarType dtype) {
  check_all_dispatchable(args);
  check_floating(args.op, "input", args.input);
  check_same_compute(args, dtype);
  check_integer_weight(args);
  check_depth(args, !scheme.symmetric);
  range::check_row_scheme(args.op, scheme);
  check_weight_qparams(args, compute_dtype(dtype), "the compute type of the input");
  check_bias(args, dtype);
}

void check_static_quantized_linear(const LinearArgs& args, const InputQparams& qparams,
                                   const OptionalTensor& smooth_scale, int64_t quant_min,
                                   int64_t quant_max, at::ScalarType dtype) {
  check_all_dispatchable(args);
  check_floating(args.op, "input", args.input);
  check_same_compute(args, dtype);
  check_integer_weight(args);
  check_depth(args, qparams.has_zero_point());
  check_range(args.op, quant_min, quant_max, at::kChar);
  const at::ScalarType compute = compute_dtype(dtype);
  check_weight_qparams(args, compute, "the compute type of the input");
  check_input_qparams(args, qparams, compute, "the compute type of the input");
  if (smooth_scale) check_smooth_scale(args, *smooth_scale, compute);
  check_bias(args, dtype);
}

void check_qat_linear(const LinearArgs& args, const Schemes& schemes, const GivenWeight& given) {
  check_all_dispatchable(args);
  check_floating(args.op, "input", args.input);
  check_master_weight(args);
  check_matrices(args);
  check_depth(args, !schemes.input.symmetric);
  range::check_row_scheme(args.op, schemes.weight, "weight_");
  range::check_row_scheme(args.op, schemes.input);
  check_bias(args, args.input.scalar_type());
  check_given_weight(args, given);
}

void check_backward(const LinearArgs& args, const BackwardArgs& b) {
  const std::string_view how = b.backward, rounding = b.rounding;
  TORCH_CHECK_VALUE(how == "float" || how == "int8_input" || how == "int8", args.op,
                    ": expected backward to be 'float', 'int8_input' or 'int8', but got '", how,
                    "'");
  TORCH_CHECK_VALUE(rounding == "nearest" || rounding == "stochastic", args.op,
                    ": expected rounding to be 'nearest' or 'stochastic', but got '", rounding,
                    "'");
  TORCH_CHECK_VALUE(!b.is_float() || !b.is_stochastic(), args.op,
                    ": expected rounding to be 'nearest' with backward='float', which rounds no "
                    "gradient to integers, but got 'stochastic'; choose backward='int8_input' or "
                    "'int8'");
  TORCH_CHECK_NOT_IMPLEMENTED(!args.is_grouped() || b.is_float(), args.op,
                              ": expected backward to be 'float' for groups of tokens, but got '",
                              how,
                              "': a backward of integers needs the product of each group's "
                              "transposes, which has no kernel; use qat_linear for each group");
}

void check_offset_values(const LinearArgs& args) {
  if (!args.offsets || !args.offsets->is_cpu()) return;
  const at::Tensor offsets = args.offsets->contiguous();
  const auto* ends = static_cast<const int32_t*>(offsets.const_data_ptr());
  for (int64_t g = 0, least = 0; g < offsets.numel(); least = ends[g++]) {
    TORCH_CHECK_VALUE(ends[g] >= least && ends[g] <= args.input.size(0), args.op,
                      ": expected offsets to ascend from 0 to input.size(0) (", args.input.size(0),
                      ") at most, but got ", ends[g], " at index ", g,
                      g == 0 ? "" : " behind " + std::to_string(least));
  }
}

}  // namespace baraquant::int8_mm
