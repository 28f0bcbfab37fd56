// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family through the dispatcher. What they compute stands with their
// schemas in schema.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <tuple>

#include "range/quantize_rows.h"

namespace baraquant::int8_mm {

using range::RowScheme;

using OptionalTensor = std::optional<at::Tensor>;

// The output, and a bit for each element of the input, row by row: whether it lay inside the range.
using MaskedProduct = std::tuple<at::Tensor, at::Tensor>;

template <typename Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

// (output, input's integers, scales, zero points, mask; weight's integers, scales)
using KeptByQatLinear =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// How the two become integers; the weight's scheme is symmetric.
struct Schemes {
  RowScheme input, weight;
};

at::Tensor qat_linear(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                      const Schemes& schemes);
KeptByQatLinear qat_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                const OptionalTensor& bias, const Schemes& schemes, bool with_mask);
at::Tensor qat_grouped_linear(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& offsets, const OptionalTensor& bias,
                              const Schemes& schemes);
KeptByQatLinear qat_grouped_linear_kept(const at::Tensor& input, const at::Tensor& weight,
                                        const at::Tensor& offsets, const OptionalTensor& bias,
                                        const Schemes& schemes, bool with_mask);

// A function that takes Schemes, as a kernel of the flat schema
//   (Tensor input, Tensor weight, Tensor? bias, bool symmetric, int weight_quant_min,
//    int weight_quant_max, int quant_min, int quant_max, ...)
// or, of a grouped op, with Tensor offsets in front of the bias.
template <auto function>
struct Flat;

inline Schemes schemes_of(bool symmetric, int64_t weight_quant_min, int64_t weight_quant_max,
                          int64_t quant_min, int64_t quant_max) {
  return {{symmetric, quant_min, quant_max},
          {/*symmetric=*/true, weight_quant_min, weight_quant_max}};
}

template <typename R, typename... Extra,
          R (*function)(const at::Tensor&, const at::Tensor&, const OptionalTensor&, const Schemes&,
                        Extra...)>
struct Flat<function> {
  static R kernel(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                  bool symmetric, int64_t weight_quant_min, int64_t weight_quant_max,
                  int64_t quant_min, int64_t quant_max, Extra... extra) {
    return function(input, weight, bias,
                    schemes_of(symmetric, weight_quant_min, weight_quant_max, quant_min, quant_max),
                    extra...);
  }
};

template <typename R, typename... Extra,
          R (*function)(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const OptionalTensor&, const Schemes&, Extra...)>
struct Flat<function> {
  static R kernel(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offsets,
                  const OptionalTensor& bias, bool symmetric, int64_t weight_quant_min,
                  int64_t weight_quant_max, int64_t quant_min, int64_t quant_max, Extra... extra) {
    return function(input, weight, offsets, bias,
                    schemes_of(symmetric, weight_quant_min, weight_quant_max, quant_min, quant_max),
                    extra...);
  }
};

}  // namespace baraquant::int8_mm
