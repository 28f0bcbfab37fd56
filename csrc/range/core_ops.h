// SPDX-License-Identifier: BSD-3-Clause
// The core ops of the range family, through the dispatcher. What each computes stands with its
// schema in schema.cpp.
#pragma once

#include "granularity/arguments.h"

namespace baraquant::range {

using affine::OpName;
using affine::OptionalTensor;
using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// What an op that chooses scales takes besides its input.
struct RangeArgs {
  Granularity granularity = Granularity::kPerTensor;
  int64_t axis = -1;           // of per channel and per group
  c10::SymInt group_size = 1;  // of per group
  int64_t quant_min = -128, quant_max = 127;
  bool symmetric = true;
};

// What an op that observes takes besides its tensors.
struct ObserveArguments {
  std::optional<int64_t> axis;
  std::optional<double> averaging_constant;
  const OptionalTensor& skipped_batches;  // goes up by 1 with a batch that is not finite
};

TensorPair choose_qparams(const at::Tensor& input, const RangeArgs& args);
TensorTriple dynamic_quantize(const at::Tensor& input, const RangeArgs& args, at::ScalarType dtype);
at::Tensor dynamic_fake_quantize(const at::Tensor& input, const RangeArgs& args);
TensorPair dynamic_fake_quantize_with_mask(const at::Tensor& input, const RangeArgs& args);
void observe_min_max(const at::Tensor& input, const at::Tensor& min_val, const at::Tensor& max_val,
                     const ObserveArguments& args);

// The ranges and scales of a quantizer with a static scale, all of them written.
struct Observed {
  const at::Tensor &min_val, &max_val, &scale, &zero_point;
};
void observe_qparams(const at::Tensor& input, const Observed& observed,
                     const at::Tensor& observer_enabled, const ObserveArguments& args,
                     int64_t quant_min, int64_t quant_max, bool symmetric);

// A function that takes RangeArgs, as a kernel of the flat schema
//   (Tensor input, int granularity, int axis, SymInt group_size, int quant_min, int quant_max,
//    bool symmetric, ...)
template <auto function>
struct Flat;

template <typename R, typename... Extra,
          R (*function)(const at::Tensor&, const RangeArgs&, Extra...)>
struct Flat<function> {
  static R kernel(const at::Tensor& input, int64_t granularity, int64_t axis,
                  c10::SymInt group_size, int64_t quant_min, int64_t quant_max, bool symmetric,
                  Extra... extra) {
    return function(input,
                    RangeArgs{affine::checked_granularity(granularity), axis,
                              affine::limited_group_size(std::move(group_size)), quant_min,
                              quant_max, symmetric},
                    extra...);
  }
};

}  // namespace baraquant::range
