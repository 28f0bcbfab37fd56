// SPDX-License-Identifier: BSD-3-Clause
// The ops of the integer matrix family: the arguments of each as one struct (frame/core_op.h), in
// the order of its schema. What each op computes, and what its arguments are, stands in ops.txt.
// A field has one name in all structs, so that one template makes of each what they share: linear()
// in checks.h. `options` are the arguments that a schema has by keyword alone.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "frame/lists.h"
#include "frame/named_op.h"
#include "granularity/arguments.h"
#include "range/quantize_rows.h"

namespace baraquant::int8_mm {

using range::RowScheme;

// What an op takes and computes. It decides which rules its arguments have to keep (checks.cpp).
enum class Kind {
  kProduct,    // an input of integers
  kSums,       // the same without scales: the sums of integers
  kRescaling,  // these sums as the input
  kDynamic,    // a floating input, quantized with scales of its own rows
  kStatic,     // a floating input, quantized with a given scale
  kTrained,    // kDynamic, and a floating weight that is quantized too
};

// ---- Parts --------------------------------------------------------------------------------------

// The weight of a grouped op. The other ops have a tensor in its place.
struct GroupedWeight {
  const at::Tensor& values;   // [E, N, K]
  const at::Tensor& offsets;  // [E]

  static constexpr int kFields = 2;
};

template <typename Weight>
constexpr bool kIsGrouped = std::is_same_v<Weight, GroupedWeight>;

struct SumOptions {
  const OptionalTensor &zero_point, &weight_sum;

  static constexpr int kFields = 2;
};

// Of an input that is integers. The zero point is a tensor or a number.
template <typename ZeroPoint>
struct IntegerOptions {
  ZeroPoint zero_point;
  const OptionalTensor& weight_sum;
  at::ScalarType dtype;

  static constexpr int kFields = 3;
};

// Of an input that is quantized with scales of its own rows.
struct DynamicOptions {
  bool symmetric;
  const OptionalTensor& weight_sum;
  int64_t quant_min, quant_max;
  std::optional<at::ScalarType> dtype;

  static constexpr int kFields = 5;
};

// Of an input that is quantized with a given scale.
struct StaticOptions {
  const OptionalTensor &zero_point, &smooth_scale, &weight_sum;
  int64_t quant_min, quant_max;
  std::optional<at::ScalarType> dtype;

  static constexpr int kFields = 6;
};

// ---- Ops whose weight is integers ---------------------------------------------------------------

template <typename Weight>
struct Int8LinearOf {
  const at::Tensor& input;
  Weight weight;
  const at::Tensor &input_scale, &weight_scale;
  const OptionalTensor& bias;
  IntegerOptions<const OptionalTensor&> options;

  static constexpr int kFields = 6;
  static constexpr Kind kKind = Kind::kProduct;
  static constexpr const char* kOp =
      kIsGrouped<Weight> ? "baraquant::int8_grouped_linear" : "baraquant::int8_linear";
};

using Int8Linear = Int8LinearOf<const at::Tensor&>;
using Int8GroupedLinear = Int8LinearOf<GroupedWeight>;

struct Int8Product {
  const at::Tensor &input, &weight;
  SumOptions options;

  static constexpr int kFields = 3;
  static constexpr Kind kKind = Kind::kSums;
  static constexpr const char* kOp = "baraquant::int8_product";
};

struct RescaleProduct {
  const at::Tensor &input, &input_scale, &weight_scale;
  const OptionalTensor& bias;
  at::ScalarType dtype;

  static constexpr int kFields = 5;
  static constexpr Kind kKind = Kind::kRescaling;
  static constexpr const char* kOp = "baraquant::rescale_product";
};

template <typename Scale, typename ZeroPoint>
struct SmoothquantLinearOf {
  const at::Tensor &input, &weight, &weight_scale;
  Scale act_scale;
  const OptionalTensor& bias;
  IntegerOptions<ZeroPoint> options;

