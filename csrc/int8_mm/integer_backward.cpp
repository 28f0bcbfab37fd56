// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/integer_backward.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "frame/copies.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "int8_mm/checks.h"
#include "int8_mm/launch.h"
#include "int8_mm/math.h"
#include "scaled/quantize.h"

namespace baraquant::int8_mm {
namespace {

using scaled::Part;
using scaled::RandomState;

// The second of the two states in `random` is for the gradient of the weight.
constexpr uint64_t kWeightStep = 1;

// A sum of `depth` terms, cut into blocks that int32 holds.
struct SumBlocks {
  int64_t depth, size;

  SumBlocks(int64_t terms, int64_t most) : depth(terms), size(std::max<int64_t>(terms, 1)) {
    if (terms <= most) return;
    most = most / 16 * 16;
    const int64_t count = (terms + most - 1) / most;
    size = ((terms + count - 1) / count + 15) / 16 * 16;
  }
  bool is_one() const { return depth <= size; }

  // Calls of(begin, end, of_block) for each block, where of_block(tensor) is its part of a tensor; once
  // for an empty sum.
  template <typename Of>
  void for_each(const Of& of) const {
    for (int64_t begin = 0; begin == 0 || begin < depth; begin += size) {
      const int64_t end = std::min(begin + size, depth);
      of(begin, end, [&](const at::Tensor& tensor) {
        return tensor.defined() ? tensor.narrow(0, begin, end - begin) : tensor;
      });
    }
  }
};

// Collects the products of the blocks of a sum.
class Total {
 public:
  Total(int64_t rows, int64_t columns, at::ScalarType dtype, const at::Tensor& like, bool is_one)
      : dtype_(dtype), options_(like.options().dtype(compute_dtype(dtype))), columns_(columns) {
    const at::ScalarType summed = is_one ? dtype : compute_dtype(dtype);
    total_ = at::empty({rows, columns}, options_.dtype(summed));
    ones_ = filled({columns}, 1, options_);
  }

  // Adds scale[r] * sum over d of (values[r, d] * weight[c, d] - shifts[r]). Undefined shifts are 0.
  void add(const scaled::Quantized& rows, const at::Tensor& weight, const at::Tensor& shifts) {
    if (!has_work(total_)) return;
    ProductCall call;
    call.input = rows.values;
    call.weight = weight;
    call.input_scale = rows.scale;
    call.weight_scale = ones_;
    call.has_zero_point = call.zero_point_is_wide = shifts.defined();
    if (shifts.defined()) {
      call.zero_point = shifts;
      call.weight_sum = filled({columns_}, 1, options_.dtype(at::kInt));
    }
    call.output = is_first_ ? total_ : at::empty(total_.sizes(), total_.options());
    kernels(weight).product(call);
    if (!is_first_ && !is_planning()) total_.add_(call.output);
    is_first_ = false;
  }

  at::Tensor result() const { return cast(total_, dtype_); }

