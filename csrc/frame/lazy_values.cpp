// SPDX-License-Identifier: BSD-3-Clause
// Some tensors do not hold their values: z.conj(), its .imag (a negative view), zeros that autograd
// has not materialised. PyTorch's fallback for them assumes that the first result of an op is the
// tensor that the op has written. Our observers write tensors but return nothing, so the fallback
// would read beyond the end of the stack. They therefore have a separate kernel for these dispatch
// keys: it materialises a tensor that is read, and refuses a tensor that would be written.
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "frame/checks.h"

namespace baraquant {
namespace {

constexpr c10::DispatchKeySet kLazy{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                    c10::DispatchKey::ZeroTensor};

void make_real(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (!value.isTensor()) continue;
    const at::Tensor tensor = value.toTensor();
    if (!tensor.defined() || !tensor.key_set().has_any(kLazy)) continue;
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      check_written(op.schema().name(), arguments[i].name().c_str(), tensor);
    }
    value = tensor._is_zerotensor() ? tensor.clone() : tensor.resolve_conj().resolve_neg();
  }
  op.redispatchBoxed(keys - kLazy, stack);
}

void register_kernels(torch::Library& m) {
  m.impl("_observe_min_max_", torch::CppFunction::makeFromBoxedFunction<&make_real>());
  m.impl("_observe_qparams_", torch::CppFunction::makeFromBoxedFunction<&make_real>());
}

}  // namespace

TORCH_LIBRARY_IMPL(baraquant, Conjugate, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, Negative, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(baraquant, ZeroTensor, m) { register_kernels(m); }

}  // namespace baraquant
