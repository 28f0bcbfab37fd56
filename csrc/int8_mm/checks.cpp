// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/checks.h"

#include <string>
#include <vector>

#include "frame/checks.h"
#include "frame/recorded.h"
#include "int4/checks.h"
#include "int8_mm/math.h"
#include "range/checks.h"

namespace baraquant::int8_mm {
namespace {

// The sizes of a tensor with one entry for each output: [N], or [E, N] for a grouped op.
c10::SymIntArrayRef output_sizes(const LinearArgs& args) {
  const auto sizes = args.weight.sym_sizes();
  if (!args.has_weight()) return sizes.slice(sizes.size() - 1);
  return sizes.slice(0, args.is_grouped() ? 2 : 1);
}

const char* output_sizes_of(const LinearArgs& args) {
  if (!args.has_weight()) return "input.size(-1)";
  if (args.is_grouped()) return "weight.shape[:2]";
  return args.int4 ? "packed.size(0)" : "weight.size(0)";
}

// Checks the offsets, one for each group, and that int32 can count the rows.
void check_offsets(const LinearArgs& args) {
  const c10::SymInt groups = args.weight.sym_size(0);
  check_expected(args.op,
                 {"offsets", *args.offsets, at::kInt, "the end of each group's rows", groups,
                  "weight.size(0)"},
                 args.input);
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

// ---- Rules, each for an argument and how it fits to the others ----------------------------------

// Scales and bias have the compute type of the output, which is that of a floating input.
at::ScalarType compute_of(const LinearArgs& args) { return compute_dtype(args.dtype); }
const char* why_compute(const LinearArgs& args) {
  return at::isFloatingType(args.input.scalar_type()) ? "the compute type of the input"
                                                      : "the compute type of the output";
}

void check_depth(const LinearArgs& args) {
  const bool shifted = args.input.scalar_type() == at::kByte || args.qparams.has_zero_point() ||
                       !args.scheme.symmetric;
  const int64_t max_depth = shifted ? kMaxShiftedDepth : kMaxDepth;
  const c10::SymInt depth = args.depth();
  TORCH_CHECK_VALUE(depth.sym_le(max_depth).expect_true(__FILE__, __LINE__), args.op,
                    ": expected input.size(-1) to be at most ", max_depth,
                    shifted ? " (of uint8, or with a zero point)" : "",
                    ", so that int32 holds every sum exactly, but got ", depth);
}

// A tensor with one entry for each output.
void check_of_outputs(const LinearArgs& args, const char* name, const at::Tensor& tensor,
                      at::ScalarType dtype, const char* why) {
  check_expected(args.op, {name, tensor, dtype, why, output_sizes(args), output_sizes_of(args)},
                 args.input);
}

void check_bias(const LinearArgs& args) {
  if (!args.bias) return;
  check_bias_dtype(args.op, *args.bias, args.dtype);  // one of two
  check_of_outputs(args, "bias", *args.bias, args.bias->scalar_type(), "");
}

// The scale of a weight of integers.
void check_scale_of(const LinearArgs& args, const at::Tensor& scale) {
  check_of_outputs(args, "weight_scale", scale, compute_of(args), why_compute(args));
}

void check_weight_scale(const LinearArgs& args) { check_scale_of(args, *args.weight_scale); }

void check_weight_sum(const LinearArgs& args) {
  if (!args.weight_sum) return;
  check_of_outputs(args, "weight_sum", *args.weight_sum, at::kInt, "weight.sum(1)");
}

// Whether a tensor has one element. A traced size that is unknown counts as more.
bool is_single(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return true;
  return tensor.dim() == 1 && tensor.sym_size(0).sym_eq(1).guard_or_false(__FILE__, __LINE__);
}

void check_of_rows(const LinearArgs& args, const char* name, const at::Tensor& tensor,
                   bool per_token) {
  check_same_device(args.op, name, tensor, args.input);
  if (!per_token) return check_single(args.op, name, tensor);
  if (is_single(tensor)) return;
  std::vector<c10::SymInt> tokens = args.input.sym_sizes().vec();
  tokens.back() = 1;
  if (tensor.dim() == args.input.dim() - 1) tokens.pop_back();
  TORCH_CHECK_VALUE(has_sizes(tensor, tokens), args.op, ": expected ", name,
                    " to have 1 element (shape [] or [1]) or one for each token (shape ",
                    c10::SymIntArrayRef(tokens), "), but got shape ", tensor.sym_sizes());
}

void check_input_scale(const LinearArgs& args) {
  const InputQparams& q = args.qparams;
  if (!q.scale) return check_scale_number(args.op, q.scale_name, q.scale_number, compute_of(args));
  check_dispatchable(args.op, q.scale_name, *q.scale);
  check_dtype(args.op, q.scale_name, *q.scale, compute_of(args), why_compute(args));
  check_of_rows(args, q.scale_name, *q.scale, q.scale_per_token);
}

void check_zero_point(const LinearArgs& args) {
  const InputQparams& q = args.qparams;
  if (q.zero_point) {
    check_dispatchable(args.op, q.zero_point_name, *q.zero_point);
    check_integer(args.op, q.zero_point_name, *q.zero_point);
    check_of_rows(args, q.zero_point_name, *q.zero_point, q.zero_point_per_token);
  }
  if (q.zero_point_number) {
    const auto [lowest, highest] = exact_integers(args.input.scalar_type());
    TORCH_CHECK_VALUE(*q.zero_point_number >= lowest && *q.zero_point_number <= highest, args.op,
                      ": expected ", q.zero_point_name, " to lie in [", lowest, ", ", highest,
                      "] (the input's integers), but got ", *q.zero_point_number);
  }
}

// The smoothing factors [K], one for each input.
void check_smooth_scale(const LinearArgs& args) {
  if (!args.smooth_scale) return;
  const c10::SymInt inputs = args.depth();
  check_expected(args.op,
                 {"smooth_scale", *args.smooth_scale, compute_of(args), why_compute(args), inputs,
                  "input.size(-1)"},
                 args.input);
}

// The dtype of a weight that is trained: it may be wider than the input, as a master weight
// under autocast is, since its integers and scales depend on the compute type alone.
void check_trained_weight(const LinearArgs& args) {
  check_floating(args.op, "weight", args.weight);
  const at::ScalarType given = args.weight.scalar_type(), from = args.input.scalar_type();
  TORCH_CHECK_TYPE(compute_dtype(given) == compute_dtype(from), args.op, ": expected weight to be ",
                   from == at::kDouble ? "float64" : "float32, float16 or bfloat16",
                   " (the input is ", dtype_name(from), "), but got ", dtype_name(given));
  check_matrices(args);
}

// The integers and the scale that stand for a floating weight.
void check_given_weight(const LinearArgs& args) {
  const GivenWeight& given = args.given;
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
  check_scale_of(args, *given.scale);
}

// An op with a floating input needs an output of the same compute type: scales and bias have it.
void check_same_compute(const LinearArgs& args) {
  const at::ScalarType compute = compute_dtype(args.input.scalar_type());
  TORCH_CHECK_TYPE(is_supported_floating(args.dtype) && compute_of(args) == compute, args.op,
                   ": expected dtype to be ",
                   compute == at::kDouble ? "float64" : "float32, float16 or bfloat16",
                   " (the input, ", dtype_name(args.input.scalar_type()), ", is computed with in ",
                   dtype_name(compute), "), but got ", dtype_name(args.dtype));
}

void check_input_of_integers(const LinearArgs& args) { check_quantized_input(args.op, args.input); }

void check_floating_input(const LinearArgs& args) { check_floating(args.op, "input", args.input); }

void check_sums(const LinearArgs& args) {
  check_dtype(args.op, "input", args.input, at::kInt, "the sums of a product of integers");
  check_has_dimension(args);
}

void check_output(const LinearArgs& args) { check_output_dtype(args.op, args.dtype); }

void check_static_range(const LinearArgs& args) {
  check_range(args.op, args.scheme.quant_min, args.scheme.quant_max, at::kChar);
}

void check_scheme(const LinearArgs& args) { range::check_row_scheme(args.op, args.scheme); }

void check_weight_scheme(const LinearArgs& args) {
  range::check_row_scheme(args.op, args.weight_scheme, "weight_");
}

// ---- The rules of each kind of op, in the order in which a user hears of mistakes ---------------

using LinearRule = Rule<LinearArgs>;

constexpr LinearRule kProductRules[] = {check_all_dispatchable, check_input_of_integers,
                                        check_integer_weight,   check_depth,
                                        check_output,           check_weight_scale,
                                        check_weight_sum,       check_input_scale,
                                        check_zero_point,       check_bias};
constexpr LinearRule kSumsRules[] = {check_all_dispatchable, check_input_of_integers,
                                     check_integer_weight,   check_depth,
                                     check_weight_sum,       check_zero_point};
constexpr LinearRule kRescalingRules[] = {check_all_dispatchable, check_sums,         check_output,
                                          check_input_scale,      check_weight_scale, check_bias};
constexpr LinearRule kDynamicRules[] = {
    check_all_dispatchable, check_floating_input, check_same_compute,
    check_integer_weight,   check_depth,          check_scheme,
    check_weight_scale,     check_weight_sum,     check_bias};
constexpr LinearRule kStaticRules[] = {
    check_all_dispatchable, check_floating_input, check_same_compute,
    check_integer_weight,   check_depth,          check_static_range,
    check_weight_scale,     check_weight_sum,     check_input_scale,
    check_zero_point,       check_smooth_scale,   check_bias};
constexpr LinearRule kTrainedRules[] = {
    check_all_dispatchable, check_floating_input, check_trained_weight, check_depth,
    check_weight_scheme,    check_scheme,         check_bias,           check_given_weight};

// ---- _integer_backward --------------------------------------------------------------------------

constexpr const char* kBackwardOp = "baraquant::_integer_backward";

// Checks a tensor that has to be there, its dtype, and its number of elements.
void check_kept(const at::Tensor& grad, const char* name, const OptionalTensor& tensor,
                at::ScalarType dtype, const c10::SymInt& count) {
  TORCH_CHECK_TYPE(tensor.has_value(), kBackwardOp, ": expected ", name,
                   " to be a tensor, but got none");
  check_dispatchable(kBackwardOp, name, *tensor);
  check_dtype(kBackwardOp, name, *tensor, dtype, "as the forward pass keeps it");
  check_same_device(kBackwardOp, name, *tensor, grad, "gradient");
  TORCH_CHECK_VALUE(same_size(tensor->sym_numel(), count), kBackwardOp, ": expected ", name,
                    " to have ", count, " elements, but got shape ", tensor->sym_sizes());
}

void check_constant(const LinearArgs& args, const char* name, const at::Tensor* tensor) {
  if (tensor) baraquant::check_constant(args.op, name, *tensor);
}

}  // namespace

void check_single(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(is_single(tensor), op, ": expected ", name,
                    " to have 1 element (shape [] or [1]), but got shape ", tensor.sym_sizes());
}

void check_all_dispatchable(const LinearArgs& args) {
  check_dispatchable(args.op, "input", args.input);
  check_dispatchable(args.op, args.weight_name(), args.weight);
  if (args.int4) int4::check_groups_dispatchable(args.op, *args.int4);
  if (args.weight_scale) check_dispatchable(args.op, "weight_scale", *args.weight_scale);
  if (args.bias) check_dispatchable(args.op, "bias", *args.bias);
  if (args.weight_sum) check_dispatchable(args.op, "weight_sum", *args.weight_sum);
  if (args.offsets) check_dispatchable(args.op, "offsets", *args.offsets);
}

// NB: in the order of the schemas, where act_scale follows weight_scale.
void check_constants(const LinearArgs& args) {
  const InputQparams& q = args.qparams;
  check_all_dispatchable(args);
  if (q.scale_per_token) check_constant(args, q.scale_name, q.scale);
  check_constant(args, "weight_scale", args.weight_scale);
  if (!q.scale_per_token) check_constant(args, q.scale_name, q.scale);
  if (q.zero_point) check_dispatchable(args.op, q.zero_point_name, *q.zero_point);
  check_constant(args, "smooth_scale", args.smooth_scale);
  if (!args.has_weight()) check_constant(args, "bias", args.bias);
}

void check_arguments(const LinearArgs& args) {
  switch (args.kind) {
    case Kind::kProduct:
      return check_all(args, kProductRules);
    case Kind::kSums:
      return check_all(args, kSumsRules);
    case Kind::kRescaling:
      return check_all(args, kRescalingRules);
    case Kind::kDynamic:
      return check_all(args, kDynamicRules);
    case Kind::kStatic:
      return check_all(args, kStaticRules);
    case Kind::kTrained:
      return check_all(args, kTrainedRules);
  }
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

void check_integer_backward(const at::Tensor& grad, const IntegerBackwardArgs& args) {
  check_dispatchable(kBackwardOp, "grad", grad);
  check_floating(kBackwardOp, "grad", grad);
  TORCH_CHECK_VALUE(grad.dim() >= 1, kBackwardOp, ": expected grad to have at least 1 dimension");
  const at::ScalarType compute = compute_dtype(grad.scalar_type());
  c10::SymInt rows = 1;
  for (const auto& size : grad.sym_sizes().slice(0, grad.dim() - 1)) rows *= size;
  if (args.weight) {
    TORCH_CHECK_VALUE(args.weight->dim() == 2, kBackwardOp,
                      ": expected weight to have 2 dimensions");
    const c10::SymInt outputs = grad.sym_size(-1);
    const bool is_rounded = args.weight->scalar_type() == at::kChar;
    const at::ScalarType given = args.weight->scalar_type();
    const bool fits =
        is_rounded || (is_supported_floating(given) && compute_dtype(given) == compute);
    check_kept(grad, "weight", args.weight, fits ? given : grad.scalar_type(),
               outputs * args.weight->sym_size(1));
    check_kept(grad, "weight_scale", args.weight_scale, compute, outputs);
  }
  if (args.qinput) {
    TORCH_CHECK_VALUE(args.qinput->dim() >= 1, kBackwardOp,
                      ": expected qinput to have at least 1 dimension");
    check_kept(grad, "qinput", args.qinput, at::kChar, rows * args.qinput->sym_size(-1));
    check_kept(grad, "input_scale", args.input_scale, compute, rows);
    if (args.input_zero_point) {
      check_kept(grad, "input_zero_point", args.input_zero_point, at::kInt, rows);
    }
  }
  if (args.random) check_kept(grad, "random", args.random, at::kLong, 2);
  TORCH_CHECK_TYPE(!args.bias_dtype || at::isFloatingType(*args.bias_dtype), kBackwardOp,
                   ": expected bias_dtype to be a floating type, but got ", *args.bias_dtype);
}

}  // namespace baraquant::int8_mm