  static constexpr int kFields = 6;
  static constexpr Kind kKind = Kind::kProduct;
  static constexpr const char* kOp = "baraquant::smoothquant_linear";
  static constexpr const char* kOverload = std::is_same_v<Scale, double> ? "number" : "";
};

using SmoothquantLinear = SmoothquantLinearOf<const at::Tensor&, const OptionalTensor&>;
using SmoothquantLinearNumber = SmoothquantLinearOf<double, std::optional<int64_t>>;

template <typename Weight>
struct QuantizedLinearOf {
  const at::Tensor& input;
  Weight weight;
  const at::Tensor& weight_scale;
  const OptionalTensor& bias;
  DynamicOptions options;

  static constexpr int kFields = 5;
  static constexpr Kind kKind = Kind::kDynamic;
  static constexpr const char* kOp =
      kIsGrouped<Weight> ? "baraquant::quantized_grouped_linear" : "baraquant::quantized_linear";
  static constexpr const char* kMaskedOp = kIsGrouped<Weight>
                                               ? "baraquant::_quantized_grouped_linear_with_mask"
                                               : "baraquant::_quantized_linear_with_mask";
};

using QuantizedLinear = QuantizedLinearOf<const at::Tensor&>;
using QuantizedGroupedLinear = QuantizedLinearOf<GroupedWeight>;

struct StaticQuantizedLinear {
  const at::Tensor &input, &weight, &weight_scale, &act_scale;
  const OptionalTensor& bias;
  StaticOptions options;

  static constexpr int kFields = 6;
  static constexpr Kind kKind = Kind::kStatic;
  static constexpr const char* kOp = "baraquant::static_quantized_linear";
  static constexpr const char* kMaskedOp = "baraquant::_static_quantized_linear_with_mask";
};

// ---- Ops whose weight is packed numbers of four bits --------------------------------------------

struct Int4Linear {
  const at::Tensor &input, &packed, &input_scale, &weight_scale, &group_factor;
  int64_t group_size;
  const OptionalTensor &bias, &group_zero_point;
  IntegerOptions<const OptionalTensor&> options;

  static constexpr int kFields = 9;
  static constexpr Kind kKind = Kind::kProduct;
  static constexpr const char* kOp = "baraquant::int4_linear";
  Int8Linear with(const at::Tensor& weight) const {
    return {input, weight, input_scale, weight_scale, bias, options};
  }
};

struct QuantizedInt4Linear {
  const at::Tensor &input, &packed, &weight_scale, &group_factor;
  int64_t group_size;
  const OptionalTensor &bias, &group_zero_point;
  DynamicOptions options;

  static constexpr int kFields = 8;
  static constexpr Kind kKind = Kind::kDynamic;
  static constexpr const char* kOp = "baraquant::quantized_int4_linear";
  QuantizedLinear with(const at::Tensor& weight) const {
    return {input, weight, weight_scale, bias, options};
  }
};

struct StaticQuantizedInt4Linear {
  const at::Tensor &input, &packed, &weight_scale, &group_factor;
  int64_t group_size;
  const at::Tensor& act_scale;
  const OptionalTensor &bias, &group_zero_point;
  StaticOptions options;

  static constexpr int kFields = 9;
  static constexpr Kind kKind = Kind::kStatic;
  static constexpr const char* kOp = "baraquant::static_quantized_int4_linear";
  StaticQuantizedLinear with(const at::Tensor& weight) const {
    return {input, weight, weight_scale, act_scale, bias, options};
  }
};

// ---- Products of an input of integers with some weights -----------------------------------------

struct Int8Linears {
  using One = Int8Linear;

  const at::Tensor& input;
  at::TensorList weights;
  const at::Tensor& input_scale;
  at::TensorList weight_scales;
  OptionalTensors biases;
  const OptionalTensor& zero_point;
  OptionalTensors weight_sums;
  at::ScalarType dtype;

