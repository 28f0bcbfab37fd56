// SPDX-License-Identifier: BSD-3-Clause
// Granularities as arguments of ops: which elements share a scale. scale_map.h has their geometry.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <ostream>
#include <tuple>
#include <vector>

#include "granularity/scale_map.h"

namespace baraquant {

using OptionalTensor = std::optional<at::Tensor>;

// Which elements share a scale. Core ops take a granularity by its number.
struct Scope {
  Granularity granularity = Granularity::kPerTensor;
  int64_t axis = -1;           // per channel and per group: the dimension
  c10::SymInt group_size = 1;  // per group: elements of the axis that share a scale

  // The dimension along which the scales change, counted from the front: per token the last one.
  int64_t axis_of(int64_t dim) const {
    const int64_t given = granularity == Granularity::kPerToken ? -1 : axis;
    return given < 0 ? given + dim : given;
  }

  static constexpr const char* kSchema = "int granularity, int axis, SymInt group_size";
  using Flat = std::tuple<int64_t, int64_t, c10::SymInt>;
  Flat flat() const { return {static_cast<int64_t>(granularity), axis, group_size}; }
  // Checks the number. A group_size beyond the axis is limited, so that no size overflows.
  static Scope from_flat(int64_t granularity, int64_t axis, c10::SymInt group_size);
};

// The granularities as public ops take them. kSchema is what follows the tensors in a schema.
struct PerTensor {
  static constexpr Granularity kGranularity = Granularity::kPerTensor;
  static constexpr const char* kSchema = "";
  using Flat = std::tuple<>;
  static Scope from_flat() { return {}; }
};

struct PerChannel {
  static constexpr Granularity kGranularity = Granularity::kPerChannel;
  static constexpr const char* kSchema = ", int axis";
  using Flat = std::tuple<int64_t>;
  static Scope from_flat(int64_t axis) { return {.granularity = kGranularity, .axis = axis}; }
};

struct PerToken {
  static constexpr Granularity kGranularity = Granularity::kPerToken;
  static constexpr const char* kSchema = "";
  using Flat = std::tuple<>;
  static Scope from_flat() { return {.granularity = kGranularity}; }
};

struct PerGroup {
  static constexpr Granularity kGranularity = Granularity::kPerGroup;
  static constexpr const char* kSchema = ", SymInt group_size, int axis=-1";
  using Flat = std::tuple<c10::SymInt, int64_t>;
  static Scope from_flat(c10::SymInt group_size, int64_t axis) {
    return Scope::from_flat(static_cast<int64_t>(kGranularity), axis, std::move(group_size));
  }
};

// "per_channel"
const char* granularity_name(Granularity granularity);

// "baraquant::quantize_per_channel", put together only for a message.
struct OpName {
  const char* verb;
  Granularity granularity;
  const char* ending = "";
};

std::ostream& operator<<(std::ostream& out, const OpName& op);

// Checks the arguments of op's granularity against its input. Returns the axis counted from the
// front (0 for per tensor). input_name: the input's name in messages.
int64_t check_scope(const OpName& op, const at::Tensor& input, const Scope& scope,
                    const char* input_name = "input");

// The shape of a scale tensor for a checked input: [] per tensor, [C] per channel, [..., 1] per
// token, and per group the input's with the number of groups at the axis.
std::vector<c10::SymInt> scale_sizes(std::vector<c10::SymInt> input_sizes, const Scope& scope);

}  // namespace baraquant
