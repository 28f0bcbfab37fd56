// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights below autograd, one function each for CPU, CUDA and Meta. It checks,
// allocates and launches. Meta stops before the launches, so shapes and errors are the same on every
// device. Outputs are contiguous.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "frame/checks.h"
#include "frame/copies.h"
#include "frame/core_op.h"
#include "frame/outputs.h"
#include "frame/sizes.h"
#include "int4/checks.h"
#include "int4/expand.h"

namespace baraquant::int4 {
namespace {

Qparams choose_device(const at::Tensor& weight, int64_t group_size, bool symmetric) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_choose(weight, group_size);
  const c10::SymInt rows = weight.sym_size(0);
  const c10::SymInt groups = divide_up(weight.sym_size(1), group_size);
  const auto options = weight.options();
  const auto compute = options.dtype(compute_dtype(weight.scalar_type()));
  const Qparams result{at::empty_symint({rows}, compute),
                       at::empty_symint({rows, groups}, options.dtype(at::kByte)),
                       at::empty_symint({rows, groups}, options.dtype(at::kByte))};
  const auto& [scale, factor, zero_point] = result;
  if (has_work(scale)) {
    kernels(weight).choose({.weight = contiguous(weight),
                            .scale = scale,
                            .factor = factor,
                            .zero_point = zero_point,
                            .group_size = group_size,
                            .symmetric = symmetric});
  }
  return result;
}

at::Tensor quantize_device(const at::Tensor& weight, const at::Tensor& scale,
                           const at::Tensor& group_factor, int64_t group_size,
                           const OptionalTensor& group_zero_point) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Groups groups{group_factor, group_zero_point, group_size};
  check_quantize(weight, scale, groups);
  const at::Tensor packed = at::empty_symint({weight.sym_size(0), divide_up(weight.sym_size(1), 2)},
                                             weight.options().dtype(at::kByte));
  if (has_work(packed)) {
    kernels(weight).quantize(contiguous(weight), contiguous(scale),
                             packed_weight(packed, groups, weight.size(1)));
  }
  return packed;
}

at::Tensor expand_device(const at::Tensor& packed, const at::Tensor& group_factor,
                         int64_t group_size, c10::SymInt in_features,
                         const OptionalTensor& group_zero_point) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const Groups groups{group_factor, group_zero_point, group_size};
  check_expand(packed, groups, in_features);
  if (packed.is_meta()) {
    return at::empty_symint({packed.sym_size(0), in_features}, packed.options().dtype(at::kChar));
  }
  return expanded(packed_weight(packed, groups, in_features.expect_int()));
}

at::Tensor pack_device(const at::Tensor& integers) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_pack(integers);
  const at::Tensor packed =
      at::empty_symint({integers.sym_size(0), divide_up(integers.sym_size(1), 2)},
                       integers.options().dtype(at::kByte));
  if (has_work(packed)) {
    const at::Tensor rows = contiguous(integers);
    kernels(packed).pack({static_cast<const int8_t*>(rows.const_data_ptr()), rows.size(0),
                          rows.size(1), static_cast<uint8_t*>(packed.mutable_data_ptr())},
                         packed);
  }
  return packed;
}

// ---- Autograd: integers and what is chosen from data are constants to it ------------------------
// NB: tensors that the dispatcher would send elsewhere are refused here, before the call below.

Qparams choose_autograd(const at::Tensor& weight, int64_t group_size, bool symmetric) {
  check_dispatchable("baraquant::choose_int4_qparams", "weight", weight);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return choose_int4_qparams(weight, group_size, symmetric);
}

at::Tensor quantize_autograd(const at::Tensor& weight, const at::Tensor& scale,
                             const at::Tensor& group_factor, int64_t group_size,
                             const OptionalTensor& group_zero_point) {
  const char* op = "baraquant::quantize_int4";
  check_dispatchable(op, "weight", weight);
  check_dispatchable(op, "scale", scale);
  check_groups_dispatchable(op, {group_factor, group_zero_point, group_size});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return quantize_int4(weight, scale, group_factor, group_size, group_zero_point);
}

at::Tensor expand_autograd(const at::Tensor& packed, const at::Tensor& group_factor,
                           int64_t group_size, c10::SymInt in_features,
                           const OptionalTensor& group_zero_point) {
  const char* op = "baraquant::expand_int4";
  check_dispatchable(op, "packed", packed);
  check_groups_dispatchable(op, {group_factor, group_zero_point, group_size});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return expand_int4(packed, group_factor, group_size, std::move(in_features), group_zero_point);
}

at::Tensor pack_autograd(const at::Tensor& integers) {
  check_dispatchable("baraquant::pack_int4", "integers", integers);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return pack_int4(integers);
}

void register_kernels(torch::Library& m) {
  m.impl("choose_int4_qparams", kernel_of<&choose_device>);
  m.impl("quantize_int4", kernel_of<&quantize_device>);
  m.impl("expand_int4", kernel_of<&expand_device>);
  m.impl("pack_int4", kernel_of<&pack_device>);
}

}  // namespace

PackedWeight packed_weight(const at::Tensor& packed, const Groups& groups, int64_t columns) {
  return {.values = contiguous(packed),
          .factor = contiguous(groups.factor),
          .zero_point = groups.zero_point ? contiguous(*groups.zero_point) : at::Tensor(),
          .columns = columns,
          .group_size = groups.size};
}

at::Tensor expanded(const PackedWeight& packed) {
  const at::Tensor weight =
      at::empty({packed.values.size(0), packed.columns}, packed.values.options().dtype(at::kChar));
  if (has_work(weight)) {
    kernels(weight).expand(
        {packed.operands(), weight.size(0), static_cast<int8_t*>(weight.mutable_data_ptr())},
        weight);
  }
  return weight;
}

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("choose_int4_qparams", kernel_of<&choose_autograd>);
  m.impl("quantize_int4", kernel_of<&quantize_autograd>);
  m.impl("expand_int4", kernel_of<&expand_autograd>);
  m.impl("pack_int4", kernel_of<&pack_autograd>);
}

}  // namespace baraquant::int4
