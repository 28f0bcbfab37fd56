// SPDX-License-Identifier: BSD-3-Clause
// The ops of four-bit weights below autograd, one function each for CPU, CUDA and Meta. It checks,
// allocates and launches. Meta stops before the launches, so shapes and errors are the same on every
// device. Outputs are contiguous.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "frame/copies.h"
#include "frame/devices.h"
#include "frame/outputs.h"
#include "frame/sizes.h"
#include "int4/checks.h"
#include "int4/expand.h"
#include "int4/launch.h"

namespace baraquant::int4 {
namespace {

Width width_of(int64_t bits) { return {static_cast<int>(bits)}; }

Qparams choose_device(const ChooseArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_choose(args);
  const auto& [weight, group_size, symmetric, bits] = args;
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
                            .symmetric = symmetric,
                            .width = width_of(bits)});
  }
  return result;
}

at::Tensor quantize_device(const QuantizeArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_quantize(args);
  const at::Tensor& weight = args.weight;
  const at::Tensor packed = at::empty_symint({weight.sym_size(0), divide_up(weight.sym_size(1), 2)},
                                             weight.options().dtype(at::kByte));
  if (has_work(packed)) {
    kernels(weight).quantize(contiguous(weight), contiguous(args.scale), width_of(args.bits),
                             packed_weight(packed, args.groups(), weight.size(1)));
  }
  return packed;
}

at::Tensor expand_device(const ExpandArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_expand(args);
  const at::Tensor& packed = args.packed;
  if (packed.is_meta()) {
    return at::empty_symint({packed.sym_size(0), args.in_features},
                            packed.options().dtype(at::kChar));
  }
  return expanded(packed_weight(packed, args.groups(), args.in_features.expect_int()));
}

at::Tensor pack_device(const at::Tensor& integers) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_pack(integers);
  const at::Tensor packed =
      at::empty_symint({integers.sym_size(0), divide_up(integers.sym_size(1), 2)},
                       integers.options().dtype(at::kByte));
  if (has_work(packed)) {
    const at::Tensor rows = contiguous(integers);
    kernels(packed).pack({elements<int8_t>(rows), rows.size(0), rows.size(1),
                          static_cast<uint8_t*>(packed.mutable_data_ptr())},
                         packed);
  }
  return packed;
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

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::int4
