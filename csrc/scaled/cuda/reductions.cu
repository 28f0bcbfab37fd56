// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/cuda/reductions.cuh"

#include "scaled/cuda/kernels.h"

namespace baraquant::scaled {

template <typename T>
void maxima_cuda(const Matrix<T>& x, const ComputeType<T>* factor, ComputeType<T>* maxima,
                 const Place& place) {
  launch_maxima(x, factor, maxima, place.multiprocessors, place.stream);
}

template <typename T>
void sums_cuda(const Matrix<T>& x, ComputeType<T>* sums, const Place& place) {
  launch_sums(x, sums, place.stream);
}

template <typename C>
void total_cuda(const C* pieces, int64_t count, int64_t columns, C* result, const Place& place) {
  launch_total(pieces, count, columns, result, place.stream);
}

#define BARAQUANT_REDUCTIONS(T)                                                          \
  template void maxima_cuda<T>(const Matrix<T>&, const ComputeType<T>*, ComputeType<T>*, \
                               const Place&);                                            \
  template void sums_cuda<T>(const Matrix<T>&, ComputeType<T>*, const Place&);
BARAQUANT_REDUCTIONS(float)
BARAQUANT_REDUCTIONS(double)
BARAQUANT_REDUCTIONS(Float16)
BARAQUANT_REDUCTIONS(BFloat16)
template void total_cuda<float>(const float*, int64_t, int64_t, float*, const Place&);
template void total_cuda<double>(const double*, int64_t, int64_t, double*, const Place&);

}  // namespace baraquant::scaled
