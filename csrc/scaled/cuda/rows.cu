// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/cuda/rows.cuh"

#include "scaled/cuda/kernels.h"

namespace baraquant::scaled {

template <typename T>
void rows_cuda(const RowsParams<T>& args, const Place& place) {
  args.random.state ? launch_rows<T, true>(args, place.multiprocessors, place.stream)
                    : launch_rows<T, false>(args, place.multiprocessors, place.stream);
}

template <typename T>
void maxima_cuda(const Matrix<T>& x, const ComputeType<T>* factor, ComputeType<T>* maxima,
                 const Place& place) {
  launch_maxima(x, factor, maxima, place.multiprocessors, place.stream);
}

#define BARAQUANT_ROWS(T)                                                                \
  template void rows_cuda<T>(const RowsParams<T>&, const Place&);                        \
  template void maxima_cuda<T>(const Matrix<T>&, const ComputeType<T>*, ComputeType<T>*, \
                               const Place&);
BARAQUANT_ROWS(float)
BARAQUANT_ROWS(double)
BARAQUANT_ROWS(Float16)
BARAQUANT_ROWS(BFloat16)

}  // namespace baraquant::scaled
