// SPDX-License-Identifier: BSD-3-Clause
// Written by scripts/layer_table.py out of layers.json and baraquant/nn: do not edit.
/// @file
/// Linear layers for inference.
#pragma once

#include "inference.h"
#include "int4.h"

namespace baraquant::nn {

/// An integer linear layer whose input has one scale, fixed in advance (W8A8 static).
///
/// @throws c10::ValueError A shape, width or granularity does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API StaticQuantizedLinearImpl : public StaticInput<Int8Linear> {
 public:
  explicit StaticQuantizedLinearImpl(const StaticQuantizedLinearOptions& options);
  explicit StaticQuantizedLinearImpl(const Given& given);
  BARAQUANT_CLONES
};
TORCH_MODULE(StaticQuantizedLinear);

/// A linear layer of four-bit weights that computes the scale of its input from the input.
///
/// @throws c10::ValueError A shape, width or granularity does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API QuantizedInt4LinearImpl : public DynamicInput<Int4Linear> {
 public:
  explicit QuantizedInt4LinearImpl(const QuantizedInt4LinearOptions& options);
  explicit QuantizedInt4LinearImpl(const Given& given);
  BARAQUANT_CLONES
};
TORCH_MODULE(QuantizedInt4Linear);

/// A linear layer of four-bit weights whose input has one scale, fixed in advance.
///
/// @throws c10::ValueError A shape, width or granularity does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API StaticQuantizedInt4LinearImpl : public StaticInput<Int4Linear> {
 public:
  explicit StaticQuantizedInt4LinearImpl(const StaticQuantizedInt4LinearOptions& options);
  explicit StaticQuantizedInt4LinearImpl(const Given& given);
  BARAQUANT_CLONES
};
TORCH_MODULE(StaticQuantizedInt4Linear);

/// A linear layer that stores integers and computes in floating point.
///
/// @throws c10::ValueError A shape, width or granularity does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API WeightOnlyLinearImpl : public FloatingLinear {
 public:
  explicit WeightOnlyLinearImpl(const DequantizedOptions& options);
  explicit WeightOnlyLinearImpl(const Given& given);
  BARAQUANT_CLONES
};
TORCH_MODULE(WeightOnlyLinear);

/// A WeightOnlyLinear whose weights of at most four bits take half a byte each.
///
/// @throws c10::ValueError A shape, width or granularity does not fit.
/// @throws c10::TypeError A dtype does not fit.
class BARAQUANT_API WeightOnlyInt4LinearImpl : public FloatingLinear {
 public:
  explicit WeightOnlyInt4LinearImpl(const WeightOnlyInt4LinearOptions& options);
  explicit WeightOnlyInt4LinearImpl(const Given& given);
  BARAQUANT_CLONES
};
TORCH_MODULE(WeightOnlyInt4Linear);

}  // namespace baraquant::nn
