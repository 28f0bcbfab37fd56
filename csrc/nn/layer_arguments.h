// SPDX-License-Identifier: BSD-3-Clause
// Checks the arguments of the layers for inference, and makes buffers of them.
#pragma once

#include "api/nn/inference.h"

namespace baraquant::nn {

// Check a width of integers; `most` is the largest.
void check_bits(const std::string& name, const char* argument, int64_t bits, int64_t most = 8);
// Check the dtype of a scale.
void check_scale(const std::string& name, const char* argument, torch::Dtype dtype);
// Check the dtype of what lies in bytes.
void check_bytes(const std::string& name, const char* argument, const torch::Tensor& tensor);
// Check the size of groups whose packed bytes hold two numbers of one group.
void check_even(const std::string& name, int64_t group_size);
// Check how the values of an input share a scale.
void check_input_granularity(const std::string& name, const std::string& granularity);
// How many groups a number of features has; a file chooses both, so that a sum could overflow.
inline int64_t groups_of(int64_t features, int64_t group_size) {
  return features / group_size + (features % group_size != 0 ? 1 : 0);
}
// Check that a tensor holds integers.
void check_integer(const std::string& name, const char* argument, const torch::Tensor& tensor);
// Integers as int32; one that is beyond becomes the nearest.
torch::Tensor int32_of(const torch::Tensor& integers);
// A factor for each input feature.
torch::Tensor scale_of_inputs(const std::string& name, const char* argument,
                              const torch::Tensor& smooth, int64_t features);
// The one scale of an input, `[]`, and its int32 zero point; undefined if there is none.
std::tuple<torch::Tensor, torch::Tensor> scale_of_tensor(const std::string& name,
                                                         const torch::Tensor& scale,
                                                         const torch::Tensor& zero_point);

}  // namespace baraquant::nn
