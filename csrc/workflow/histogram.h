// SPDX-License-Identifier: BSD-3-Clause
// A histogram of floats whose bins are defined by the bits of the values.
//
// A bin holds the values that share their sign, their exponent and the first six bits of their
// mantissa. Its width is between 1/128 and 1/64 of its values, whatever their size. The counts do not
// depend on the order of the data.
#pragma once

#include <ATen/core/Tensor.h>

namespace baraquant::workflow {

// The lower edge, the upper edge and the count of bins, ascending: float64 `[B]` each, on the CPU.
struct Bins {
  at::Tensor low, high, count;
};

class Histogram {
 public:
  explicit Histogram(at::Device device);
  // Count floating values of any shape, if `where` (one bool) is true.
  void add(const at::Tensor& values, const at::Tensor& where);
  // The nonempty bins; infinities and NaN are left out.
  Bins bins() const;

 private:
  at::Tensor counts_;
};

// The value below which `fraction` of all lie, if a bin's values are spread evenly.
double quantile(const Bins& bins, double fraction);

// The bins of the absolute values (the two signs stay separate bins).
Bins magnitudes(const Bins& bins);

// The sum of the squared quantization errors for each candidate: scales and zero points `[S]`. It is
// exact if values are spread evenly within their bin.
at::Tensor squared_error(const Bins& bins, const at::Tensor& scale, const at::Tensor& zero_point,
                         int64_t quant_min, int64_t quant_max);

}  // namespace baraquant::workflow
