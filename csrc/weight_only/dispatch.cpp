// SPDX-License-Identifier: BSD-3-Clause
// weight_only_linear: below autograd for CPU, CUDA and Meta, its gradient, and autocast.
#include <ATen/FuncTorchTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "affine/core_ops.h"
#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/core_op.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "frame/saved_tensors.h"
#include "int4/core_ops.h"
#include "int8_mm/gradients.h"
#include "weight_only/checks.h"
#include "weight_only/launch.h"

namespace baraquant::weight_only {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr int64_t kChunkBytes = 4 << 20;  // of dequantized weight, so that a cache holds it

// The integers of a packed weight as int8: the four-bit weight whose factors are 1.
at::Tensor unpacked(const at::Tensor& values, const c10::SymInt& columns) {
  constexpr int64_t kWhole = INT32_MAX - 1;  // a group of any row
  const c10::SymInt groups = (columns + (kWhole - 1)) / kWhole;
  const std::vector<c10::SymInt> sizes{values.sym_size(0), groups};
  const at::Tensor ones = is_planning() ? at::empty_symint(sizes, values.options())
                                        : at::ones_symint(sizes, values.options());
  return int4::expand_int4(values, ones, kWhole, columns, /*group_zero_point=*/{});
}

at::Tensor dequantized(const Weight& weight, const c10::SymInt& columns, at::ScalarType dtype) {
  const at::Tensor values = weight.is_packed() ? unpacked(weight.values, columns) : weight.values;
  const OptionalTensor scale(weight.scale);
  return affine::dequantize(
      values, {.scale = scale, .zero_point = weight.zero_point, .scope = weight.scope()}, dtype);
}

// PyTorch's product is no kernel of this library; it stands in a plan by its name.
bool only_planned_product(const at::Tensor& like) {
  return only_planned([&] {
    return KernelPlan{.name = "linear",
                      .backend = like.is_cuda() ? "cuda" : "cpu",
                      .architecture = "torch",
                      .bit_stable = false};
  });
}

// target = rows @ columns + bias, by PyTorch. NB: on a GPU its addmm may round a product of 16 bits
// before it adds the bias; the sums in float32 are rounded once.
void multiply_floats(const at::Tensor& rows, const at::Tensor& columns, const OptionalTensor& bias,
                     at::Tensor target) {
  if (bias && rows.is_cuda() && rows.element_size() == 2) {
    target.copy_(at::mm(rows, columns, at::kFloat).add_(*bias));
  } else if (bias) {
    at::addmm_out(target, *bias, rows, columns);
  } else {
    at::mm_out(target, rows, columns);
  }
}

// Dequantizes as many rows of the weight at a time as a CPU's cache holds, and multiplies with them.
void multiply_in_chunks(const at::Tensor& rows, const IntegerWeight& weight,
                        const OptionalTensor& bias, const at::Tensor& target) {
  const int64_t outputs = weight.values.size(0), columns = weight.columns;
  const int64_t row_bytes = columns * static_cast<int64_t>(rows.element_size());
  // A GPU's products are fast only where they are large.
  const int64_t most = rows.is_cuda() ? outputs : std::max(kChunkBytes / row_bytes, int64_t{64});
  const int64_t chunk = std::min(most, outputs);
  const at::Tensor scratch = at::empty({chunk, columns}, rows.options());
  for (int64_t begin = 0; begin < outputs; begin += chunk) {
    const int64_t count = std::min(chunk, outputs - begin);
    const at::Tensor part = scratch.narrow(0, 0, count);
    kernels(rows).dequantize(weight.rows(begin, count), part);
    if (only_planned_product(rows)) return;  // the other chunks call the same kernels
    multiply_floats(rows, part.t(), bias ? OptionalTensor(bias->narrow(0, begin, count)) : bias,
                    target.narrow(1, begin, count));
  }
}

void multiply(const at::Tensor& rows, const Weight& weight, const OptionalTensor& given_bias,
              const at::Tensor& target) {
  // NB: PyTorch's product takes another kernel, and adds in another order, where a bias has strides.
  const OptionalTensor bias = given_bias ? OptionalTensor(contiguous(*given_bias)) : std::nullopt;
  const int64_t columns = rows.size(1);
  const int64_t group_size =
      weight.group_size ? std::min(weight.group_size->expect_int(), columns) : columns;
  IntegerWeight given{.values = weight.values,
                      .scale = {},
                      .zero_point = {},
                      .columns = columns,
                      .group_size = group_size};
  const bool is_taken = columns > 0 && kernels(rows).takes(rows, given);
  if (!is_taken && (columns == 0 || !kernels(rows).dequantizes(given, rows.scalar_type()))) {
    const at::Tensor wide = dequantized(weight, columns, rows.scalar_type()).t();
    if (!only_planned_product(rows)) multiply_floats(rows, wide, bias, target);
    return;
  }
  given.scale = contiguous(weight.scale);
  if (weight.zero_point) given.zero_point = contiguous(cast_to_int32(*weight.zero_point));
  if (!is_taken) return multiply_in_chunks(rows, given, bias, target);
  kernels(rows).few_rows(
      {.input = rows, .weight = given, .bias = bias.value_or(at::Tensor()), .output = target});
}

at::Tensor linear_device(const at::Tensor& input, const at::Tensor& weight,
                         const at::Tensor& weight_scale, const OptionalTensor& bias,
                         const OptionalTensor& weight_zero_point,
                         std::optional<c10::SymInt> group_size) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Weight given{weight, weight_scale, weight_zero_point, group_size};
  check_linear(input, given, bias);
  std::vector<c10::SymInt> sizes = input.sym_sizes().vec();
  sizes.back() = weight.sym_size(0);
  const at::Tensor output = empty_dense(sizes, input.options());
  if (has_work(output)) {
    const int64_t columns = input.size(-1), outputs = weight.size(0);
    const int64_t rows = output.numel() / outputs;
    multiply(contiguous(input).view({rows, columns}), given, bias, output.view({rows, outputs}));
  }
  return output;
}

