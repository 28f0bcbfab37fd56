// SPDX-License-Identifier: BSD-3-Clause
// weight_only_linear under autograd: dx = dy @ w^, db = sum of dy over tokens. The integers are kept,
// and w^ is computed again.
#include <ATen/FuncTorchTLS.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include "frame/recorded.h"
#include "frame/saved_tensors.h"
#include "int8_mm/gradients.h"
#include "weight_only/checks.h"

namespace baraquant::weight_only {
namespace {

struct SavedWeight {
  at::Tensor values = {}, scale = {}, zero_point = {};
  auto fields() { return std::tie(values, scale, zero_point); }
};

struct Linear : Function<Linear> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const OptionalTensor& bias,
                          const LinearArgs& args) {
    at::Tensor output = weight_only_linear.below_autograd(args);  // which checks the shapes first
    if (input.requires_grad()) {
      save_tensors(ctx, SavedWeight{args.weight, args.weight_scale,
                                    args.weight_zero_point.value_or(at::Tensor())});
    }
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    ctx->saved_data["columns"] = input.sym_size(-1);
    if (args.group_size) ctx->saved_data["group_size"] = *args.group_size;
    ctx->saved_data["has_bias"] = bias.has_value();
    return output;
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
      const Weight weight{saved.values, saved.scale, zero_point, group_size};
      const at::Tensor numbers = weight.dequantized(ctx->saved_data["columns"].toSymInt(), dtype);
      result[0] = int8_mm::input_gradient(grads[0].to(dtype), numbers, /*offsets=*/{});
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
bool needs_composite(const LinearArgs& args) {
  return is_transformed() || has_tangent(args.input) || (args.bias && has_tangent(*args.bias));
}

bool is_recorded_call(const LinearArgs& args) {
  return requires_grad(args.input) || (args.bias && requires_grad(*args.bias));
}

void check_constants(const LinearArgs& args) {
  weight_only_linear.check_dispatchable(args);
  check_constant(kOp, "weight_scale", args.weight_scale);
}

at::Tensor linear_autograd(c10::DispatchKeySet keys, const LinearArgs& args) {
  const at::Tensor& input = args.input;
  const OptionalTensor& bias = args.bias;
  check_constants(args);
  if (needs_composite(args)) {
    check_linear(args);
    return at::linear(input, args.integers().dequantized(input.sym_size(-1), input.scalar_type()),
                      bias);
  }
  if (is_recorded_call(args)) return Linear::apply(input, bias, args);
  return weight_only_linear.below_autograd(keys, args);
}

std::vector<at::Tensor> several_autograd(c10::DispatchKeySet keys, const Linears& calls) {
  return linears_autograd(keys, calls, [](const LinearArgs& args) {
    check_constants(args);
    return needs_composite(args) || is_recorded_call(args);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("weight_only_linear", kernel_of<&linear_autograd>);
  m.impl("_weight_only_linears", kernel_of<&several_autograd>);
}
TORCH_LIBRARY_IMPL(baraquant, FuncTorchVmapMode, m) {
  m.impl("_weight_only_linears", kernel_of<&one_by_one<Linears>>);
}

}  // namespace baraquant::weight_only