  static constexpr int kFields = 8;
  static constexpr const char* kOp = "baraquant::_int8_linears";
};

struct Int4Linears {
  using One = Int4Linear;

  const at::Tensor& input;
  at::TensorList weights;
  const at::Tensor& input_scale;
  at::TensorList weight_scales, group_factors;
  int64_t group_size;
  OptionalTensors biases, group_zero_points;
  const OptionalTensor& zero_point;
  OptionalTensors weight_sums;
  at::ScalarType dtype;

  static constexpr int kFields = 11;
  static constexpr const char* kOp = "baraquant::_int4_linears";
};

// The output, and a bit for each element of the input, row by row: whether it lay inside the range.
using MaskedProduct = std::tuple<at::Tensor, at::Tensor>;

// ---- Ops that train -----------------------------------------------------------------------------

// How input and weight become integers. The weight's scheme is symmetric.
struct Schemes {
  bool symmetric;
  int64_t weight_quant_min, weight_quant_max, quant_min, quant_max;

  static constexpr int kFields = 5;
  static constexpr const char* kSchema =
      "bool symmetric, int weight_quant_min, int weight_quant_max, int quant_min, int quant_max";
  RowScheme input() const {
    return {.symmetric = symmetric, .quant_min = quant_min, .quant_max = quant_max};
  }
  RowScheme weight() const {
    return {.symmetric = true, .quant_min = weight_quant_min, .quant_max = weight_quant_max};
  }
};

// How a backward pass computes gradients, by the names that a user gives.
struct BackwardArgs {
  std::string_view backward, rounding;

  static constexpr int kFields = 2;
  static constexpr const char* kSchema = "str backward=\"float\", str rounding=\"nearest\"";
  bool is_float() const { return backward == "float"; }
  bool has_weight() const { return backward == "int8"; }
  bool is_stochastic() const { return rounding == "stochastic"; }
};

inline const OptionalTensor kNoTensor;

// A weight that is integers already, both or neither. The floating weight then takes the gradient,
// and is not read.
struct GivenWeight {
  const OptionalTensor &integers = kNoTensor, &scale = kNoTensor;

  static constexpr int kFields = 2;
  static constexpr const char* kSchema = "Tensor? qweight=None, Tensor? weight_scale=None";
  explicit operator bool() const { return integers.has_value(); }
};

template <typename Weight>
struct QatLinearOf {
  const at::Tensor& input;
  Weight weight;
  const OptionalTensor& bias;
  Schemes schemes;

  static constexpr int kFields = 4;
  static constexpr Kind kKind = Kind::kTrained;
  static constexpr const char* kOp =
      kIsGrouped<Weight> ? "baraquant::qat_grouped_linear" : "baraquant::qat_linear";
};

using QatLinear = QatLinearOf<const at::Tensor&>;
using QatGroupedLinear = QatLinearOf<GroupedWeight>;

// (output, input's integers, scales, zero points, mask; weight's integers, scales). What a
// scheme does not have is an empty tensor, and so are the weight's of a given weight.
using KeptByQatLinear =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

inline constexpr NamedOp<"baraquant::qat_linear",
                         at::Tensor(const QatLinear& call, const BackwardArgs& backward,
                                    const GivenWeight& given)>
    qat_linear;
inline constexpr NamedOp<"baraquant::_qat_linear_kept",
                         KeptByQatLinear(const QatLinear& call, bool with_mask,
                                         const GivenWeight& given)>
    qat_linear_kept;
inline constexpr NamedOp<"baraquant::qat_grouped_linear",
                         at::Tensor(const QatGroupedLinear& call, const BackwardArgs& backward)>
    qat_grouped_linear;
inline constexpr NamedOp<"baraquant::_qat_grouped_linear_kept",
                         KeptByQatLinear(const QatGroupedLinear& call, bool with_mask)>
    qat_grouped_linear_kept;

}  // namespace baraquant::int8_mm
