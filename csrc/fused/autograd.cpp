// SPDX-License-Identifier: BSD-3-Clause
// The fused family under autograd. The float ops are differentiable; their gradients are computed
// from the saved input by PyTorch's ops in the compute type, and so can be differentiated again.
// Integers carry no gradient: the ops that quantize refuse tensors that require one, because a
// gradient that goes missing on the way to a norm's weight would not be noticed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/dtypes.h"
#include "frame/recorded.h"
#include "frame/saved_tensors.h"
#include "fused/checks.h"
#include "fused/core_ops.h"

namespace baraquant::fused {
namespace {

template <typename Args>
bool records(const Args& args) {
  bool any = is_recorded(args.input);
  if constexpr (requires { args.residual; }) any = any || is_recorded(args.residual);
  if constexpr (requires { args.up; }) any = any || is_recorded(args.up);
  if constexpr (requires { args.norm; }) {
    any = any || is_recorded(args.norm.weight) || is_recorded(args.norm.bias);
  }
  return any;
}

// core: an op that quantizes.
template <const auto& core, typename Args>
auto quantize_autograd(const Args& args, const QuantizeArgs& q) {
  const FusedName op = name_of(args, true);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !records(args), op,
      ": integers carry no gradient, but an argument requires one. In training call ", op.verb,
      " and then dynamic_fake_quantize_per_token, which computes the same numbers and is "
      "differentiable; for inference call the op under torch.no_grad()");
  return core.below_autograd(args, q);
}

at::Tensor in_compute_type(const at::Tensor& tensor) {
  return tensor.to(compute_dtype(tensor.scalar_type()));
}

at::Tensor mean_of_rows(const at::Tensor& tensor) { return tensor.mean(-1, /*keepdim=*/true); }

// The same, summed and divided in float64, as the op's own means are: a sum may leave C's range.
at::Tensor wide_mean_of_rows(const at::Tensor& tensor) {
  return tensor.mean(-1, /*keepdim=*/true, at::kDouble).to(tensor.scalar_type());
}

// The sum over all rows, as the gradient of a weight or bias.
at::Tensor sum_over_rows(const at::Tensor& tensor, at::ScalarType dtype) {
  const c10::SymInt length = tensor.sym_size(-1);
  return tensor.reshape_symint({tensor.sym_numel() / (length == 0 ? 1 : length), length})
      .sum(0)
      .to(dtype);
}

struct SavedNorm {
  at::Tensor x, weight, bias;
  auto fields() { return std::tie(x, weight, bias); }
};

// With n = (x - m) r and g = dy * weight:
//   dx = r (g - mean(g) - n mean(g n)), without mean(g) if not centered
//   d weight = sum over rows of dy * n,  d bias = sum over rows of dy
struct NormGradients {
  at::Tensor x, weight, bias;

  NormGradients(const at::Tensor& grad, const SavedNorm& saved, double eps, bool centered) {
    const at::Tensor dy = in_compute_type(grad);
    at::Tensor d = in_compute_type(saved.x);
    if (centered) d = d - wide_mean_of_rows(d);
    const at::Tensor r = at::rsqrt(wide_mean_of_rows(d * d) + eps);
    // NB: 0 * inf is NaN. `moments` of math.h takes 0 as the mean there, with the same result.
    const at::Tensor n = (centered ? at::where(r.eq(0), in_compute_type(saved.x), d) : d) * r;
    const at::Tensor g = saved.weight.defined() ? dy * saved.weight : dy;
    at::Tensor dx = g - n * mean_of_rows(g * n);
    if (centered) dx = dx - mean_of_rows(g);
    x = (r * dx).to(saved.x.scalar_type());
    if (saved.weight.defined()) weight = sum_over_rows(dy * n, saved.weight.scalar_type());
    if (saved.bias.defined()) bias = sum_over_rows(dy, saved.bias.scalar_type());
  }
};

// residual: may be absent. Returns the output and, with a residual, the sum.
struct NormFunction : Function<NormFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input,
                               const OptionalTensor& residual, const OptionalTensor& weight,
                               const OptionalTensor& bias, const Norm& args) {
    variable_list results;
    if (residual) {
      auto [output, sum] = norm_residual.below_autograd({input, *residual, args});
      results = {output, sum};
    } else {
      results = {norm.below_autograd({input, args})};
    }
    ctx->saved_data["eps"] = args.eps;
    ctx->saved_data["centered"] = args.centered;
    save_tensors(ctx, SavedNorm{residual ? results[1] : input, weight.value_or(at::Tensor()),
                                bias.value_or(at::Tensor())});
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const NormGradients d(grads[0], saved_tensors<SavedNorm>(ctx),
                          ctx->saved_data["eps"].toDouble(), ctx->saved_data["centered"].toBool());
    if (grads.size() == 1) return {d.x, {}, d.weight, d.bias, {}};
    const at::Tensor dx = d.x + grads[1];
    return {dx, dx, d.weight, d.bias, {}};
  }
};