// ---- Autograd: dx = dy @ w^, db = sum of dy over tokens -----------------------------------------
// The integers are kept, and w^ is computed again.

struct SavedWeight {
  at::Tensor values = {}, scale = {}, zero_point = {};
  auto fields() { return std::tie(values, scale, zero_point); }
};

class Linear : public Function<Linear> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const OptionalTensor& bias,
                          const Weight& weight) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    if (input.requires_grad()) {
      save_tensors(
          ctx, SavedWeight{weight.values, weight.scale, weight.zero_point.value_or(at::Tensor())});
    }
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    ctx->saved_data["columns"] = input.sym_size(-1);
    if (weight.group_size) ctx->saved_data["group_size"] = *weight.group_size;
    ctx->saved_data["has_bias"] = bias.has_value();
    return weight_only_linear(input, weight.values, weight.scale, bias, weight.zero_point,
                              weight.group_size);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // A backward inside of autocast's region computes in the same dtypes as one outside.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    variable_list result(3);
    if (ctx->needs_input_grad(0)) {
      const auto saved = saved_tensors<SavedWeight>(ctx);
      const OptionalTensor zero_point =
          saved.zero_point.defined() ? OptionalTensor(saved.zero_point) : std::nullopt;
      std::optional<c10::SymInt> group_size;
      if (ctx->saved_data.count("group_size"))
        group_size = ctx->saved_data["group_size"].toSymInt();
      const at::Tensor weight = dequantized({saved.values, saved.scale, zero_point, group_size},
                                            ctx->saved_data["columns"].toSymInt(), dtype);
      result[0] = int8_mm::input_gradient(grads[0].to(dtype), weight, /*offsets=*/{});
    }
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(1)) {
      result[1] = int8_mm::bias_gradient(grads[0], dtype, /*offsets=*/{});
    }
    return result;
  }
};

// Whether a transform of torch.func is at work. NB: PyTorch offers no other question than this one.
bool is_transformed() {
  const auto& state = at::functorch::functorchTLSAccessor();
  if (!state) return false;
  try {
    state->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

// A Function has no forward-mode derivative, and PyTorch takes none under torch.func. There the op
// consists of PyTorch's own.
bool needs_composite(const at::Tensor& input, const OptionalTensor& bias) {
  return is_transformed() || int8_mm::has_tangent(input) || (bias && int8_mm::has_tangent(*bias));
}

at::Tensor linear_autograd(c10::DispatchKeySet keys, const at::Tensor& input,
                           const at::Tensor& weight, const at::Tensor& weight_scale,
                           const OptionalTensor& bias, const OptionalTensor& weight_zero_point,
                           std::optional<c10::SymInt> group_size) {
  const Weight given{weight, weight_scale, weight_zero_point, group_size};
  check_all_dispatchable(input, given, bias);
  int8_mm::check_scale("baraquant::weight_only_linear", "weight_scale", weight_scale);
  if (needs_composite(input, bias)) {
    check_linear(input, given, bias);
    return at::linear(input, dequantized(given, input.sym_size(-1), input.scalar_type()), bias);
  }
  if (int8_mm::requires_grad(input) || (bias && int8_mm::requires_grad(*bias))) {
    return Linear::apply(input, bias, given);
  }
  static const CoreOp<decltype(weight_only_linear)> op("baraquant::weight_only_linear");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, input, weight, weight_scale, bias,
                       weight_zero_point, std::move(group_size));
}

// ---- Autocast: the input and the bias are cast, as those of torch.nn.functional.linear ----------

template <at::DeviceType device>
at::Tensor linear_autocast(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& weight_scale, const OptionalTensor& bias,
                           const OptionalTensor& weight_zero_point,
                           std::optional<c10::SymInt> group_size) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(device);
  const auto lowered = [&](const at::Tensor& tensor) {
    if (weight_scale.scalar_type() != at::kFloat || !at::autocast::is_eligible(tensor, device)) {
      return tensor;
    }
    if (is_planning()) return cast(tensor, dtype);
    return at::autocast::cached_cast(dtype, tensor, device);  // the cast of a leaf is cached
  };
  return weight_only_linear(lowered(input), weight, weight_scale,
                            bias ? OptionalTensor(lowered(*bias)) : bias, weight_zero_point,
                            std::move(group_size));
}

}  // namespace

at::Tensor weight_only_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& weight_scale, const OptionalTensor& bias,
                              const OptionalTensor& weight_zero_point,
                              std::optional<c10::SymInt> group_size) {
  static const CoreOp<decltype(weight_only_linear)> op("baraquant::weight_only_linear");
  return op(input, weight, weight_scale, bias, weight_zero_point, std::move(group_size));
}

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { m.impl("weight_only_linear", &linear_device); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { m.impl("weight_only_linear", &linear_device); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { m.impl("weight_only_linear", &linear_device); }
TORCH_LIBRARY_IMPL(baraquant, Autograd, m) { m.impl("weight_only_linear", &linear_autograd); }
TORCH_LIBRARY_IMPL(baraquant, AutocastCPU, m) {
  m.impl("weight_only_linear", &linear_autocast<at::kCPU>);
}
TORCH_LIBRARY_IMPL(baraquant, AutocastCUDA, m) {
  m.impl("weight_only_linear", &linear_autocast<at::kCUDA>);
}

}  // namespace baraquant::weight_only
