// SPDX-License-Identifier: BSD-3-Clause
// Prepares a grouped product on Hopper from the offsets on the device.
#include "int8_mm/cuda/groups.cuh"
#include "int8_mm/cuda/kernels.h"

namespace baraquant::int8_mm {

namespace {

constexpr int kThreads = 256, kMaxBlocks = 256;

// The output as bytes. Its rows have row_bytes each, and those after the last group are zero.
struct OutputBytes {
  uint8_t* base;
  int64_t row_bytes, row_elements;
  bool swapped;
};

// The first warp writes the table. Every warp finds the end of the last group; all threads write
// zeros after it.
__global__ void __launch_bounds__(kThreads)
    prepare_groups_kernel(const Operands f, const OutputBytes output, const GroupTable table) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool writes = blockIdx.x == 0 && threadIdx.x < 32;
  int64_t behind = 0;
  for (int64_t first = 0; first < f.groups; first += 32) {
    const LaneGroups lanes(f, first, behind);
    behind = lanes.behind;
    const int64_t g = first + lane;
    if (!writes || g >= f.groups) continue;
    const int64_t begin = lanes.rows.begin;
    const int32_t m = static_cast<int32_t>(lanes.rows.end - begin), n = static_cast<int32_t>(f.n);
    table.inputs[g] = static_cast<const uint8_t*>(f.input) + begin * f.k;
    table.weights[g] = f.weight + g * f.n * f.k;
    table.outputs[g] = output.base + begin * output.row_bytes;
    table.input_strides[g] = f.k;
    table.output_strides[g] = output.row_elements;
    table.shapes[g] = {output.swapped ? n : m, output.swapped ? m : n, static_cast<int32_t>(f.k)};
    table.begins[g] = static_cast<int32_t>(begin);
  }
  const int64_t thread = int64_t(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int64_t stop = f.m * output.row_bytes, step = int64_t(gridDim.x) * kThreads * 16;
  for (int64_t at = behind * output.row_bytes + thread * 16; at < stop; at += step) {
    *reinterpret_cast<uint4*>(output.base + at) = {};
  }
}

}  // namespace

void launch_prepare_groups(const Operands& operands, void* output, int64_t stride, int64_t size,
                           bool swapped, const GroupTable& table, cudaStream_t stream) {
  const OutputBytes bytes{static_cast<uint8_t*>(output), stride * size, stride, swapped};
  const int64_t words = divide_up(operands.m * bytes.row_bytes, int64_t(16) * kThreads);
  const auto blocks = static_cast<unsigned>(words < kMaxBlocks ? words : kMaxBlocks);
  prepare_groups_kernel<<<blocks, kThreads, 0, stream>>>(operands, bytes, table);
}

}  // namespace baraquant::int8_mm
