// SPDX-License-Identifier: BSD-3-Clause
// How the layers for inference are made of their options, and copied.
#pragma once

#include "nn/clone.h"
#include "nn/given.h"

namespace baraquant::nn {

// All that options say, or the functions of a layer that have the names of options.
template <typename Options>
Given given_of(const Options& options) {
  Given given;
#define BARAQUANT_TAKE(name) \
  if constexpr (requires { options.name(); }) given.name = options.name();
  BARAQUANT_ARGUMENTS(BARAQUANT_TAKE)
#undef BARAQUANT_TAKE
  return given;
}

// The options of a copy of a layer: its tensors and what rounds its input are copied.
template <typename Layer>
Given copy_of(const Layer& layer, const std::optional<torch::Device>& device) {
  auto given = given_of(layer);
#define BARAQUANT_COPY(name) \
  if constexpr (requires { cloned(layer.name, device); }) given.name = cloned(layer.name, device);
  BARAQUANT_ARGUMENTS(BARAQUANT_COPY)
#undef BARAQUANT_COPY
  if (!given.packed.defined()) given.in_features = std::nullopt;  // the weight has them
  return given;
}

}  // namespace baraquant::nn

// The constructors and the clone of a linear layer, which is one of its base and a name.
#define BARAQUANT_SERVED(Class, Base, Options)                                         \
  Class##Impl::Class##Impl(const Given& given) : Base(#Class, given) {}                \
  Class##Impl::Class##Impl(const Options& options) : Class##Impl(given_of(options)) {} \
  BARAQUANT_CLONE(Class##Impl, copy_of(*this, device))
