// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the fused family, through the dispatcher. What each computes stands with its
// schema in schema.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

#include "fused/rows.h"

namespace baraquant::fused {

using OptionalTensor = std::optional<at::Tensor>;
using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using TensorQuadruple = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// What the norms take besides their input. centered: layer_norm; else rms_norm, without a bias.
struct NormArgs {
  const OptionalTensor& weight;
  const OptionalTensor& bias;
  double eps = 0;
  bool centered = false;

  static std::string schema() { return "Tensor? weight, Tensor? bias, float eps, bool centered"; }
  using Flat = std::tuple<const OptionalTensor&, const OptionalTensor&, double, bool>;
  Flat flat() const { return {weight, bias, eps, centered}; }
  static NormArgs from_flat(const OptionalTensor& weight, const OptionalTensor& bias, double eps,
                            bool centered) {
    return {.weight = weight, .bias = bias, .eps = eps, .centered = centered};
  }
};

// How the rows are quantized.
struct QuantizeArgs {
  bool symmetric = true;
  int64_t quant_min = -128, quant_max = 127;
  at::ScalarType dtype = at::kChar;

  static std::string schema() {
    return "bool symmetric, int quant_min, int quant_max, ScalarType dtype";
  }
  using Flat = std::tuple<bool, int64_t, int64_t, at::ScalarType>;
  Flat flat() const { return {symmetric, quant_min, quant_max, dtype}; }
  static QuantizeArgs from_flat(bool symmetric, int64_t quant_min, int64_t quant_max,
                                at::ScalarType dtype) {
    return {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max, .dtype = dtype};
  }
};

at::Tensor norm(const at::Tensor& input, const NormArgs& args);
TensorPair norm_residual(const at::Tensor& input, const at::Tensor& residual, const NormArgs& args);
TensorTriple norm_quantize(const at::Tensor& input, const NormArgs& args, const QuantizeArgs& q);
TensorQuadruple norm_residual_quantize(const at::Tensor& input, const at::Tensor& residual,
                                       const NormArgs& args, const QuantizeArgs& q);

// activation: an Activation; `up` is given with kSiluMul alone.
at::Tensor activation(const at::Tensor& input, const OptionalTensor& up, int64_t activation);
TensorTriple activation_quantize(const at::Tensor& input, const OptionalTensor& up,
                                 int64_t activation, const QuantizeArgs& q);

at::Tensor hadamard(const at::Tensor& input, int64_t block);
TensorTriple hadamard_quantize(const at::Tensor& input, int64_t block, const QuantizeArgs& q);

}  // namespace baraquant::fused
