// SPDX-License-Identifier: BSD-3-Clause
// The CPU kernels of the integer matrix family.
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>

#include "frame/cpu_plan.h"
#include "int8_mm/cpu/blocked.h"
#include "int8_mm/cpu/int_mm.h"
#include "int8_mm/cpu/select.h"
#include "int8_mm/launch.h"

namespace baraquant::int8_mm {
namespace {

constexpr auto kParallel = [](int64_t count, int64_t grain, const auto& task) {
  at::parallel_for(0, count, grain, task);
};

// Calls of(group, rows) for each group that has rows; returns the first row after the last group.
template <typename Of>
int64_t for_each_group(const Operands& f, const Of& of) {
  GroupRows rows;
  for (int64_t g = 0; g < f.groups; ++g) {
    rows = rows.next(f.ends[g], f.m);
    if (rows.begin < rows.end) of(g, rows);
  }
  return rows.end;
}

// One product that is not grouped.
template <typename T>
void multiply(const Operands& f, const Rescaling<ComputeType<T>>& r, T* output, CpuIsa isa,
              const Blocks& blocks) {
  if (takes_int_mm(f, isa)) {
    const at::Tensor sums = int_mm(static_cast<const int8_t*>(f.input), f.weight, f.m, f.n, f.k);
    return rescale_sums<T>(sums.const_data_ptr<int32_t>(), f, r, output, isa, kParallel);
  }
  product<T>(f, r, output, isa, kernel_of(isa), blocks, kParallel);
}

struct Cpu {
  template <typename T>
  static void product(c10::ArrayRef<ProductParams<T>> products) {
    for (const ProductParams<T>& one : products) multiply_one(one);
  }

  template <typename T>
  static void multiply_one(const ProductParams<T>& product) {
    const auto& [f, r, output] = product;
    const CpuIsa isa = cpu_isa();
    const CpuKernel& kernel = kernel_of(isa);
    const int threads = at::get_num_threads();
    const Blocks blocks(f, kernel, threads);  // for a plan of a grouped product: as if one group
    if (only_planned([&] {
          using Shown = std::conditional_t<std::is_same_v<T, int32_t>, T, ComputeType<T>>;
          if (takes_int_mm(f, isa)) return cpu_plan<Shown>("int_mm", "", "int32", 4 * f.m * f.n);
          return cpu_plan<Shown>(kernel.name, blocks.tile(kernel), "int32",
                                 blocks.scratch_bytes(threads));
        })) {
      return;
    }
    if (!f.is_grouped()) return multiply(f, r, output, isa, blocks);
    const int64_t end = for_each_group(f, [&](int64_t g, const GroupRows& rows) {
      Operands own = f;
      Rescaling<ComputeType<T>> own_r = r;
      own.choose_group(g);
      own_r.choose_group(g, f.n);
      own.input = static_cast<const uint8_t*>(f.input) + rows.begin * f.k;
      own_r.begin_at(rows.begin);
      own.m = rows.end - rows.begin;
      multiply(own, own_r, output + rows.begin * f.n, isa, Blocks(own, kernel, threads));
    });
    std::fill(output + end * f.n, output + f.m * f.n, T{});
  }

  // It expands a part of the weight at a time.
  static bool takes_packed(const ProductCall&) { return true; }

  // at::_int_mm alone needs them beforehand.
  static bool finds_sums(const ProductCall& call) {
    const Operands f{.m = call.input.size(0),
                     .k = call.input.size(1),
                     .is_unsigned = call.input.scalar_type() == at::kByte};
    return call.packed.values.defined() || !takes_int_mm(f, cpu_isa());
  }

  static void weight_sums(const at::Tensor& weight, const at::Tensor& sums) {
    const CpuIsa isa = cpu_isa();
    if (only_planned([&] { return cpu_plan<int32_t>("weight_sums", "1", "int32"); })) return;
    sum_rows(static_cast<const int8_t*>(weight.const_data_ptr()), sums.numel(), weight.size(-1),
             static_cast<int32_t*>(sums.mutable_data_ptr()), isa, kParallel);
  }

  template <typename T>
  static void rescale(const int32_t* sums, int64_t m, int64_t n, const Rescaling<ComputeType<T>>& r,
                      T* output) {
    const std::string tile = "1x" + std::to_string(kColumnBlock);
    if (only_planned([&] { return cpu_plan<ComputeType<T>>("int8_rescale", tile); })) return;
    rescale_sums<T>(sums, {.m = m, .n = n}, r, output, cpu_isa(), kParallel);
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels kernels{&Launch<Cpu>::product, &Cpu::takes_packed, &Cpu::finds_sums,
                               &Cpu::weight_sums, &Launch<Cpu>::rescale};
  return kernels;
}

// A private op, with which tests try at::_int_mm on machines where it is not chosen.
TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  m.def("_force_int_mm(bool forced) -> ()", [](bool forced) { int_mm_is_forced = forced; });
}

}  // namespace baraquant::int8_mm
