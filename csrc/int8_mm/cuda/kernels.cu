// SPDX-License-Identifier: BSD-3-Clause
// From the ops to the CUDA kernels: selects a kernel, takes scratch memory from PyTorch, and
// launches on the current stream of the tensors' device. Nothing is kept between calls.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "few_rows/few_rows.cuh"
#include "few_rows/warpgroup_rows.cuh"
#include "frame/cuda_plan.cuh"
#include "int8_mm/cuda/hopper/instances.h"
#include "int8_mm/cuda/kernels.h"
#include "int8_mm/cuda/select.h"
#include "int8_mm/cuda/unaligned.cuh"
#include "int8_mm/launch.h"
#include "machine/pack.cuh"

namespace baraquant::int8_mm {

namespace {

// The kernels of each row of kHopperTiles and of kGroupedTiles.
#ifdef BARAQUANT_WITH_CUTLASS
constexpr bool kWithHopper = true;

const hopper::Kernels& kernels_on_hopper(bool is_grouped, int tile) {
  const auto find = [&]<size_t... i, size_t... j>(std::index_sequence<i...>,
                                                  std::index_sequence<j...>) {
    using Get = const hopper::Kernels& (*)();
    constexpr Get kOfTile[] = {&hopper::hopper_kernels<kHopperTiles[i].tile>...};
    constexpr Get kOfGroups[] = {&hopper::grouped_kernels<kGroupedTiles[j].tile>...};
    return is_grouped ? kOfGroups[tile] : kOfTile[tile];
  };
  return find(std::make_index_sequence<std::size(kHopperTiles)>(),
              std::make_index_sequence<std::size(kGroupedTiles)>())();
}
#else
constexpr bool kWithHopper = false;

const hopper::Kernels& kernels_on_hopper(bool, int) {
  TORCH_INTERNAL_ASSERT(false, "no product takes a kernel that was not built");
}
#endif

// For tests and benchmarks: the index of the kernel that every product must take, or -1.
std::atomic<int> forced{-1};

// If there are at least this many rows, those that are not aligned to 16 bytes are copied for
// Hopper's kernels: measured on an H200, the copies and the product together then take less time
// than a generic kernel.
constexpr int64_t kMinCopiedInputs = 5, kMinCopiedWeights = 17;

struct Chip {
  int device, multiprocessors, major, minor;
};

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

Chip current_chip() {
  const int device = c10::cuda::current_device();
  const Chip chip{device, attribute(cudaDevAttrMultiProcessorCount, device),
                  attribute(cudaDevAttrComputeCapabilityMajor, device),
                  attribute(cudaDevAttrComputeCapabilityMinor, device)};
  TORCH_CHECK_NOT_IMPLEMENTED(
      chip.major >= 8,
      "baraquant: the integer matrix product needs a GPU of compute capability 8.0 (Ampere) or "
      "later, but cuda:",
      device, " has ", chip.major, ".", chip.minor,
      ". Use such a GPU, or move the tensors to the CPU with .cpu()");
  return chip;
}

at::Tensor scratch(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().device(at::kCUDA).dtype(at::kByte));
}

// The offsets of the parts of a Hopper product's scratch memory.
struct HopperScratch {
  int64_t input = 0, weight = 0, zero_point = 0, weight_sum = 0, output = 0, workspace = 0;
  int64_t bytes = 0;

