// SPDX-License-Identifier: BSD-3-Clause
#include "granularity/arguments.h"

#include <c10/util/Exception.h>

#include "frame/checks.h"
#include "frame/sizes.h"

namespace baraquant {

Scope Scope::from_flat(int64_t granularity, int64_t axis, c10::SymInt group_size) {
  TORCH_CHECK_VALUE(granularity >= 0 && granularity <= 3,
                    "baraquant: expected granularity to be 0 (tensor), 1 (channel), 2 (token) or "
                    "3 (group), but got ",
                    granularity);
  return {static_cast<Granularity>(granularity), axis, std::move(group_size)};
}

const char* granularity_name(Granularity granularity) {
  switch (granularity) {
    case Granularity::kPerTensor:
      return "per_tensor";
    case Granularity::kPerChannel:
      return "per_channel";
    case Granularity::kPerToken:
      return "per_token";
    case Granularity::kPerGroup:
      return "per_group";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, const OpName& op) {
  return out << "baraquant::" << op.verb << "_" << granularity_name(op.granularity) << op.ending;
}

int64_t check_scope(const OpName& op, const at::Tensor& input, const Scope& scope,
                    const char* input_name) {
  if (scope.granularity == Granularity::kPerTensor) return 0;
  if (scope.granularity == Granularity::kPerGroup) {
    TORCH_CHECK_VALUE(scope.group_size > 0, op,
                      ": expected group_size to be greater than 0, but got ", scope.group_size);
  }
  const int64_t axis = scope.granularity == Granularity::kPerToken ? -1 : scope.axis;
  return check_axis(op, axis, input.dim(), input_name);
}

std::vector<c10::SymInt> scale_sizes(std::vector<c10::SymInt> sizes, const Scope& scope) {
  const int64_t axis = scope.axis_of(static_cast<int64_t>(sizes.size()));
  switch (scope.granularity) {
    case Granularity::kPerTensor:
      return {};
    case Granularity::kPerChannel:
      return {sizes[axis]};
    case Granularity::kPerToken:
      sizes[axis] = 1;
      break;
    case Granularity::kPerGroup:
      sizes[axis] = divide_up(sizes[axis], scope.group_size);
      break;
  }
  return sizes;
}

}  // namespace baraquant
