// SPDX-License-Identifier: BSD-3-Clause
// The range family under autograd. The range of the data, and a scale that is chosen from it, are
// constants to autograd: only dynamic_fake_quantize has a gradient, straight through.
#include <torch/library.h>

#include "affine/core_ops.h"
#include "frame/plan.h"
#include "frame/recorded.h"
#include "frame/saved_tensors.h"
#include "granularity/memory_order.h"
#include "range/core_ops.h"

namespace baraquant::range {
namespace {

// Rounding the zero point can move one end of the range out by a step. One bit for each element
// says whether it lay inside.
struct AsymmetricFunction : Function<AsymmetricFunction> {
  static Variable forward(AutogradContext* ctx, const at::Tensor& input, const RangeArgs& args) {
    at::AutoDispatchBelowADInplaceOrView guard;
    std::vector<int64_t> order;
    if (input.is_non_overlapping_and_dense()) order = memory_order(input);
    const auto [output, mask] = dynamic_fake_quantize_with_mask(input, args);
    ctx->saved_data["order"] = order;
    ctx->saved_data["dtype"] = static_cast<int64_t>(input.scalar_type());
    ctx->saved_data["granularity"] = static_cast<int64_t>(args.scope.granularity);
    save_tensors(ctx, SavedMask{mask});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    static const OptionalTensor none;
    // The gradient depends on the mask alone; messages name the granularity.
    affine::QuantArgs q{.scale = none, .zero_point = none};
    q.scope.granularity = static_cast<Granularity>(ctx->saved_data["granularity"].toInt());
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    return {affine::masked_gradient(grads[0], q, saved_tensors<SavedMask>(ctx).mask,
                                    ctx->saved_data["order"].toIntVector(), dtype,
                                    /*through_quantize=*/false),
            {}};
  }
};

at::Tensor dynamic_fake_quantize_autograd(const at::Tensor& input, const RangeArgs& args) {
  if (!is_recorded(input)) return dynamic_fake_quantize.below_autograd(input, args);
  // A symmetric scale clips nothing: the gradient is the incoming one.
  return args.symmetric ? StraightThrough<dynamic_fake_quantize>::apply(input, args)
                        : AsymmetricFunction::apply(input, args);
}

TensorPair dynamic_fake_quantize_with_mask_autograd(const at::Tensor& input,
                                                    const RangeArgs& args) {
  TORCH_CHECK_NOT_IMPLEMENTED(!requires_grad(input),
                              OpName{"dynamic_fake_quantize", args.scope.granularity},
                              ": the form that returns the mask is not differentiable; call the op "
                              "itself");
  return dynamic_fake_quantize_with_mask.below_autograd(input, args);
}

// Autograd compares versions, and so notices that a tensor it saved was written since.
void bump_version(const at::Tensor& tensor) {
  if (!is_planning()) tensor.unsafeGetTensorImpl()->bump_version();
}

void bump_versions(const ObserveArgs& args) {
  bump_version(args.min_val);
  bump_version(args.max_val);
  if (args.skipped_batches) bump_version(*args.skipped_batches);
}

void observe_min_max_inplace(const ObserveArgs& args) {
  observe_min_max.below_autograd(args);
  bump_versions(args);
}

void observe_qparams_inplace(const ObserveQparamsArgs& args) {
  observe_qparams.below_autograd(args);
  bump_versions(args.range());
  bump_version(args.scale);
  bump_version(args.zero_point);
}

void register_inplace(torch::Library& m) {
  m.impl("_observe_min_max_", kernel_of<&observe_min_max_inplace>);
  m.impl("_observe_qparams_", kernel_of<&observe_qparams_inplace>);
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("_choose_qparams", kernel_of<choose_qparams.kBelowAutograd>);
  m.impl("_dynamic_quantize", kernel_of<dynamic_quantize.kBelowAutograd>);
  m.impl("_dynamic_fake_quantize", kernel_of<&dynamic_fake_quantize_autograd>);
  m.impl("_dynamic_fake_quantize_with_mask", kernel_of<&dynamic_fake_quantize_with_mask_autograd>);
  register_inplace(m);
}

// Inference mode skips the key above; versions of ordinary tensors still count there.
TORCH_LIBRARY_IMPL(baraquant, ADInplaceOrView, m) { register_inplace(m); }

}  // namespace baraquant::range
