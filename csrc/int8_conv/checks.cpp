// SPDX-License-Identifier: BSD-3-Clause
#include "int8_conv/checks.h"

#include <cstdint>

#include "frame/checks.h"
#include "int8_mm/checks.h"
#include "int8_mm/math.h"

namespace baraquant::int8_conv {
namespace {

constexpr int64_t kMaxNumber = INT32_MAX;  // of a stride, padding or dilation

int64_t at(at::IntArrayRef numbers, int64_t d) {
  return numbers[numbers.size() == 1 ? 0 : static_cast<size_t>(d)];
}

void check_numbers(const ConvArgs& args, const char* name, at::IntArrayRef numbers, int64_t least) {
  const auto space = static_cast<size_t>(args.space());
  TORCH_CHECK_VALUE(numbers.size() == 1 || numbers.size() == space, kOp, ": expected ", name,
                    " to have 1 element or ", space, " (one for each dimension of space), but got ",
                    numbers);
  for (const int64_t number : numbers) {
    TORCH_CHECK_VALUE(number >= least && number <= kMaxNumber, kOp, ": expected ", name,
                      " to lie in [", least, ", ", kMaxNumber, "], but got ", numbers);
  }
}

// Checks the weight [OC, C / groups, *kernel], whose sizes are never symbolic.
void check_weight(const ConvArgs& args) {
  const at::Tensor& weight = args.weight;
  check_dtype(kOp, "weight", weight, at::kChar, "quantized weights");
  check_same_device(kOp, "weight", weight, args.input);
  TORCH_CHECK_VALUE(weight.dim() >= 3 && weight.dim() <= 5, kOp,
                    ": expected weight to have 3 to 5 dimensions [OC, C / groups, *kernel], but "
                    "got shape ",
                    weight.sym_sizes());
  for (int64_t d = 2; d < weight.dim(); ++d) {
    TORCH_CHECK_VALUE(weight.sym_size(d).guard_int(__FILE__, __LINE__) >= 1, kOp,
                      ": expected the kernel to have at least 1 element along each dimension, but "
                      "got weight of shape ",
                      weight.sym_sizes());
  }
  const int64_t outputs = weight.sym_size(0).guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(args.groups >= 1 && outputs % args.groups == 0, kOp,
                    ": expected groups to be at least 1 and to divide weight.size(0) (", outputs,
                    "), but got ", args.groups);
}

void check_input(const ConvArgs& args) {
  const at::Tensor& input = args.input;
  check_quantized_input(kOp, input);
  const int64_t dims = args.weight.dim();
  TORCH_CHECK_VALUE(input.dim() == dims || input.dim() == dims - 1, kOp,
                    ": expected input to have ", dims - 1, " or ", dims,
                    " dimensions ([C, *space] or [N, C, *space], like weight), but got shape ",
                    input.sym_sizes());
  const c10::SymInt of_group = args.weight.sym_size(1);
  TORCH_CHECK_VALUE(of_group.sym_le(INT64_MAX / args.groups).expect_true(__FILE__, __LINE__), kOp,
                    ": expected weight.size(1) * groups to be a number of channels, below 2**63, "
                    "but got ",
                    of_group, " * ", args.groups);
  const c10::SymInt channels = of_group * args.groups;
  TORCH_CHECK_VALUE(same_size(input.sym_size(args.is_batched() ? 1 : 0), channels), kOp,
                    ": expected input to have ", channels,
                    " channels (weight.size(1) * groups), but got shape ", input.sym_sizes());
}

void check_depth(const ConvArgs& args) {
  const bool shifted = args.input.scalar_type() == at::kByte || args.input_zero_point.has_value();
  const int64_t limit = shifted ? int8_mm::kMaxShiftedDepth : int8_mm::kMaxDepth;
  c10::SymInt depth = 1;
  for (const auto& size : args.weight.sym_sizes().slice(1)) depth *= size;
  TORCH_CHECK_VALUE(depth.sym_le(limit).expect_true(__FILE__, __LINE__), kOp,
                    ": expected weight[0] to have at most ", limit, " elements",
                    shifted ? " (for uint8, or with a zero point)" : "",
                    ", so that int32 holds every sum exactly, but got ", depth);
}

void check_scales(const ConvArgs& args) {
  const at::ScalarType dtype = args.output_dtype(), compute = compute_dtype(dtype);
  const c10::SymInt outputs = args.weight.sym_size(0);
  const auto check_one = [&](const char* name, const at::Tensor& tensor) {
    check_same_device(kOp, name, tensor, args.input);
    int8_mm::check_single(kOp, name, tensor);
  };
  const auto check_per_output = [&](const char* name, const at::Tensor& tensor,
                                    at::ScalarType expected, const char* why) {
    check_expected(kOp, {name, tensor, expected, why, outputs, "weight.size(0)"}, args.input);
  };
  check_output_dtype(kOp, dtype);
  constexpr const char* kWhy = "the compute type of the output";
  check_dtype(kOp, "input_scale", args.input_scale, compute, kWhy);
  check_one("input_scale", args.input_scale);
  check_per_output("weight_scale", args.weight_scale, compute, kWhy);
  if (args.bias) {
    check_bias_dtype(kOp, *args.bias, dtype);  // one of two
    check_per_output("bias", *args.bias, args.bias->scalar_type(), "");
  }
  if (args.weight_sum) {
    check_per_output("weight_sum", *args.weight_sum, at::kInt, "the sums of weight[i]");
  }
  if (args.input_zero_point) {
    check_integer(kOp, "input_zero_point", *args.input_zero_point);
    check_one("input_zero_point", *args.input_zero_point);
  }
}

// The output's extent along a dimension of space.
c10::SymInt output_size(const ConvArgs& args, int64_t d) {
  const c10::SymInt in = args.input.sym_size(d + (args.is_batched() ? 2 : 1));
  const c10::SymInt kernel = args.weight.sym_size(d + 2);
  const c10::SymInt padded = in + 2 * at(args.padding, d);
  const c10::SymInt spread = (kernel - 1) * at(args.dilation, d) + 1;
  TORCH_CHECK_VALUE(spread.sym_le(padded).expect_true(__FILE__, __LINE__), kOp,
                    ": expected the padded input to be at least as large as the spread kernel, ",
                    spread, " along dimension ", d, " of space, but got ", padded, " (input.shape ",
                    args.input.sym_sizes(), ", padding ", at(args.padding, d), ")");
  return (padded - spread) / at(args.stride, d) + 1;
}

}  // namespace

std::vector<c10::SymInt> check_conv(const ConvArgs& args) {
  int8_conv.check_dispatchable(args);
  check_weight(args);
  check_input(args);
  check_numbers(args, "stride", args.stride, 1);
  check_numbers(args, "padding", args.padding, 0);
  check_numbers(args, "dilation", args.dilation, 1);
  check_depth(args);
  check_scales(args);
  std::vector<c10::SymInt> sizes;
  if (args.is_batched()) sizes.push_back(args.input.sym_size(0));
  sizes.push_back(args.weight.sym_size(0));
  for (int64_t d = 0; d < args.space(); ++d) sizes.push_back(output_size(args, d));
  return sizes;
}

Shape shape_of(const ConvArgs& args) {
  Shape shape{.images = args.is_batched() ? args.input.size(0) : 1,
              .groups = args.groups,
              .inputs = args.weight.size(1),
              .outputs = args.weight.size(0) / args.groups};
  const int64_t first = 3 - args.space();
  for (int64_t d = 0; d < args.space(); ++d) {
    const auto i = static_cast<size_t>(first + d);
    shape.in[i] = args.input.size(d + (args.is_batched() ? 2 : 1));
    shape.kernel[i] = args.weight.size(d + 2);
    shape.stride[i] = at(args.stride, d);
    shape.padding[i] = at(args.padding, d);
    shape.dilation[i] = at(args.dilation, d);
    shape.out[i] = output_size(args, d).expect_int();
  }
  return shape;
}

}  // namespace baraquant::int8_conv
