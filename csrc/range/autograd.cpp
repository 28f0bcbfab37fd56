// SPDX-License-Identifier: BSD-3-Clause
// The range family and autograd. The range of the data, and what is chosen from it, is a constant
// to autograd: only dynamic_fake_quantize has a gradient, straight through.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/plan.h"
#include "granularity/memory_order.h"
#include "range/core_ops.h"

namespace baraquant::range {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A symmetric scale never clips: the gradient is the incoming one, and nothing is kept for it.
class SymmetricFunction : public Function<SymmetricFunction> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext*, const at::Tensor& input, const RangeArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return dynamic_fake_quantize(input, args);
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], {}}; }
};

// Rounding the zero point can push one end of the range out by a step: a bit per element says
// where.
class AsymmetricFunction : public Function<AsymmetricFunction> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const RangeArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    std::vector<int64_t> order;
    if (input.is_non_overlapping_and_dense()) order = affine::memory_order(input);
    const auto [output, mask] = dynamic_fake_quantize_with_mask(input, args);
    ctx->saved_data["order"] = order;
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    ctx->saved_data["granularity"] = static_cast<int64_t>(args.granularity);
    ctx->save_for_backward({mask});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    static const OptionalTensor none;
    affine::QuantArgs q{none, none};  // for messages: the bits say it all
    q.granularity = static_cast<Granularity>(ctx->saved_data["granularity"].toInt());
    return {affine::masked_gradient(grads[0], q, ctx->get_saved_variables()[0],
                                    ctx->saved_data["order"].toIntVector(),
                                    static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt()),
                                    /*through_quantize=*/false),
            {}};
  }
};

at::Tensor dynamic_fake_quantize_autograd(const at::Tensor& input, const RangeArgs& args) {
  const bool has_tangent = input._fw_grad(/*level=*/0).defined();  // refused by the Function
  if (!has_tangent && !(at::GradMode::is_enabled() && input.requires_grad())) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return dynamic_fake_quantize(input, args);
  }
  return args.symmetric ? SymmetricFunction::apply(input, args)
                        : AsymmetricFunction::apply(input, args);
}

TensorPair dynamic_fake_quantize_with_mask_autograd(const at::Tensor& input,
                                                    const RangeArgs& args) {
  TORCH_CHECK_NOT_IMPLEMENTED(!(at::GradMode::is_enabled() && input.requires_grad()),
                              OpName{"dynamic_fake_quantize", args.granularity},
                              ": the form that returns the mask is not differentiable; call the op "
                              "itself");
  at::AutoDispatchBelowADInplaceOrView guard;
  return dynamic_fake_quantize_with_mask(input, args);
}

TensorPair choose_qparams_autograd(const at::Tensor& input, const RangeArgs& args) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return choose_qparams(input, args);
}

TensorTriple dynamic_quantize_autograd(const at::Tensor& input, const RangeArgs& args,
                                       at::ScalarType dtype) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return dynamic_quantize(input, args, dtype);
}

// A tensor that is written gets a new version: autograd then notices if it was saved before.
void bump_version(const at::Tensor& tensor) {
  if (!is_planning()) tensor.unsafeGetTensorImpl()->bump_version();
}

void observe_min_max_inplace(const at::Tensor& input, const at::Tensor& min_val,
                             const at::Tensor& max_val, std::optional<int64_t> axis,
                             std::optional<double> averaging_constant,
                             const OptionalTensor& skipped_batches) {
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    observe_min_max(input, min_val, max_val, {axis, averaging_constant, skipped_batches});
  }
  bump_version(min_val);
  bump_version(max_val);
  if (skipped_batches) bump_version(*skipped_batches);
}

void observe_qparams_inplace(const at::Tensor& input, const at::Tensor& min_val,
                             const at::Tensor& max_val, const at::Tensor& scale,
                             const at::Tensor& zero_point, const at::Tensor& observer_enabled,
                             std::optional<int64_t> axis, std::optional<double> averaging_constant,
                             int64_t quant_min, int64_t quant_max, bool symmetric,
                             const OptionalTensor& skipped_batches) {
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    observe_qparams(input, {min_val, max_val, scale, zero_point}, observer_enabled,
                    {axis, averaging_constant, skipped_batches}, quant_min, quant_max, symmetric);
  }
  bump_version(min_val);
  bump_version(max_val);
  bump_version(scale);
  bump_version(zero_point);
  if (skipped_batches) bump_version(*skipped_batches);
}

void register_inplace(torch::Library& m) {
  m.impl("_observe_min_max_", &observe_min_max_inplace);
  m.impl("_observe_qparams_", &observe_qparams_inplace);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("_choose_qparams", &Flat<&choose_qparams_autograd>::kernel);
  m.impl("_dynamic_quantize", &Flat<&dynamic_quantize_autograd>::kernel);
  m.impl("_dynamic_fake_quantize", &Flat<&dynamic_fake_quantize_autograd>::kernel);
  m.impl("_dynamic_fake_quantize_with_mask",
         &Flat<&dynamic_fake_quantize_with_mask_autograd>::kernel);
  register_inplace(m);
}

// Inference mode skips the key above; versions of ordinary tensors still count there.
TORCH_LIBRARY_IMPL(baraquant, ADInplaceOrView, m) { register_inplace(m); }

}  // namespace baraquant::range
