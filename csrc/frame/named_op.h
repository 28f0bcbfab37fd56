// SPDX-License-Identifier: BSD-3-Clause
// An op as a constant that is called like a function: a family's core_ops.h lists its ops so, each
// with its parameters, argument structs among them.
//   inline constexpr NamedOp<"baraquant::_quantize", at::Tensor(const at::Tensor& input, ...)> quantize;
//   quantize(input, ...)                      calls the op through the dispatcher
//   quantize.below_autograd(input, ...)       the same below autograd
//   quantize.below_autograd(keys, input, ...) the kernel of the next of these keys
//   quantize.check_dispatchable(input, ...)   refuses tensors that the dispatcher would send elsewhere
//   kernel_of<quantize.kBelowAutograd>        a kernel for autograd, which only does the second
//   kernel_of<quantize.kCheckedBelowAutograd> the same after that check
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "frame/checks.h"
#include "frame/core_op.h"

namespace baraquant {

// What ops return.
using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using TensorQuadruple = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <size_t size>
struct Text {
  char characters[size];
  constexpr Text(const char (&text)[size]) { std::copy_n(text, size, characters); }
};

template <Text name, typename Signature>
class NamedOp;

template <Text name, typename R, typename... P>
class NamedOp<name, R(P...)> {
 public:
  static constexpr const char* kName = name.characters;

  R operator()(P... arguments) const { return op()(std::forward<P>(arguments)...); }

  static R below_autograd(P... arguments) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op()(std::forward<P>(arguments)...);
  }
  static R below_autograd(c10::DispatchKeySet keys, P... arguments) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return op().redispatch(keys & c10::after_autograd_keyset, std::forward<P>(arguments)...);
  }
  static constexpr R (*kBelowAutograd)(P...) = &below_autograd;

  static void check_dispatchable(P... arguments) {
    const auto check = [](const char* argument, const at::Tensor& tensor) {
      baraquant::check_dispatchable(kName, argument, tensor);
    };
    op().for_each_tensor(check, std::forward<P>(arguments)...);
  }
  static R checked_below_autograd(P... arguments) {
    check_dispatchable(arguments...);
    return below_autograd(std::forward<P>(arguments)...);
  }
  static constexpr R (*kCheckedBelowAutograd)(P...) = &checked_below_autograd;

 private:
  static const CoreOp<R(P...)>& op() {
    static const CoreOp<R(P...)> op(name.characters);
    return op;
  }
};

}  // namespace baraquant
