// SPDX-License-Identifier: BSD-3-Clause
// On the CPU there is one product for each group. On CUDA bfloat16 goes to torch's grouped product,
// which reads the offsets on the device. It has no kernel for other dtypes, nor for rows that do
// not begin at multiples of 16 bytes: then the host reads the offsets once, and waits for them.
#include "int8_mm/grouped_products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "frame/dtypes.h"
#include "frame/saved_tensors.h"
#include "granularity/public_op.h"
#include "int8_mm/operands.h"

namespace baraquant::int8_mm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Makes the offsets ascend and limits them to the number of rows, as GroupRows does.
at::Tensor ends_of(const at::Tensor& offsets, int64_t rows) {
  return std::get<0>(at::cummax(offsets, 0)).clamp(0, rows);
}

// Whether torch's grouped product accepts matrices with rows of a and of b elements.
bool takes_grouped_mm(const at::Tensor& tensor, int64_t a, int64_t b, int64_t groups) {
  return tensor.is_cuda() && tensor.scalar_type() == at::kBFloat16 && a % 8 == 0 && b % 8 == 0 &&
         a > 0 && b > 0 && tensor.size(0) > 0 && groups > 0;
}

// Calls of(group, its first row, its number of rows) for each group; returns the first row after
// the last group.
template <typename Of>
int64_t for_each_group(const at::Tensor& offsets, int64_t rows, const Of& of) {
  const at::Tensor on_host = offsets.cpu().contiguous();
  const auto* ends = static_cast<const int32_t*>(on_host.const_data_ptr());
  GroupRows group;
  for (int64_t g = 0; g < on_host.numel(); ++g) {
    group = group.next(ends[g], rows);
    of(g, group.begin, group.end - group.begin);
  }
  return group.end;
}

at::Tensor matmul_device(const at::Tensor& rows, const at::Tensor& matrices,
                         const at::Tensor& offsets) {
  const int64_t count = rows.size(0), width = matrices.size(2);
  if (takes_grouped_mm(rows, rows.size(1), width, matrices.size(0))) {
    const at::Tensor ends = ends_of(offsets, count);
    const at::Tensor result = at::_grouped_mm(rows.contiguous(), matrices.contiguous(), ends);
    const at::Tensor index = at::arange(count, offsets.options());
    return result.masked_fill_(index.ge(ends[-1]).unsqueeze(1), 0);
  }
  const at::Tensor result = at::empty({count, width}, rows.options());
  const int64_t end = for_each_group(offsets, count, [&](int64_t g, int64_t begin, int64_t size) {
    at::Tensor part = result.narrow(0, begin, size);
    at::mm_out(part, rows.narrow(0, begin, size), matrices.select(0, g));
  });
  result.narrow(0, end, count - end).zero_();
  return result;
}

at::Tensor outer_device(const at::Tensor& left, const at::Tensor& right,
                        const at::Tensor& offsets) {
  const int64_t rows = left.size(0), a = left.size(1), b = right.size(1);
  if (takes_grouped_mm(left, a, b, offsets.numel())) {
    return at::_grouped_mm(left.contiguous().t(), right.contiguous(), ends_of(offsets, rows));
  }
  const at::Tensor result = at::empty({offsets.numel(), a, b}, left.options());
  for_each_group(offsets, rows, [&](int64_t g, int64_t begin, int64_t size) {
    at::Tensor part = result.select(0, g);
    at::mm_out(part, left.narrow(0, begin, size).t(), right.narrow(0, begin, size));
  });
  return result;
}

at::Tensor sum_device(const at::Tensor& rows, const at::Tensor& offsets, at::ScalarType dtype) {
  if (rows.is_cuda() && rows.numel() > 0 && offsets.numel() > 0) {
    const at::Tensor ends = ends_of(offsets, rows.size(0));
    const at::Tensor sizes = at::diff(ends, 1, 0, at::zeros({1}, ends.options()));
    const at::Tensor wide = rows.to(compute_dtype(dtype)).contiguous();
    return at::segment_reduce(wide, "sum", sizes, {}, {}, /*axis=*/0, /*unsafe=*/true).to(dtype);
  }
  const at::Tensor result = at::empty({offsets.numel(), rows.size(1)}, rows.options().dtype(dtype));
  for_each_group(offsets, rows.size(0), [&](int64_t g, int64_t begin, int64_t size) {
    result.select(0, g).copy_(rows.narrow(0, begin, size).sum(0, /*keepdim=*/false, dtype));
  });
  return result;
}

at::Tensor matmul_meta(const at::Tensor& rows, const at::Tensor& matrices,
                       const at::Tensor& offsets) {
  return at::empty_symint({rows.sym_size(0), matrices.sym_size(2)}, rows.options());
}

at::Tensor outer_meta(const at::Tensor& left, const at::Tensor& right, const at::Tensor& offsets) {
  return at::empty_symint({offsets.sym_size(0), left.sym_size(1), right.sym_size(1)},
                          left.options());
}

at::Tensor sum_meta(const at::Tensor& rows, const at::Tensor& offsets, at::ScalarType dtype) {
  return at::empty_symint({offsets.sym_size(0), rows.sym_size(1)}, rows.options().dtype(dtype));
}

