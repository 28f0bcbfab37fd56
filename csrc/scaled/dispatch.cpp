// SPDX-License-Identifier: BSD-3-Clause
// The ops of the scaled family below autograd, one function each for CPU, CUDA and Meta. It checks,
// allocates and launches. Meta stops before the launches, so shapes and errors are the same on
// every device. Outputs are contiguous.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include "frame/copies.h"
#include "frame/devices.h"
#include "frame/outputs.h"
#include "scaled/checks.h"
#include "scaled/launch.h"
#include "scaled/quantize.h"

namespace baraquant::scaled {
namespace {

at::TensorOptions compute_options(const at::Tensor& tensor) {
  return tensor.options().dtype(compute_dtype(tensor.scalar_type()));
}

bool is_empty(const Part& part) { return part.rows == 0 || part.columns == 0; }

// Each of the vectors of a part as integers, with its scale; without elements it is 1.
Quantized outputs(const Part& input, int64_t vectors, int64_t length) {
  const auto options = compute_options(input.matrix);
  return {at::empty({vectors, length}, options.dtype(at::kChar)),
          is_empty(input) ? filled({vectors}, 1, options) : at::empty({vectors}, options)};
}

at::Tensor as_vector(const at::Tensor& tensor) { return contiguous(tensor).view({tensor.numel()}); }

RandomState state_of(const OptionalTensor& random) {
  return {random ? contiguous(*random) : at::Tensor(), 0};
}

TensorPair quantize_per_token_device(const ScaledArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_scaled("baraquant::scaled_quantize_per_token", args, false);
  const auto& [input, factor, random] = args;
  std::vector<c10::SymInt> per_token = input.sym_sizes().vec();
  per_token.back() = 1;
  if (input.is_meta()) {
    return {at::empty_symint(input.sym_sizes(), input.options().dtype(at::kChar)),
            at::empty_symint(per_token, compute_options(input))};
  }
  const Quantized q = quantize_rows(whole(input), as_vector(factor), state_of(random));
  return {q.values.view(input.sizes()), q.scale.view_symint(per_token)};
}

TensorPair quantize_transposed_device(const ScaledArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_scaled("baraquant::scaled_quantize_transposed", args, true);
  const auto& [input, factor, random] = args;
  if (input.is_meta()) {
    const c10::SymInt columns = input.sym_size(-1);
    return {at::empty_symint({columns, factor.sym_numel()}, input.options().dtype(at::kChar)),
            at::empty_symint({columns}, compute_options(input))};
  }
  const Quantized q = quantize_columns(whole(input), as_vector(factor), state_of(random));
  return {q.values, q.scale};
}

at::Tensor transpose_int8_device(const at::Tensor& input) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_transpose(input);
  if (input.is_meta()) {
    return at::empty_symint({input.sym_size(1), input.sym_size(0)}, input.options());
  }
  return transposed(contiguous(input));
}

at::Tensor draw_random_device(const at::Tensor& like, int64_t count) {
  check_draw(like, count);
  const at::Tensor state = at::empty({2}, like.options().dtype(at::kLong));
  if (!like.is_meta()) kernels(like).draw(state, count);
  return state;
}

void register_kernels(torch::Library& m) {
  m.impl("scaled_quantize_per_token", kernel_of<&quantize_per_token_device>);
  m.impl("scaled_quantize_transposed", kernel_of<&quantize_transposed_device>);
  m.impl("transpose_int8", kernel_of<&transpose_int8_device>);
  m.impl("draw_random", kernel_of<&draw_random_device>);
}

}  // namespace

Part whole(const at::Tensor& input) {
  int64_t rows = 1;
  for (const int64_t size : input.sizes().slice(0, input.dim() - 1)) rows *= size;
  const int64_t columns = input.size(-1);
  return {contiguous(input), rows, columns, columns, 0};
}

Part rows_of(const Part& matrix, int64_t begin, int64_t end) {
  Part part = matrix;
  part.rows = end - begin;
  part.first += begin * matrix.stride;
  return part;
}

Part columns_of(const Part& matrix, int64_t begin, int64_t end) {
  Part part = matrix;
  part.columns = end - begin;
  part.first += begin;
  return part;
}

at::Tensor no_maxima(const Part& input) {
  return filled({input.columns}, 0, compute_options(input.matrix));
}

at::Tensor empty_sums(const Part& input) {
  return at::empty({count_pieces(input.rows), input.columns}, compute_options(input.matrix));
}

at::Tensor sums_of_pieces(const Part& input) {
  at::Tensor sums = empty_sums(input);
  if (!is_empty(input)) kernels(input.matrix).sums(input, sums);
  return sums;
}

at::Tensor total(const at::Tensor& pieces) {
  if (pieces.size(0) == 0) return filled({pieces.size(1)}, 0, pieces.options());
  at::Tensor result = at::empty({pieces.size(1)}, pieces.options());
  if (has_work(result)) kernels(pieces).total(pieces, result);
  return result;
}

Quantized quantize_rows(const Part& input, const at::Tensor& factor, const RandomState& random,
                        const OfColumns& of_columns) {
  const Quantized q = outputs(input, input.rows, input.columns);
  if (is_empty(input)) return q;
  kernels(input.matrix)
      .rows({.input = input,
             .factor = factor,
             .values = q.values,
             .scale = q.scale,
             .row_factor = of_columns.row_factor,
             .maxima = of_columns.maxima,
             .sums = of_columns.sums,
             .random = random});
  return q;
}

Quantized quantize_columns(const Part& input, const at::Tensor& factor, const RandomState& random,
                           const at::Tensor& maxima, const at::Tensor& zero_point,
                           const at::Tensor& sums) {
  const Quantized q = outputs(input, input.columns, input.rows);
  if (is_empty(input)) return q;
  const ColumnsCall call{.input = input,
                         .factor = factor,
                         .values = q.values,
                         .scale = q.scale,
                         .maxima = maxima.defined() ? maxima : no_maxima(input),
                         .zero_point = zero_point,
                         .sums = sums,
                         .random = random};
  if (!maxima.defined()) kernels(input.matrix).maxima(call);
  kernels(input.matrix).columns(call);
  return q;
}

at::Tensor transposed(const at::Tensor& values) {
  const at::Tensor result = at::empty({values.size(1), values.size(0)}, values.options());
  if (has_work(values)) kernels(values).transpose(values, result);
  return result;
}

at::Tensor quantized_transpose(const at::Tensor& matrix, const at::Tensor& scale, int64_t quant_min,
                               int64_t quant_max) {
  const Part input = whole(matrix);
  const at::Tensor values =
      at::empty({input.columns, input.rows}, matrix.options().dtype(at::kChar));
  if (is_empty(input)) return values;
  kernels(matrix).given({.input = input,
                         .scale = scale,
                         .values = values,
                         .quant_min = quant_min,
                         .quant_max = quant_max});
  return values;
}

BARAQUANT_REGISTER_DEVICES(register_kernels)

}  // namespace baraquant::scaled
