// SPDX-License-Identifier: BSD-3-Clause
// The arguments that every op of the affine family takes besides its tensors: the scale and zero
// point (tensors, or numbers where the tensors are absent), the granularity and the integer range.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/Exception.h>

#include <optional>
#include <ostream>

#include "granularity/scale_map.h"

namespace baraquant::affine {

using OptionalTensor = std::optional<at::Tensor>;

// Any group as long as this holds the whole axis: sizes computed from it cannot overflow.
inline c10::SymInt limited_group_size(c10::SymInt group_size) {
  constexpr int64_t kLongest = int64_t(1) << 61;
  return group_size.maybe_as_int().value_or(0) > kLongest ? c10::SymInt(kLongest) : group_size;
}

// Of a core op's argument.
inline Granularity checked_granularity(int64_t number) {
  TORCH_CHECK_VALUE(number >= 0 && number <= 3,
                    "baraquant: expected granularity to be 0 (tensor), 1 (channel), 2 (token) or "
                    "3 (group), but got ",
                    number);
  return static_cast<Granularity>(number);
}

struct QuantArgs {
  const OptionalTensor& scale;
  const OptionalTensor& zero_point;
  double scale_number = 1;
  int64_t zero_point_number = 0;
  Granularity granularity = Granularity::kPerTensor;
  int64_t axis = -1;           // of per channel and per group
  c10::SymInt group_size = 1;  // of per group
  int64_t quant_min = -128, quant_max = 127;
};

// "baraquant::quantize_per_channel", put together only for a message.
struct OpName {
  const char* verb;
  Granularity granularity;
  const char* ending = "";
};

inline const char* granularity_name(Granularity granularity) {
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

inline std::ostream& operator<<(std::ostream& out, const OpName& op) {
  return out << "baraquant::" << op.verb << "_" << granularity_name(op.granularity) << op.ending;
}

}  // namespace baraquant::affine
