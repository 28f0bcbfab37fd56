// SPDX-License-Identifier: BSD-3-Clause
// The ops that compute one product for each of some weights. The struct of such a call has the fields
// of a call of one product, `One`, in the same order. What each weight has of its own is a list there:
// an at::TensorList, or OptionalTensors where One may lack it.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "frame/core_op.h"

namespace baraquant {

using OptionalTensors = std::optional<at::TensorList>;

// What the call of one product has for a field.
template <typename T>
const T& element(const T& field, size_t) {
  return field;
}
inline const at::Tensor& element(const at::TensorList& list, size_t i) { return list[i]; }
inline std::optional<at::Tensor> element(const OptionalTensors& list, size_t i) {
  return list ? std::optional<at::Tensor>((*list)[i]) : std::nullopt;
}

// Calls use(One) for each weight.
template <typename Calls, typename Use>
void for_each(const Calls& calls, const Use& use) {
  const auto use_fields = [&](const auto&... field) {
    use(Parameter<typename Calls::One>::from_flat(field...));
  };
  for (size_t i = 0; i < calls.weights.size(); ++i) {
    std::apply([&](const auto&... field) { use_fields(element(field, i)...); }, fields_of(calls));
  }
}

// Checks that each list has a tensor for each weight. NB: the dispatcher sees no tensor of an optional
// list, so it makes none of them hold its values.
template <typename Calls>
void check_lists(const Calls& calls) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Calls::kOp, "");
  auto argument = op.schema().arguments().begin();
  const auto check = [&]<typename T>(const T& field) {
    const char* name = (argument++)->name().c_str();
    constexpr bool kIsOptional = std::is_same_v<T, OptionalTensors>;
    if constexpr (kIsOptional || std::is_same_v<T, at::TensorList>) {
      const OptionalTensors list = field;
      TORCH_CHECK_VALUE(!list || list->size() == calls.weights.size(), Calls::kOp, ": expected ",
                        name, " to have a tensor for each of ", calls.weights.size(), " weights",
                        kIsOptional ? ", or to be None" : "", ", but got ", list->size());
      for (const at::Tensor& tensor : list.value_or(at::TensorList())) {
        const bool holds = !tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor();
        TORCH_CHECK_NOT_IMPLEMENTED(!kIsOptional || holds, Calls::kOp, ": expected ", name,
                                    " to hold their values, but got a tensor that negates, "
                                    "conjugates or stands for zeros; take .clone() of it");
      }
    }
  };
  std::apply([&](const auto&... field) { (check(field), ...); }, fields_of(calls));
}

// One product after another: under torch.vmap and autocast, which know One.
template <typename Calls>
std::vector<at::Tensor> one_by_one(const Calls& calls) {
  using One = typename Calls::One;
  static const CoreOp<at::Tensor(const One&)> op(One::kOp);
  check_lists(calls);
  std::vector<at::Tensor> outputs;
  for_each(calls, [&](const One& call) { outputs.push_back(op(call)); });
  return outputs;
}

// Autograd of such a call: one by one if is_alone(One) holds for any.
template <typename Calls, typename IsAlone>
std::vector<at::Tensor> linears_autograd(c10::DispatchKeySet keys, const Calls& calls,
                                         const IsAlone& is_alone) {
  static const CoreOp<std::vector<at::Tensor>(const Calls&)> together(Calls::kOp);
  check_lists(calls);
  bool alone = false;
  for_each(calls, [&](const auto& call) { alone |= is_alone(call); });
  if (alone) return one_by_one(calls);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return together.redispatch(keys & c10::after_autograd_keyset, calls);
}

}  // namespace baraquant
