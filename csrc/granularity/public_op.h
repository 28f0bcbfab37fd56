// SPDX-License-Identifier: BSD-3-Clause
// The public ops of a verb: one for each granularity, which differ by the arguments of the
// granularity alone. They are registered for all of them at once, from a schema and a function with
// placeholders:
//   define_public_ops(m, "verb_per_*(Tensor input, ..., int quant_min=-128) -> Tensor")
//   implement_public_ops<&function>(m, "verb_per_*")
// `per_*` is the granularity's name, `, ...` stands for its own arguments; in the function's
// signature that is a Scope, or a struct with one. An op of that kind is CompositeImplicitAutograd:
// it calls a core op, for which CPU, CUDA, Meta and autograd are registered.
#pragma once

#include <torch/library.h>

#include <string>

#include "frame/core_op.h"
#include "granularity/arguments.h"

namespace baraquant {

// Every op is traceable by torch.compile and torch.export.
inline void define(torch::Library& m, const std::string& schema) {
  m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
}

inline std::string replaced(std::string text, const std::string& part, const std::string& by) {
  const size_t found = text.find(part);
  return found == std::string::npos ? text : text.replace(found, part.size(), by);
}

// Calls f(PerTensor()), ... for all granularities.
template <typename F>
void for_each_granularity(const F& f) {
  f(PerTensor());
  f(PerChannel());
  f(PerToken());
  f(PerGroup());
}

template <typename Own>
std::string public_name(const std::string& pattern) {
  return replaced(pattern, "per_*", granularity_name(Own::kGranularity));
}

inline void define_public_ops(torch::Library& m, const std::string& pattern) {
  for_each_granularity([&]<typename Own>(Own) {
    define(m, replaced(public_name<Own>(pattern), ", ...", Own::kSchema));
  });
}

// The parameters of a public op: Scope, also as a field of a struct, is made of the granularity's own
// arguments.
template <typename Own>
struct PublicOp {
  template <typename T>
  struct Parameter : baraquant::Parameter<T> {};
  template <typename T>
    requires std::is_same_v<std::remove_cvref_t<T>, Scope>
  struct Parameter<T> : baraquant::Parameter<Own> {};
  template <ListedArguments T>
  struct Parameter<T> : ListedParameter<Parameter, T> {};
};

template <auto function>
void implement_public_ops(torch::Library& m, const std::string& pattern) {
  for_each_granularity([&]<typename Own>(Own) {
    using Kernel = Flattened<function, PublicOp<Own>::template Parameter, decltype(function)>;
    m.impl(public_name<Own>(pattern).c_str(),
           Kernel::pointer(std::type_identity<typename Kernel::Flat>()));
  });
}

}  // namespace baraquant
