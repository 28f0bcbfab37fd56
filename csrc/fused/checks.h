// SPDX-License-Identifier: BSD-3-Clause
// The argument checks of the fused family, run before any kernel on every device and under tracing.
#pragma once

#include <string_view>

#include "fused/core_ops.h"

namespace baraquant::fused {

// "baraquant::rms_norm" or "baraquant::rms_norm_quantize_per_token", put together only for a
// message.
struct FusedName {
  const char* verb;
  bool quantize;
};
std::ostream& operator<<(std::ostream& out, const FusedName& op);

// Checks the number, which a caller of a core op may have made up.
Activation activation_of(int64_t number);

// Args: of a core op.
template <typename Args>
FusedName name_of(const Args& args, bool quantize) {
  if constexpr (requires { args.norm; }) {
    return {args.norm.centered ? "layer_norm" : "rms_norm", quantize};
  } else if constexpr (requires { args.activation; }) {
    return {activation_of(args.activation) == Activation::kSiluMul ? "silu_mul" : "gelu", quantize};
  } else {
    return {"hadamard", quantize};
  }
}

// From the argument `approximate` of gelu.
Activation gelu_of(const FusedName& op, std::string_view approximate);

// q: null if the op does not quantize.
void check(const NormArgs& args, const QuantizeArgs* q);
void check(const ResidualNormArgs& args, const QuantizeArgs* q);
void check(const ActivationArgs& args, const QuantizeArgs* q);
void check(const HadamardArgs& args, const QuantizeArgs* q);

}  // namespace baraquant::fused
