// SPDX-License-Identifier: BSD-3-Clause
// Checks the options of FakeQuantize and LearnedFakeQuantize, and makes tensors of them.
#pragma once

#include "api/nn/quantizers.h"

namespace baraquant::nn {

// Check that the mode exists, and that no option is given that it does not use.
void check_mode(const FakeQuantizeOptions& options);
// Check that the granularity exists and has its own options and no others.
void check_granularity(const std::string& granularity, std::optional<int64_t> axis,
                       std::optional<int64_t> group_size);
// Check that the range of integers is valid, and that a symmetric scale exists for it.
void check_range(const FakeQuantizeOptions& options);
// Check the further requirements of the mode "observed".
void check_observed(const FakeQuantizeOptions& options);
// Check the options of a learned quantizer.
void check_learned(const LearnedFakeQuantizeOptions& options);
// A given scale as a new tensor.
torch::Tensor scale_tensor(const FakeQuantizeOptions& options);
// A given zero point as an int32 tensor shaped like `scale`.
torch::Tensor zero_point_tensor(const FakeQuantizeOptions& options, const torch::Tensor& scale);

}  // namespace baraquant::nn
