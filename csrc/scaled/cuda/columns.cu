// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/cuda/columns.cuh"

#include "scaled/cuda/kernels.h"

namespace baraquant::scaled {

template <typename T>
void columns_cuda(const ColumnsParams<T>& args, const Place& place) {
  args.random.state ? launch_columns<T, true>(args, place.multiprocessors, place.stream)
                    : launch_columns<T, false>(args, place.multiprocessors, place.stream);
}

template <typename T>
void given_cuda(const GivenParams<T>& args, const Place& place) {
  launch_given<T>(args, place.multiprocessors, place.stream);
}

#define BARAQUANT_COLUMNS(T)                                            \
  template void columns_cuda<T>(const ColumnsParams<T>&, const Place&); \
  template void given_cuda<T>(const GivenParams<T>&, const Place&);
BARAQUANT_COLUMNS(float)
BARAQUANT_COLUMNS(double)
BARAQUANT_COLUMNS(Float16)
BARAQUANT_COLUMNS(BFloat16)

}  // namespace baraquant::scaled
