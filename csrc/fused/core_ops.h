// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the fused family. What each computes stands in ops.txt.
#pragma once

#include "frame/named_op.h"
#include "fused/rows.h"
#include "granularity/arguments.h"

namespace baraquant::fused {

// What the norms take besides their input. centered: layer_norm; else rms_norm, without a bias.
struct Norm {
  const OptionalTensor& weight;
  const OptionalTensor& bias;
  double eps = 0;
  bool centered = false;

  static constexpr int kFields = 4;
  static constexpr const char* kSchema = "Tensor? weight, Tensor? bias, float eps, bool centered";
};

struct NormArgs {
  const at::Tensor& input;
  Norm norm;

  static constexpr int kFields = 2;
};

struct ResidualNormArgs {
  const at::Tensor &input, &residual;
  Norm norm;

  static constexpr int kFields = 3;
};

// activation: an Activation; `up` is given with kSiluMul alone.
struct ActivationArgs {
  const at::Tensor& input;
  const OptionalTensor& up;
  int64_t activation = 0;

  static constexpr int kFields = 3;
  static constexpr const char* kSchema = "Tensor input, Tensor? up, int activation";
};

struct HadamardArgs {
  const at::Tensor& input;
  int64_t block = 1;

  static constexpr int kFields = 2;
  static constexpr const char* kSchema = "Tensor input, int block";
};

// How the rows are quantized.
struct QuantizeArgs {
  range::RowScheme scheme = {};
  at::ScalarType dtype = at::kChar;

  static constexpr int kFields = 2;
  static constexpr const char* kSchema =
      "bool symmetric, int quant_min, int quant_max, ScalarType dtype";
};

inline constexpr NamedOp<"baraquant::_norm", at::Tensor(const NormArgs&)> norm;
inline constexpr NamedOp<"baraquant::_norm_residual", TensorPair(const ResidualNormArgs&)>
    norm_residual;
inline constexpr NamedOp<"baraquant::_norm_quantize",
                         TensorTriple(const NormArgs&, const QuantizeArgs&)>
    norm_quantize;
inline constexpr NamedOp<"baraquant::_norm_residual_quantize",
                         TensorQuadruple(const ResidualNormArgs&, const QuantizeArgs&)>
    norm_residual_quantize;
inline constexpr NamedOp<"baraquant::_activation", at::Tensor(const ActivationArgs&)> activation;
inline constexpr NamedOp<"baraquant::_activation_quantize",
                         TensorTriple(const ActivationArgs&, const QuantizeArgs&)>
    activation_quantize;
inline constexpr NamedOp<"baraquant::_hadamard", at::Tensor(const HadamardArgs&)> hadamard;
inline constexpr NamedOp<"baraquant::_hadamard_quantize",
                         TensorTriple(const HadamardArgs&, const QuantizeArgs&)>
    hadamard_quantize;

}  // namespace baraquant::fused
