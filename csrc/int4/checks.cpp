// SPDX-License-Identifier: BSD-3-Clause
#include "int4/checks.h"

#include "frame/checks.h"
#include "frame/sizes.h"

namespace baraquant::int4 {
namespace {

void check_group_size(const char* op, int64_t size) {
  TORCH_CHECK_VALUE(size > 0 && size % 2 == 0 && size <= INT32_MAX, op,
                    ": expected group_size to be even and to lie in [2, ", INT32_MAX - 1,
                    "], but got ", size);
}

void check_bits(const char* op, int64_t bits) {
  TORCH_CHECK_VALUE(bits >= 2 && bits <= 4, op, ": expected bits to lie in [2, 4], but got ", bits);
}

void check_matrix(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.dim() == 2, op, ": expected ", name,
                    " to have 2 dimensions [N, K], but got shape ", tensor.sym_sizes());
}

}  // namespace

void check_groups_dispatchable(const char* op, const Groups& groups) {
  check_dispatchable(op, "group_factor", groups.factor);
  if (groups.zero_point) check_dispatchable(op, "group_zero_point", *groups.zero_point);
}

void check_groups(const char* op, const Groups& groups, const c10::SymInt& rows,
                  const c10::SymInt& columns, const at::Tensor& like, const char* like_name) {
  check_group_size(op, groups.size);
  check_groups_dispatchable(op, groups);
  const c10::SymInt count = divide_up(columns, groups.size);
  const auto check = [&](const char* name, const at::Tensor& tensor, const char* why) {
    check_dtype(op, name, tensor, at::kByte, why);
    check_same_device(op, name, tensor, like, like_name);
    TORCH_CHECK_VALUE(has_sizes(tensor, {rows, count}), op, ": expected ", name, " to have shape [",
                      rows, ", ", count, "] (a row for each output, a column for ",
                      "each group of ", groups.size, " inputs), but got ", tensor.sym_sizes());
  };
  check("group_factor", groups.factor, "factors of 1 to 16");
  if (groups.zero_point) check("group_zero_point", *groups.zero_point, "zero points of 0 to 15");
}

void check_packed(const char* op, const char* name, const at::Tensor& packed,
                  const c10::SymInt& columns, const char* what) {
  check_dtype(op, name, packed, at::kByte, "two numbers of four bits in a byte");
  TORCH_CHECK_VALUE(packed.dim() == 2, op, ": expected ", name,
                    " to have 2 dimensions [N, ceil(K / 2)], but got shape ", packed.sym_sizes());
  const c10::SymInt bytes = divide_up(columns, 2);
  TORCH_CHECK_VALUE(same_size(packed.sym_size(1), bytes), op, ": expected ", name,
                    " to have shape [N, ", bytes, "] for K = ", columns, " (", what, "), but got ",
                    packed.sym_sizes());
}

void check_choose(const ChooseArgs& args) {
  const at::Tensor& weight = args.weight;
  const char* op = "baraquant::choose_int4_qparams";
  check_dispatchable(op, "weight", weight);
  check_floating(op, "weight", weight);
  check_matrix(op, "weight", weight);
  check_group_size(op, args.group_size);
  check_bits(op, args.bits);
}

void check_quantize(const QuantizeArgs& args) {
  const at::Tensor &weight = args.weight, &scale = args.scale;
  const char* op = "baraquant::quantize_int4";
  check_dispatchable(op, "weight", weight);
  check_floating(op, "weight", weight);
  check_matrix(op, "weight", weight);
  check_dispatchable(op, "scale", scale);
  check_dtype(op, "scale", scale, compute_dtype(weight.scalar_type()),
              "the compute type of the weight");
  check_same_device(op, "scale", scale, weight, "weight");
  const c10::SymInt rows = weight.sym_size(0);
  TORCH_CHECK_VALUE(has_sizes(scale, {rows}), op, ": expected scale to have shape [", rows,
                    "] (weight.size(0)), but got ", scale.sym_sizes());
  check_groups(op, args.groups(), rows, weight.sym_size(1), weight, "weight");
  check_bits(op, args.bits);
}

void check_expand(const ExpandArgs& args) {
  const at::Tensor& packed = args.packed;
  const c10::SymInt& in_features = args.in_features;
  const char* op = "baraquant::expand_int4";
  check_dispatchable(op, "packed", packed);
  TORCH_CHECK_VALUE(in_features.sym_ge(0).expect_true(__FILE__, __LINE__), op,
                    ": expected in_features to be at least 0, but got ", in_features);
  check_packed(op, "packed", packed, in_features, "in_features");
  check_groups(op, args.groups(), packed.sym_size(0), in_features, packed, "packed numbers");
}

void check_pack(const at::Tensor& integers) {
  const char* op = "baraquant::pack_int4";
  check_dispatchable(op, "integers", integers);
  check_dtype(op, "integers", integers, at::kChar, "integers of -8 to 7");
  check_matrix(op, "integers", integers);
}

}  // namespace baraquant::int4