  // Returns the offset of a part; if it is not there, it takes no memory.
  int64_t add(int64_t part, bool is_there) {
    const int64_t offset = bytes;
    if (is_there) bytes += divide_up(part, 256) * 256;
    return offset;
  }
};

// TMA reads and writes rows that are aligned to 16 bytes. If the rows of an operand are not, they
// are copied to rows that are, padded with zeros, which add nothing to a sum. If the rows of the
// output are not, the kernel writes rows that are, which are made dense at the end. An unsigned
// input is made signed first.
template <typename T>
class HopperProduct {
 public:
  HopperProduct(const ProductParams<T>& args, const Chip& chip, int tile)
      : kernel_(kernels_on_hopper(args.operands.is_grouped(), tile).of[hopper::kOutputIndex<T>]),
        given_(args.operands),
        makes_signed_(given_.is_unsigned),
        makes_sums_(given_.is_unsigned && args.rescaling.weight_sum == nullptr) {
    const Operands& f = given_;
    call_.operands = f;
    call_.operands.k = divide_up(f.k, kChunk) * kChunk;
    call_.rescaling = args.rescaling;
    call_.output = args.output;
    call_.output_stride = divide_up(f.n, kAligned) * kAligned;
    call_.device = chip.device;
    call_.multiprocessors = chip.multiprocessors;
    call_.stream = c10::cuda::getCurrentCUDAStream();
    pads_input_ = !has_aligned_rows(f.input, f.k);
    pads_weight_ = !has_aligned_rows(f.weight, f.k);
    makes_dense_ = call_.output_stride != f.n || !is_aligned(args.output, 16);
    const int64_t depth = call_.operands.k, width = call_.output_stride;
    offsets_.input = offsets_.add(f.m * depth, pads_input_ || makes_signed_);
    offsets_.weight = offsets_.add(f.weight_rows() * depth, pads_weight_);
    offsets_.zero_point = offsets_.add(f.m * int64_t(sizeof(int32_t)), makes_signed_);
    offsets_.weight_sum = offsets_.add(f.weight_rows() * int64_t(sizeof(int32_t)), makes_sums_);
    offsets_.output = offsets_.add(f.m * width * int64_t(sizeof(T)), makes_dense_);
    offsets_.workspace = offsets_.add(kernel_.workspace_bytes(call_), true);
  }

  int64_t scratch_bytes() const { return offsets_.bytes; }

