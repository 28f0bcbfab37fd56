// SPDX-License-Identifier: BSD-3-Clause
// The lists of ops that compute one product for each of some weights: a struct of such a call has
// `weights`, and for_each_list(), which names the other lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>

namespace baraquant {

// A tensor of a list that has one for each weight, or is empty.
inline std::optional<at::Tensor> element(at::TensorList list, size_t i) {
  return list.empty() ? std::nullopt : std::optional<at::Tensor>(list[i]);
}

// Checks that each list has a tensor for each weight, or none where it may be empty.
template <typename Calls>
void check_lists(const Calls& calls) {
  const size_t weights = calls.weights.size();
  calls.for_each_list([&](const char* name, at::TensorList list, bool may_be_empty) {
    TORCH_CHECK_VALUE(list.size() == weights || (may_be_empty && list.empty()), Calls::kOp,
                      ": expected ", name, " to have a tensor for each of ", weights, " weights",
                      may_be_empty ? ", or none" : "", ", but got ", list.size());
  });
}

}  // namespace baraquant
