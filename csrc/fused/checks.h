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

FusedName name_of(const NormArgs& args, bool quantize);
// Checks the number, which a caller of a core op may have made up.
Activation activation_of(int64_t number);
FusedName name_of(Activation activation, bool quantize);

// From the argument `approximate` of gelu.
Activation gelu_of(const FusedName& op, std::string_view approximate);

// q: null if the op does not quantize.
void check_norm(const at::Tensor& input, const at::Tensor* residual, const NormArgs& args,
                const QuantizeArgs* q);
void check_activation(const ActivationArgs& args, const QuantizeArgs* q);
void check_hadamard(const HadamardArgs& args, const QuantizeArgs* q);

}  // namespace baraquant::fused
