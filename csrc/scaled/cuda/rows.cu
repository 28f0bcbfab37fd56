// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/cuda/rows.cuh"

#include "scaled/cuda/kernels.h"

namespace baraquant::scaled {

template <typename T>
void rows_cuda(const RowsParams<T>& args, const Place& place) {
  args.random.state ? launch_rows<T, true>(args, place.multiprocessors, place.stream)
                    : launch_rows<T, false>(args, place.multiprocessors, place.stream);
}

template void rows_cuda<float>(const RowsParams<float>&, const Place&);
template void rows_cuda<double>(const RowsParams<double>&, const Place&);
template void rows_cuda<Float16>(const RowsParams<Float16>&, const Place&);
template void rows_cuda<BFloat16>(const RowsParams<BFloat16>&, const Place&);

}  // namespace baraquant::scaled
