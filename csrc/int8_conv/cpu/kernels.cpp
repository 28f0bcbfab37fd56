// SPDX-License-Identifier: BSD-3-Clause
// The convolution of integers on the CPU: the image is padded and laid out anew once, the product
// packs its rows straight from there.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "frame/cpu_plan.h"
#include "frame/dtypes.h"
#include "frame/elements.h"
#include "int8_conv/cpu/depthwise.h"
#include "int8_conv/cpu/rows.h"
#include "int8_conv/launch.h"
#include "int8_mm/cpu/select.h"

namespace baraquant::int8_conv {
namespace {

using int8_mm::Blocks;
using int8_mm::CpuKernel;
using int8_mm::Finish;
using int8_mm::Operands;
using int8_mm::Rescaling;

constexpr auto kParallel = [](int64_t count, int64_t grain, const auto& task) {
  at::parallel_for(0, count, grain, task);
};

template <typename C>
Rescaling<C> rescaling_of(const ConvCall& call) {
  Rescaling<C> r;
  r.input_scale.data = elements<C>(call.input_scale);
  r.has_zero_point = call.zero_point.defined();
  r.zero_point.data = elements<int32_t>(call.zero_point);
  r.weight_sum = elements<int32_t>(call.weight_sum);
  r.weight_scale = elements<C>(call.weight_scale);
  r.bias = elements<C>(call.bias);
  return r;
}

// The image (image.h): the input itself where that has the layout already.
class Image {
 public:
  Image(const ConvCall& call, const ImageLayout& layout) {
    const Source source{elements<uint8_t>(call.input), call.channels_last};
    data_ = source.data;
    if (layout.is_that_of(source)) return;
    memory_ = at::empty(layout.sizes(), call.input.options().dtype(at::kByte));
    const int32_t zero_point = call.zero_point.defined() ? *elements<int32_t>(call.zero_point) : 0;
    auto* const to = static_cast<uint8_t*>(memory_.mutable_data_ptr());
    write_image(layout, source, static_cast<uint8_t>(zero_point), to, kParallel);
    data_ = to;
  }
  const uint8_t* data() const { return data_; }

 private:
  at::Tensor memory_;
  const uint8_t* data_;
};

// How much scratch memory an image takes.
int64_t image_bytes(const ConvCall& call, const ImageLayout& layout) {
  if (layout.is_that_of({nullptr, call.channels_last})) return 0;
  return layout.sizes()[0] * layout.group_bytes();
}

template <typename T>
void convolve_depthwise(const ConvCall& call, const ImageLayout& layout, T* output) {
  using C = ComputeType<T>;
  if (only_planned([&] {
        return cpu_plan<C>("int8_conv_depthwise", "16x" + std::to_string(int8_mm::kColumnBlock),
                           "int32", image_bytes(call, layout));
      })) {
    return;
  }
  const CpuIsa isa = cpu_isa();
  const Shape& shape = call.shape;
  const Image image(call, layout);
  const DepthwiseWeight weight(shape, layout, elements<int8_t>(call.weight));
  const Operands f{.m = shape.rows(), .n = shape.all_outputs()};
  const Finish<T> finish(f, rescaling_of<C>(call), output, int8_mm::InputOffset{});
  const FinishConv<T> write(finish, shape, call.channels_last, output);
  if (call.input.scalar_type() == at::kByte) {
    depthwise(shape, layout, image.data(), weight, write, isa, kParallel);
  } else {
    depthwise(shape, layout, reinterpret_cast<const int8_t*>(image.data()), weight, write, isa,
              kParallel);
  }
}

template <typename T>
void convolve(const ConvCall& call, T* output) {
  using C = ComputeType<T>;
  const Shape& shape = call.shape;
  const ImageLayout layout(shape);
  if (shape.is_depthwise()) return convolve_depthwise(call, layout, output);
  const CpuIsa isa = cpu_isa();
  const CpuKernel& kernel = int8_mm::kernel_of(isa);
  const int threads = at::get_num_threads();
  Operands f{shape.rows(),
             shape.outputs,
             shape.depth(),
             nullptr,
             call.input.scalar_type() == at::kByte,
             elements<int8_t>(call.weight)};
  f.wants_weight_sums = call.zero_point.defined() && !call.weight_sum.defined();
  const Blocks blocks(f, kernel, threads);
  if (only_planned([&] {
        return cpu_plan<C>(kernel.name, blocks.tile(kernel), "int32",
                           blocks.scratch_bytes(threads) + image_bytes(call, layout));
      })) {
    return;
  }
  const Image image(call, layout);
  Rescaling<C> r = rescaling_of<C>(call);
  const int64_t to_group = shape.outputs * (call.channels_last ? 1 : shape.pixels());
  for (int64_t group = 0; group < shape.groups; ++group) {
    const Finish<T> finish(f, r, nullptr, kernel.input_offset);
    const FinishConv<T> write(finish, shape, call.channels_last, output + group * to_group);
    const PatchRows rows(shape, layout, image.data() + group * layout.group_bytes(), f.is_unsigned,
                         call.channels_first);
    int8_mm::multiply_rows(f, rows, write, isa, kernel, blocks, kParallel);
    f.choose_group(1);
    r.choose_group(1, shape.outputs);
  }
}

}  // namespace

bool keeps_channels_first(const Shape& shape) { return reorders_patches(shape); }

bool finds_sums_on_cpu(const Shape& shape) { return !shape.is_depthwise(); }

at::Tensor channels_last_copy(const at::Tensor& weight) {
  const at::Tensor last = weight.movedim(1, -1);
  const at::Tensor copy = at::empty(last.sizes(), weight.options());
  const int64_t outputs = weight.size(0), channels = weight.size(1);
  const int64_t size = weight.numel() / outputs;
  const auto* const from = static_cast<const uint8_t*>(weight.const_data_ptr());
  auto* const to = static_cast<uint8_t*>(copy.mutable_data_ptr());
  constexpr int64_t kBytes = int64_t(1) << 16;  // the fewest of one task
  const CpuIsa isa = cpu_isa();
  kParallel(outputs, kBytes / (size + 1) + 1, [&](int64_t begin, int64_t end) {
    run_on_isa(isa, [&]() __attribute__((always_inline)) {
      for (int64_t n = begin; n < end; ++n) {
        transpose_rows(from + n * size, (outputs - n) * size, channels, size / channels,
                       to + n * size);
      }
    });
  });
  return copy;
}

void convolve_on_cpu(const ConvCall& call) {
  with_floating_type(call.output.scalar_type(), [&]<typename T>(Type<T>) {
    convolve<T>(call, static_cast<T*>(call.output.mutable_data_ptr()));
  });
}

}  // namespace baraquant::int8_conv
