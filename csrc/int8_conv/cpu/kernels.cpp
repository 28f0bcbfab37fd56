// SPDX-License-Identifier: BSD-3-Clause
// The convolution of integers on the CPU: the image is padded and laid out anew once, the product
// packs its rows straight from there.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "frame/cpu_plan.h"
#include "frame/dtypes.h"
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

template <typename T>
const T* pointer(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

template <typename C>
Rescaling<C> rescaling_of(const ConvCall& call) {
  Rescaling<C> r;
  r.input_scale.data = pointer<C>(call.input_scale);
  r.has_zero_point = call.zero_point.defined();
  r.zero_point.data = pointer<int32_t>(call.zero_point);
  r.weight_sum = pointer<int32_t>(call.weight_sum);
  r.weight_scale = pointer<C>(call.weight_scale);
  r.bias = pointer<C>(call.bias);
  return r;
}

// The image (image.h): the input itself where that has the layout already.
class Image {
 public:
  Image(const ConvCall& call, const ImageLayout& layout) {
    const Source source{pointer<uint8_t>(call.input), call.channels_last};
    data_ = source.data;
    if (layout.is_that_of(source)) return;
    memory_ = at::empty(layout.sizes(), call.input.options().dtype(at::kByte));
    const int32_t zero_point = call.zero_point.defined() ? *pointer<int32_t>(call.zero_point) : 0;
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
  const DepthwiseWeight weight(shape, layout, pointer<int8_t>(call.weight));
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
             pointer<int8_t>(call.weight)};
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
    const PatchRows rows(shape, layout, image.data() + group * layout.group_bytes(), f.is_unsigned);
    int8_mm::multiply_rows(f, rows, write, isa, kernel, blocks, kParallel);
    f.choose_group(1);
    r.choose_group(1, shape.outputs);
  }
}

}  // namespace

void convolve_on_cpu(const ConvCall& call) {
  with_floating_type(call.output.scalar_type(), [&]<typename T>(Type<T>) {
    convolve<T>(call, static_cast<T*>(call.output.mutable_data_ptr()));
  });
}

}  // namespace baraquant::int8_conv
