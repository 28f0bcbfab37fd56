// SPDX-License-Identifier: BSD-3-Clause
// The grouped product on Hopper: CUTLASS's kernels for groups of products, whose sizes and pointers
// lie in a table on the device (GroupTable). The rest is as in gemm.cuh.
#pragma once

#include "int8_mm/cuda/hopper/instances.h"

#ifdef BARAQUANT_WITH_CUTLASS
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "int8_mm/cuda/hopper/launcher.cuh"
#include "int8_mm/cuda/kernels.h"

namespace baraquant::int8_mm::hopper {

template <typename T, typename Tile>
struct GroupedGemm {
  static constexpr bool swapped = Tile::swapped;
  using Output = Stored<T>;
  using Epilogue = EpilogueOf<T, Tile>;
  using Mainloop = MainloopOf<Tile, int{sizeof(typename Epilogue::SharedStorage)}>;
  using Shape = cute::Shape<int, int, int>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<Shape>,
                                                      Mainloop, Epilogue>;
  using Arguments = typename Kernel::Arguments;

  // CUTLASS reads the entries of GroupTable as these types.
  static_assert(sizeof(Shape) == sizeof(GroupTable::Shape));
  static_assert(sizeof(typename Kernel::InternalStrideA) == sizeof(int64_t));
  static_assert(sizeof(typename Kernel::InternalStrideB) == sizeof(int64_t));
  static_assert(sizeof(typename Kernel::InternalStrideD) == sizeof(int64_t));

  static int64_t table_bytes(const Call& call) {
    return divide_up(call.operands.groups * GroupTable::kBytesOfGroup, 256) * 256;
  }

  static Arguments arguments(const Call& call, const GroupTable& table) {
    const Operands& f = call.operands;
    const auto** inputs = reinterpret_cast<const int8_t**>(table.inputs);
    const auto** weights = reinterpret_cast<const int8_t**>(table.weights);
    Arguments a{};
    a.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    a.problem_shape.num_groups = static_cast<int>(f.groups);
    a.problem_shape.problem_shapes = reinterpret_cast<Shape*>(table.shapes);
    a.mainloop.ptr_A = swapped ? weights : inputs;
    a.mainloop.ptr_B = swapped ? inputs : weights;
    a.mainloop.dA = reinterpret_cast<typename Kernel::StrideA>(table.input_strides);
    a.mainloop.dB = reinterpret_cast<typename Kernel::StrideB>(table.input_strides);
    a.epilogue.thread = {call.rescaling, static_cast<int>(f.m), static_cast<int>(f.n),
                         a.problem_shape.num_groups, table.begins};
    a.epilogue.ptr_D = reinterpret_cast<Output**>(table.outputs);
    a.epilogue.dD = reinterpret_cast<typename Kernel::StrideD>(table.output_strides);
    // Tiles that are neighbours along m read the same rows of a group's weight.
    using Order = cutlass::gemm::kernel::detail::RasterOrderOptions;
    a.scheduler.raster_order = swapped ? Order::AlongN : Order::AlongM;
    a.hw_info.device_id = call.device;
    a.hw_info.sm_count = call.multiprocessors;
    return a;
  }

  static int64_t workspace_bytes(const Call& call) {
    const GroupTable table(nullptr, call.operands.groups);
    return table_bytes(call) +
           static_cast<int64_t>(Kernel::get_workspace_size(arguments(call, table)));
  }

  static bool launch(const Call& call) {
    const GroupTable table(call.workspace, call.operands.groups);
    launch_prepare_groups(call.operands, call.output, call.output_stride, sizeof(Output), swapped,
                          table, call.stream);
    if (cudaPeekAtLastError() != cudaSuccess) return false;
    void* const workspace = static_cast<uint8_t*>(call.workspace) + table_bytes(call);
    return Launcher<Kernel>::launch(arguments(call, table), workspace, call, /*early=*/false);
  }
};

template <GroupedTile tile>
const Kernels& grouped_kernels() {
  static constexpr Kernels kKernels = kernels_for_each_output<GroupedGemm, Tile<tile>>();
  return kKernels;
}

}  // namespace baraquant::int8_mm::hopper
#endif