  void launch() {
    at::Tensor memory;  // the caching allocator frees it in the order of this stream
    if (offsets_.bytes > 0) memory = scratch(offsets_.bytes);
    auto* base = memory.defined() ? static_cast<uint8_t*>(memory.mutable_data_ptr()) : nullptr;
    call_.workspace = base + offsets_.workspace;
    if (pads_input_) call_.operands.input = padded(given_.input, given_.m, base + offsets_.input);
    if (pads_weight_) {
      call_.operands.weight = static_cast<const int8_t*>(
          padded(given_.weight, given_.weight_rows(), base + offsets_.weight));
    }
    if (makes_signed_) make_signed(base);
    void* const output = call_.output;
    if (makes_dense_) call_.output = base + offsets_.output;
    TORCH_CHECK(kernel_.launch(call_), "baraquant: CUTLASS could not launch the product: ",
                cudaGetErrorString(cudaGetLastError()));
    if (makes_dense_) {
      launch_make_dense(call_.output, call_.output_stride, call_.operands.m, call_.operands.n,
                        sizeof(T), output, call_.stream);
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }

 private:
  static constexpr int64_t kAligned = 16 / sizeof(T);

  const void* padded(const void* rows, int64_t count, uint8_t* result) {
    launch_pad_rows(rows, count, given_.k, result, call_.stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return result;
  }

  void make_signed(uint8_t* base) {
    Operands& f = call_.operands;
    Rescaling<float>& r = call_.rescaling;
    auto* zero_point = reinterpret_cast<int32_t*>(base + offsets_.zero_point);
    launch_make_signed(f, r.zero_point, base + offsets_.input, zero_point, call_.stream);
    if (makes_sums_) {
      auto* sums = reinterpret_cast<int32_t*>(base + offsets_.weight_sum);
      launch_weight_sums(f.weight, f.weight_rows(), f.k, sums, call_.stream);
      r.weight_sum = sums;
    }
    r.has_zero_point = true;
    r.limit_zero_points(/*is_unsigned=*/false);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    f.input = base + offsets_.input;
    f.is_unsigned = false;
    r.zero_point.data = zero_point;
  }

  hopper::Call call_;
  hopper::Kernel kernel_;
  Operands given_;
  HopperScratch offsets_;
  bool pads_input_, pads_weight_, makes_signed_, makes_sums_, makes_dense_;
};

template <typename T>
bool allows_hopper(const ProductParams<T>& args, const Chip& chip) {
  const Operands& f = args.operands;
  if (!kWithHopper || chip.major != 9 || chip.minor != 0 || sizeof(T) == 8) return false;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const bool fits = f.m <= kMax && f.weight_rows() <= kMax && f.k > 0;
  const int64_t rows = divide_up(f.m, f.groups);  // rows that share a weight, on average
  const bool aligned = has_aligned_rows(f.input, f.k) && has_aligned_rows(f.weight, f.k);
  const bool repays_copies = rows >= kMinCopiedInputs && f.n >= kMinCopiedWeights;
  // The sums of the weight must be computed first: for few rows that takes as long as the product.
  const bool finds_sums = f.is_unsigned && args.rescaling.weight_sum == nullptr && rows < 128;
  return fits && (aligned || repays_copies) && !finds_sums;
}

template <typename T>
Selection select(const ProductParams<T>& args, const Chip& chip) {
  const Operands& f = args.operands;
  const Situation situation{f.m,
                            f.n,
                            f.k,
                            chip.multiprocessors,
                            allows_hopper(args, chip),
                            f.is_grouped() ? f.groups : 0};
  const int index = forced.load(std::memory_order_relaxed);
  if (index < 0) return select(situation);
  const Selection selection = all_selections(kWithHopper)[static_cast<size_t>(index)];
  TORCH_CHECK_NOT_IMPLEMENTED(allows(situation, selection), "baraquant: the kernel ",
                              selection.name(), ", which was forced, does not take this product");
  return selection;
}

// What baraquant.plan() shows for a product by a kernel that has code for Hopper alone (`by_hopper`), or
// for all chips.
template <typename C>
KernelPlan plan_of(const Rescaling<C>& r, const std::string& name, std::string tile, bool by_hopper,
                   int64_t scratch_bytes = 0) {
  KernelPlan plan = cuda_plan<C>("int8_product_" + name, std::move(tile), scratch_bytes, "int32");
  if (r.wants_sums()) plan.compute_dtype = compute_name<int32_t>();
  if (by_hopper) plan.architecture += 'a';
  return plan;
}

// Whether one launch computes some products of an input, if it takes the kernel of each.
template <typename T>
bool share_launch(SpanOfProducts<T> products) {
  const Operands& first = products[0].operands;
  const auto is_like_first = [&](const ProductParams<T>& product) {
    const Operands& f = product.operands;
    if (f.is_grouped() || f.is_unsigned || f.is_packed() != first.is_packed()) return false;
    if (!f.is_packed()) return has_aligned_rows(f.input, f.k) && has_aligned_rows(f.weight, f.k);
    return f.packed.group_size == first.packed.group_size &&
           (f.packed.zero_point == nullptr) == (first.packed.zero_point == nullptr);
  };
  return sizeof(T) == 2 && std::all_of(products.begin(), products.end(), is_like_first);
}

struct Cuda {
  // In as few launches as can be.
  template <typename T>
  static void product(c10::ArrayRef<ProductParams<T>> products) {
    const Chip chip = current_chip();
    if constexpr (std::is_same_v<T, int32_t>) {  // by the kernels for float32, which write its bits
      for (const auto& [f, r, output] : products) {
        multiply<float>({f, r, reinterpret_cast<float*>(output)}, chip);
      }
    } else {
      while (!products.empty()) {
        const SpanOfProducts<T> next(products.data(),
                                     std::min(products.size(), size_t{kMostTogether}));
        const size_t done = multiply_together(next, chip) ? next.size() : 1;
        if (done == 1) multiply(next[0], chip);
        products = products.slice(done);
      }
    }
  }

  template <typename T>
  static void rescale(const int32_t* sums, int64_t m, int64_t n, const Rescaling<ComputeType<T>>& r,
                      T* output) {
    const bool planned = only_planned(
        [] { return cuda_plan<ComputeType<T>>("int8_rescale", std::to_string(kRescaledPack)); });
    if (planned) return;
    int multiprocessors = attribute(cudaDevAttrMultiProcessorCount, c10::cuda::current_device());
    const ProductParams<T> args{{.m = m, .n = n}, r, output};
    launch_rescale(sums, args, multiprocessors, c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

 private:
  // Some products in one launch, where that can be.
  template <typename T>
  static bool multiply_together(SpanOfProducts<T> products, const Chip& chip) {
    const Operands& first = products[0].operands;
    const auto is_vector = [&](const ProductParams<T>& args) {
      return select(args, chip).family == Family::kVector;
    };
    if (products.size() == 1 || !share_launch(products)) return false;
    const bool is_packed = first.is_packed();
    const bool takes = is_packed ? first.m <= few_rows::kTile
                                 : std::all_of(products.begin(), products.end(), is_vector);
    if (!takes) return false;
    if (only_planned([&] {
          return plan_of(products[0].rescaling, is_packed ? "packed" : "vector",
                         is_packed ? "16x128" : "1x512", false);
        })) {
      return true;
    }
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    if (is_packed) {
      launch_packed(products, /*arranged=*/nullptr, chip.multiprocessors, stream);
    } else {
      launch_vector(products, chip.multiprocessors, stream);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return true;
  }

  template <typename T>
  static void multiply(const ProductParams<T>& args, const Chip& chip) {
    if (args.operands.is_packed()) return packed(args, chip);
    const Selection selection = select(args, chip);
    if (selection.is_hopper()) {
      on_hopper(args, chip, selection);
    } else if (!only_planned([&] {
                 return plan_of(args.rescaling, selection.family_name(), selection.tile_name(),
                                false);
               })) {
      anywhere(args, chip, selection);
    }
  }

  template <typename T>
  static void packed(const ProductParams<T>& args, const Chip& chip) {
    const Operands& f = args.operands;
    const bool by_warpgroups = sizeof(T) < 8 && warpgroup_rows::takes(f.m);
    const int64_t bytes = by_warpgroups
                              ? warpgroup_rows::arranged_bytes(f.m, f.n, f.k, kPackedColumns,
                                                               sizeof(int8_t), chip.multiprocessors)
                              : 0;
    const bool planned = only_planned([&] {
      return plan_of(args.rescaling, "packed", by_warpgroups ? "64x128" : "16x128", by_warpgroups,
                     bytes);
    });
    if (planned) return;
    at::Tensor arranged;
    if (by_warpgroups) arranged = scratch(bytes);
    launch_packed(SpanOfProducts<T>(&args, 1),
                  by_warpgroups ? arranged.mutable_data_ptr() : nullptr, chip.multiprocessors,
                  c10::cuda::getCurrentCUDAStream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }

  template <typename T>
  static void on_hopper(const ProductParams<T>& args, const Chip& chip,
                        const Selection& selection) {
    if constexpr (sizeof(T) < 8) {
      HopperProduct<T> product(args, chip, selection.tile);
      const bool planned = only_planned([&] {
        return plan_of(args.rescaling, selection.family_name(), selection.tile_name(),
                       /*by_hopper=*/true, product.scratch_bytes());
      });
      if (!planned) product.launch();
    }
  }

  template <typename T>
  static void anywhere(const ProductParams<T>& args, const Chip& chip, const Selection& selection) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    if (selection.family == Family::kVector) {
      launch_vector(SpanOfProducts<T>(&args, 1), chip.multiprocessors, stream);
    } else {
      launch_generic(static_cast<GenericTile>(selection.tile), args, stream);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
};

void product_cuda(c10::ArrayRef<ProductCall> calls) {
  const c10::cuda::CUDAGuard guard(calls[0].output.device());
  Launch<Cuda>::product(calls);
}

void rescale_cuda(const RescaleCall& call) {
  const c10::cuda::CUDAGuard guard(call.output.device());
  Launch<Cuda>::rescale(call);
}

// Whether a kernel multiplies with the packed weight; else it is expanded first.
bool takes_packed_cuda(const ProductCall& call) {
  const int4::Packed packed = call.packed.operands();
  const int64_t rows = call.input.size(0);
  const bool by_warpgroups =
      call.output.scalar_type() != at::kDouble && warpgroup_rows::takes(rows);
  return (by_warpgroups || rows <= few_rows::kMaxRows) &&
         few_rows::has_whole_chunks(packed.columns, packed.group_size, kPackedColumns) &&
         is_aligned(call.input.const_data_ptr(), 16) && is_aligned(packed.values, 16);
}

void weight_sums_cuda(const at::Tensor& weight, const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(weight.device());
  if (only_planned([] { return cuda_plan<int32_t>("weight_sums", "1x512", 0, "int32"); })) return;
  launch_weight_sums(static_cast<const int8_t*>(weight.const_data_ptr()), sums.numel(),
                     weight.size(-1), static_cast<int32_t*>(sums.mutable_data_ptr()),
                     c10::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Selection& s : all_selections(kWithHopper)) names.push_back(s.name());
  return names;
}

void force_kernel(std::string_view name) {
  const std::vector<std::string> names = kernel_names();
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_CHECK_VALUE(name.empty() || found != names.end(), "baraquant: no kernel is named '", name,
                    "'; expected one of ", names, ", or an empty string for the usual selection");
  forced.store(name.empty() ? -1 : static_cast<int>(found - names.begin()));
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels{&product_cuda, &takes_packed_cuda,
                               [](const ProductCall&) { return false; }, &weight_sums_cuda,
                               &rescale_cuda};
  return kernels;
}

// Private ops, with which tests and benchmarks try every kernel.
TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  m.def("_int8_kernels() -> str[]", [] { return kernel_names(); });
  m.def("_force_int8_kernel(str name) -> ()", [](std::string_view name) { force_kernel(name); });
}

}  // namespace baraquant::int8_mm
