// SPDX-License-Identifier: BSD-3-Clause
#include "scaled/cuda/columns.cuh"

#include "scaled/cuda/kernels.h"

namespace baraquant::scaled {

template <typename T>
void columns_cuda(const ColumnsParams<T>& args, const Place& place) {
  args.random.state ? launch_columns<T, true>(args, place.multiprocessors, place.stream)
                    : launch_columns<T, false>(args, place.multiprocessors, place.stream);
}

template void columns_cuda<float>(const ColumnsParams<float>&, const Place&);
template void columns_cuda<double>(const ColumnsParams<double>&, const Place&);
template void columns_cuda<Float16>(const ColumnsParams<Float16>&, const Place&);
template void columns_cuda<BFloat16>(const ColumnsParams<BFloat16>&, const Place&);

}  // namespace baraquant::scaled