// Returns for each row the vector of its group, from vectors [E, A], and 0 after the last group.
at::Tensor spread(const at::Tensor& vectors, const at::Tensor& offsets, const c10::SymInt& rows) {
  const at::Tensor index = at::arange(at::Scalar(rows), offsets.options());
  const at::Tensor ends = std::get<0>(at::cummax(offsets, 0));
  const at::Tensor none = at::zeros_symint({1, vectors.sym_size(1)}, vectors.options());
  return at::cat({vectors, none}).index_select(0, at::bucketize(index, ends, false, true));
}

struct SavedProduct {
  at::Tensor left, right, offsets;
  auto fields() { return std::tie(left, right, offsets); }
};

class Matmul : public Function<Matmul> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& offsets) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    save_tensors(ctx, SavedProduct{.left = rows, .right = matrices, .offsets = offsets});
    return grouped_matmul(rows, matrices, offsets);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto [rows, matrices, offsets] = saved_tensors<SavedProduct>(ctx);
    variable_list result(3);
    if (ctx->needs_input_grad(0)) {
      result[0] = grouped_matmul(grads[0], matrices.transpose(1, 2), offsets);
    }
    if (ctx->needs_input_grad(1)) result[1] = grouped_outer(rows, grads[0], offsets);
    return result;
  }
};

class Outer : public Function<Outer> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& left, const at::Tensor& right,
                          const at::Tensor& offsets) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    save_tensors(ctx, SavedProduct{.left = left, .right = right, .offsets = offsets});
    return grouped_outer(left, right, offsets);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto [left, right, offsets] = saved_tensors<SavedProduct>(ctx);
    variable_list result(3);
    if (ctx->needs_input_grad(0)) {
      result[0] = grouped_matmul(right, grads[0].transpose(1, 2), offsets);
    }
    if (ctx->needs_input_grad(1)) result[1] = grouped_matmul(left, grads[0], offsets);
    return result;
  }
};

struct SavedOffsets {
  at::Tensor offsets;
  auto fields() { return std::tie(offsets); }
};

class Sum : public Function<Sum> {
 public:
  static constexpr bool is_traceable = true;

  static Variable forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& offsets,
                          at::ScalarType dtype) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    save_tensors(ctx, SavedOffsets{offsets});
    ctx->saved_data["dtype"] = static_cast<int64_t>(rows.scalar_type());
    ctx->saved_data["rows"] = rows.sym_size(0);
    return grouped_sum(rows, offsets, dtype);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
    const c10::SymInt rows = ctx->saved_data["rows"].toSymInt();
    return {spread(grads[0], saved_tensors<SavedOffsets>(ctx).offsets, rows).to(dtype), {}, {}};
  }
};

at::Tensor matmul_autograd(const at::Tensor& rows, const at::Tensor& matrices,
                           const at::Tensor& offsets) {
  return Matmul::apply(rows, matrices, offsets);
}

at::Tensor outer_autograd(const at::Tensor& left, const at::Tensor& right,
                          const at::Tensor& offsets) {
  return Outer::apply(left, right, offsets);
}

at::Tensor sum_autograd(const at::Tensor& rows, const at::Tensor& offsets, at::ScalarType dtype) {
  return Sum::apply(rows, offsets, dtype);
}

}  // namespace

at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& matrices,
                          const at::Tensor& offsets) {
  static const CoreOp<decltype(matmul_device)> op("baraquant::_grouped_matmul");
  return op(rows, matrices, offsets);
}

at::Tensor grouped_outer(const at::Tensor& left, const at::Tensor& right,
                         const at::Tensor& offsets) {
  static const CoreOp<decltype(outer_device)> op("baraquant::_grouped_outer");
  return op(left, right, offsets);
}

at::Tensor grouped_sum(const at::Tensor& rows, const at::Tensor& offsets, at::ScalarType dtype) {
  static const CoreOp<decltype(sum_device)> op("baraquant::_grouped_sum");
  return op(rows, offsets, dtype);
}

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  define(m, "_grouped_matmul(Tensor rows, Tensor matrices, Tensor offsets) -> Tensor");
  define(m, "_grouped_outer(Tensor left, Tensor right, Tensor offsets) -> Tensor");
  define(m, "_grouped_sum(Tensor rows, Tensor offsets, ScalarType dtype) -> Tensor");
}

TORCH_LIBRARY_IMPL(baraquant, CPU, m) {
  m.impl("_grouped_matmul", &matmul_device);
  m.impl("_grouped_outer", &outer_device);
  m.impl("_grouped_sum", &sum_device);
}
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) {
  m.impl("_grouped_matmul", &matmul_device);
  m.impl("_grouped_outer", &outer_device);
  m.impl("_grouped_sum", &sum_device);
}
TORCH_LIBRARY_IMPL(baraquant, Meta, m) {
  m.impl("_grouped_matmul", &matmul_meta);
  m.impl("_grouped_outer", &outer_meta);
  m.impl("_grouped_sum", &sum_meta);
}
TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {
  m.impl("_grouped_matmul", &matmul_autograd);
  m.impl("_grouped_outer", &outer_autograd);
  m.impl("_grouped_sum", &sum_autograd);
}

}  // namespace baraquant::int8_mm