at::Tensor norm_autograd(const NormArgs& args) {
  const auto& [input, own] = args;
  check_dispatchable(name_of(args, false), "input", input);
  if (!records(args)) return norm.below_autograd(args);
  return NormFunction::apply(input, std::nullopt, own.weight, own.bias, own)[0];
}

TensorPair norm_residual_autograd(const ResidualNormArgs& args) {
  const auto& [input, residual, own] = args;
  check_dispatchable(name_of(args, false), "input", input);
  if (!records(args)) return norm_residual.below_autograd(args);
  const variable_list results =
      NormFunction::apply(input, OptionalTensor(residual), own.weight, own.bias, own);
  return {results[0], results[1]};
}

// dy * silu'(x). PyTorch's own op for it has no gradient, so it serves first gradients only.
at::Tensor silu_gradient(const at::Tensor& dy, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return at::silu_backward(dy, x);
  // Far from 0 the gradient is constant, so that no product of its own gradient overflows there.
  const at::Tensor near = at::where(at::isfinite(x), x.clamp(-1e4, 1e4), x);
  const at::Tensor s = at::sigmoid(near);
  return dy * s * (near * (1 - s) + 1);
}

struct SavedActivation {
  at::Tensor input, up;
  auto fields() { return std::tie(input, up); }
};

struct ActivationFunction : Function<ActivationFunction> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const OptionalTensor& up,
                          int64_t number) {
    ctx->saved_data["activation"] = number;
    const Variable result = activation.below_autograd({input, up, number});
    save_tensors(ctx, SavedActivation{input, up.value_or(at::Tensor())});
    return result;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const SavedActivation saved = saved_tensors<SavedActivation>(ctx);
    const at::ScalarType dtype = saved.input.scalar_type();
    // NB: contiguous, since oneDNN does not take every layout of a gradient.
    const at::Tensor dy = in_compute_type(grads[0]).contiguous();
    const at::Tensor x = in_compute_type(saved.input).contiguous();
    const Activation kind = activation_of(ctx->saved_data["activation"].toInt());
    if (kind != Activation::kSiluMul) {
      const char* approximate = kind == Activation::kGelu ? "none" : "tanh";
      return {at::gelu_backward(dy, x, approximate).to(dtype), {}, {}};
    }
    const at::Tensor d_gate = silu_gradient(dy * in_compute_type(saved.up), x);
    const at::Tensor d_up = dy * at::silu(x);
    return {d_gate.to(dtype), d_up.to(dtype), {}};
  }
};

at::Tensor activation_autograd(const ActivationArgs& args) {
  const bool is_pair = activation_of(args.activation) == Activation::kSiluMul;
  check_dispatchable(name_of(args, false), is_pair ? "gate" : "input", args.input);
  if (!records(args)) return activation.below_autograd(args);
  return ActivationFunction::apply(args.input, args.up, args.activation);
}

// The rotation is its own transpose, and so its own gradient.
struct HadamardFunction : Function<HadamardFunction> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input, int64_t block) {
    ctx->saved_data["block"] = block;
    return hadamard.below_autograd({input, block});
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {hadamard({grads[0], ctx->saved_data["block"].toInt()}), {}};
  }
};

at::Tensor hadamard_autograd(const HadamardArgs& args) {
  if (!records(args)) return hadamard.below_autograd(args);
  return HadamardFunction::apply(args.input, args.block);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("_norm", kernel_of<&norm_autograd>);
  m.impl("_norm_residual", kernel_of<&norm_residual_autograd>);
  m.impl("_norm_quantize", kernel_of<&quantize_autograd<norm_quantize, NormArgs>>);
  m.impl("_norm_residual_quantize",
         kernel_of<&quantize_autograd<norm_residual_quantize, ResidualNormArgs>>);
  m.impl("_activation", kernel_of<&activation_autograd>);
  m.impl("_activation_quantize",
         kernel_of<&quantize_autograd<activation_quantize, ActivationArgs>>);
  m.impl("_hadamard", kernel_of<&hadamard_autograd>);
  m.impl("_hadamard_quantize", kernel_of<&quantize_autograd<hadamard_quantize, HadamardArgs>>);
}

}  // namespace baraquant::fused