 private:
  at::ScalarType dtype_;
  at::TensorOptions options_;
  int64_t columns_;
  at::Tensor total_, ones_;
  bool is_first_ = true;
};

at::Tensor vector_of(const at::Tensor& tensor) { return contiguous(tensor).view({tensor.numel()}); }

// The transpose of the weight's integers, or of some rows of them.
at::Tensor transposed_integers(const at::Tensor& weight, const at::Tensor& scale,
                               const IntegerBackwardArgs& args) {
  if (weight.scalar_type() == at::kChar) return scaled::transposed(weight);
  return scaled::quantized_transpose(weight, scale, args.weight_quant_min, args.weight_quant_max);
}

// `found` has what else the pass over grad finds, for dw and for db. Its sums are undefined if the
// columns are cut into blocks.
at::Tensor gradient_of_input(const Part& grad, const IntegerBackwardArgs& args,
                             const SumBlocks& blocks, const RandomState& random,
                             const scaled::OfColumns& found) {
  const at::Tensor weight = contiguous(*args.weight), scale = vector_of(*args.weight_scale);
  Total total(grad.rows, weight.size(1), grad.matrix.scalar_type(), weight, blocks.is_one());
  blocks.for_each([&](int64_t begin, int64_t end, const auto& of_block) {
    total.add(scaled::quantize_rows(scaled::columns_of(grad, begin, end), of_block(scale), random,
                                    {found.row_factor, of_block(found.maxima), found.sums}),
              transposed_integers(of_block(weight), of_block(scale), args), {});
  });
  return total.result();
}

at::Tensor gradient_of_weight(const Part& grad, const IntegerBackwardArgs& args,
                              const SumBlocks& blocks, const RandomState& random,
                              const at::Tensor& maxima) {
  const int64_t depth = args.qinput->size(-1);
  const at::Tensor input = contiguous(*args.qinput).view({grad.rows, depth});
  const at::Tensor scale = vector_of(*args.input_scale);
  const at::Tensor zero_point =
      args.input_zero_point ? vector_of(*args.input_zero_point) : at::Tensor();
  Total total(grad.columns, depth, grad.matrix.scalar_type(), input, blocks.is_one());
  blocks.for_each([&](int64_t begin, int64_t end, const auto& of_block) {
    at::Tensor sums;
    if (zero_point.defined()) sums = filled({grad.columns}, 0, input.options().dtype(at::kInt));
    const auto rows = scaled::quantize_columns(scaled::rows_of(grad, begin, end), of_block(scale),
                                               random, maxima, of_block(zero_point), sums);
    total.add(rows, scaled::transposed(of_block(input)), sums);
  });
  return total.result();
}

// What stands for a gradient that is not computed.
at::Tensor nothing_like(const at::Tensor& grad) { return at::empty({0}, grad.options()); }

Gradients empty_gradients(const at::Tensor& grad, const IntegerBackwardArgs& args) {
  at::Tensor dx = nothing_like(grad), dw = nothing_like(grad), db = nothing_like(grad);
  if (args.weight) {
    std::vector<c10::SymInt> sizes = grad.sym_sizes().vec();
    sizes.back() = args.weight->sym_size(1);
    dx = at::empty_symint(sizes, grad.options());
  }
  if (args.qinput) {
    dw = at::empty_symint({grad.sym_size(-1), args.qinput->sym_size(-1)}, grad.options());
  }
  if (args.bias_dtype) {
    db = at::empty_symint({grad.sym_size(-1)}, grad.options().dtype(*args.bias_dtype));
  }
  return {dx, dw, db};
}

}  // namespace

Gradients integer_backward_device(const at::Tensor& grad, const IntegerBackwardArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_integer_backward(grad, args);
  if (grad.is_meta()) return empty_gradients(grad, args);
  const Part rows = scaled::whole(grad);
  const at::Tensor state = args.random ? contiguous(*args.random) : at::Tensor();
  const SumBlocks tokens(rows.rows, args.input_zero_point ? kMaxShiftedDepth : kMaxDepth);
  const SumBlocks outputs(rows.columns, kMaxDepth);
  at::Tensor dx = nothing_like(grad), dw = nothing_like(grad), db = nothing_like(grad);
  scaled::OfColumns found;
  // Where the scales of dw hold for all tokens, the pass for dx finds them too.
  if (args.weight && args.qinput && tokens.is_one()) {
    found.row_factor = vector_of(*args.input_scale);
    found.maxima = scaled::no_maxima(rows);
  }
  if (args.weight && args.bias_dtype && outputs.is_one()) found.sums = scaled::empty_sums(rows);
  if (args.weight) {
    std::vector<int64_t> sizes = grad.sizes().vec();
    sizes.back() = args.weight->size(1);
    dx = gradient_of_input(rows, args, outputs, {state}, found).view(sizes);
  }
  if (args.qinput) dw = gradient_of_weight(rows, args, tokens, {state, kWeightStep}, found.maxima);
  if (args.bias_dtype) {
    const at::Tensor sums = found.sums.defined() ? found.sums : scaled::sums_of_pieces(rows);
    db = cast(scaled::total(sums), *args.bias_dtype);
  }
  return {dx, dw, db};
}

}  // namespace baraquant::int8_mm
