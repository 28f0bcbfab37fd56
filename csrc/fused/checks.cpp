// SPDX-License-Identifier: BSD-3-Clause
#include "fused/checks.h"

#include <cmath>
#include <ostream>

#include "frame/checks.h"
#include "range/checks.h"

namespace baraquant::fused {
namespace {

constexpr int64_t kMaxBlock = 32768;  // one row of it fits into the registers of a GPU's block

void check_input(const FusedName& op, const char* name, const at::Tensor& input) {
  check_floating(op, name, input);
  TORCH_CHECK_VALUE(input.dim() > 0, op, ": expected ", name,
                    " to have at least 1 dimension, but got 0");
}

// Another tensor of the input's dtype, shape and device.
void check_like(const FusedName& op, const char* name, const at::Tensor& tensor,
                const char* input_name, const at::Tensor& input) {
  check_dtype(op, name, tensor, input.scalar_type(),
              (std::string("that of ") + input_name).c_str());
  check_same_device(op, name, tensor, input, input_name);
  check_same_sizes(op, name, tensor, input, input_name);
}

void check_vector(const FusedName& op, const char* name, const OptionalTensor& vector,
                  const at::Tensor& input) {
  if (!vector) return;
  check_strided(op, name, *vector);
  const at::ScalarType dtype = vector->scalar_type(), own = input.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == own || dtype == compute_dtype(own), op, ": expected ", name, " to be ",
      dtype_name(own), " (the input's dtype)",
      own == compute_dtype(own) ? std::string() : " or " + dtype_name(compute_dtype(own)),
      ", but got ", dtype_name(dtype));
  check_same_device(op, name, *vector, input);
  const c10::SymInt length = input.sym_size(-1);
  TORCH_CHECK_VALUE(vector->dim() == 1 && same_size(vector->sym_size(0), length), op, ": expected ",
                    name, " to have shape [", length, "] (input.size(-1)), but got ",
                    vector->sym_sizes());
}

void check_quantize(const FusedName& op, const QuantizeArgs* q) {
  if (q == nullptr) return;
  TORCH_CHECK_TYPE(q->dtype == at::kChar || q->dtype == at::kByte, op,
                   ": expected dtype to be int8 or uint8, but got ", dtype_name(q->dtype));
  range::check_chosen_range(op, q->scheme.quant_min, q->scheme.quant_max, q->dtype,
                            q->scheme.symmetric);
}

void check_norm(const FusedName& op, const at::Tensor& input, const at::Tensor* residual,
                const Norm& norm, const QuantizeArgs* q) {
  check_input(op, "input", input);
  if (residual != nullptr) check_like(op, "residual", *residual, "input", input);
  check_vector(op, "weight", norm.weight, input);
  TORCH_CHECK_VALUE(norm.centered || !norm.bias, op, ": expected no bias");
  check_vector(op, "bias", norm.bias, input);
  TORCH_CHECK_VALUE(std::isfinite(norm.eps) && norm.eps >= 0, op,
                    ": expected eps to be a finite number of at least 0, but got ", norm.eps);
  TORCH_CHECK_VALUE(
      input.scalar_type() == at::kDouble || std::isfinite(static_cast<float>(norm.eps)), op,
      ": expected eps to be finite in float32, in which ", dtype_name(input.scalar_type()),
      " is computed, but got ", norm.eps);
  check_quantize(op, q);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const FusedName& op) {
  return out << "baraquant::" << op.verb << (op.quantize ? "_quantize_per_token" : "");
}

Activation activation_of(int64_t number) {
  TORCH_CHECK_VALUE(number >= 0 && number <= static_cast<int64_t>(Activation::kGeluTanh),
                    "baraquant: expected activation to be 0, 1 or 2, but got ", number);
  return static_cast<Activation>(number);
}

Activation gelu_of(const FusedName& op, std::string_view approximate) {
  if (approximate == "none") return Activation::kGelu;
  TORCH_CHECK_VALUE(approximate == "tanh", op,
                    ": expected approximate to be \"none\" or \"tanh\", but got \"", approximate,
                    "\"");
  return Activation::kGeluTanh;
}

void check(const NormArgs& args, const QuantizeArgs* q) {
  check_norm(name_of(args, q != nullptr), args.input, nullptr, args.norm, q);
}

void check(const ResidualNormArgs& args, const QuantizeArgs* q) {
  check_norm(name_of(args, q != nullptr), args.input, &args.residual, args.norm, q);
}

void check(const ActivationArgs& args, const QuantizeArgs* q) {
  const auto& [input, up, number] = args;
  const FusedName op = name_of(args, q != nullptr);
  const bool is_pair = number == static_cast<int64_t>(Activation::kSiluMul);
  const char* name = is_pair ? "gate" : "input";
  check_input(op, name, input);
  TORCH_CHECK_TYPE(input.scalar_type() != at::kDouble, op, ": expected ", name,
                   " to be float32, float16 or bfloat16, but got torch.float64; convert it with "
                   ".float()");
  TORCH_CHECK_VALUE(up.has_value() == is_pair, op, ": expected ", is_pair ? "" : "no ", "up");
  if (up) check_like(op, "up", *up, name, input);
  check_quantize(op, q);
}

void check(const HadamardArgs& args, const QuantizeArgs* q) {
  const auto& [input, block] = args;
  const FusedName op = name_of(args, q != nullptr);
  check_input(op, "input", input);
  const bool is_power = block >= 1 && (block & (block - 1)) == 0;
  TORCH_CHECK_VALUE(is_power && block <= kMaxBlock, op,
                    ": expected block to be a power of two of at most ", kMaxBlock, ", but got ",
                    block);
  const c10::SymInt length = input.sym_size(-1);
  TORCH_CHECK_VALUE(same_size(length % block, 0), op,
                    ": expected block to divide input.size(-1) = ", length, ", but got ", block);
  check_quantize(op, q);
}

}  // namespace baraquant::fused
