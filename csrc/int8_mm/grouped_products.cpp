// SPDX-License-Identifier: BSD-3-Clause
// On the CPU there is one product for each group. On CUDA bfloat16 goes to torch's grouped product,
// which reads the offsets on the device. It has no kernel for other dtypes, nor for rows that do
// not begin at multiples of 16 bytes: then the host reads the offsets once, and waits for them.
#include "int8_mm/grouped_products.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/zeros.h>

#include "frame/dtypes.h"
#include "int8_mm/operands.h"

namespace baraquant::int8_mm {
namespace {

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

}  // namespace

at::Tensor grouped_matmul_device(const at::Tensor& rows, const at::Tensor& matrices,
                                 const at::Tensor& offsets) {
  if (rows.is_meta()) {
    return at::empty_symint({rows.sym_size(0), matrices.sym_size(2)}, rows.options());
  }
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

at::Tensor grouped_outer_device(const at::Tensor& left, const at::Tensor& right,
                                const at::Tensor& offsets) {
  if (left.is_meta()) {
    return at::empty_symint({offsets.sym_size(0), left.sym_size(1), right.sym_size(1)},
                            left.options());
  }
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

at::Tensor grouped_sum_device(const at::Tensor& rows, const at::Tensor& offsets,
                              at::ScalarType dtype) {
  if (rows.is_meta()) {
    return at::empty_symint({offsets.sym_size(0), rows.sym_size(1)}, rows.options().dtype(dtype));
  }
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

}  // namespace baraquant::int8_mm
