// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/checks.h"

#include <vector>

#include "frame/checks.h"

namespace baraquant::scaled {
namespace {

void check_factor(const char* op, const ScaledArgs& args, bool per_row) {
  const at::Tensor &input = args.input, &factor = args.factor;
  const at::ScalarType compute = compute_dtype(input.scalar_type());
  const char* why = "the compute type of the input";
  if (!per_row) {
    const c10::SymInt columns = input.sym_size(-1);
    return check_expected(op, {"factor", factor, compute, why, columns, "input.size(-1)"}, input);
  }
  check_dispatchable(op, "factor", factor);
  check_dtype(op, "factor", factor, compute, why);
  check_same_device(op, "factor", factor, input);
  std::vector<c10::SymInt> rows = input.sym_sizes().vec();
  rows.back() = 1;
  if (factor.dim() == input.dim() - 1) rows.pop_back();
  TORCH_CHECK_VALUE(has_sizes(factor, rows), op,
                    ": expected factor to have one element for each row of input (shape ",
                    c10::SymIntArrayRef(rows), "), but got shape ", factor.sym_sizes());
}

void check_random(const char* op, const ScaledArgs& args) {
  if (!args.random) return;
  const c10::SymInt two = 2;
  const char* why = "as draw_random returns it";
  check_expected(op, {"random", *args.random, at::kLong, why, two, why}, args.input);
}

}  // namespace

void check_scaled(const char* op, const ScaledArgs& args, bool per_row) {
  check_dispatchable(op, "input", args.input);
  check_floating(op, "input", args.input);
  TORCH_CHECK_VALUE(args.input.dim() >= 1, op,
                    ": expected input to have at least 1 dimension, but got 0");
  check_factor(op, args, per_row);
  check_random(op, args);
}

void check_transpose(const at::Tensor& input) {
  const char* op = "baraquant::transpose_int8";
  check_dispatchable(op, "input", input);
  check_dtype(op, "input", input, at::kChar, "for other dtypes use .t().contiguous()");
  TORCH_CHECK_VALUE(input.dim() == 2, op, ": expected input to have 2 dimensions, but got shape ",
                    input.sym_sizes());
}

void check_draw(const at::Tensor& like, int64_t count) {
  const char* op = "baraquant::draw_random";
  check_dispatchable(op, "like", like);
  TORCH_CHECK_VALUE(count >= 1 && count <= INT32_MAX, op, ": expected count to lie in [1, ",
                    INT32_MAX, "], but got ", count);
}

}  // namespace baraquant::scaled
