// SPDX-License-Identifier: BSD-3-Clause
// The convolution of integers by copies: the padded image, then the patches under the kernel as rows
// of a matrix, then the integer product of each group. Depthwise convolutions add up one image for
// each position of the kernel instead. Every copy is torch's, so this runs on any device.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "frame/copies.h"
#include "frame/plan.h"
#include "int8_conv/launch.h"
#include "int8_mm/launch.h"

namespace baraquant::int8_conv {
namespace {

constexpr int64_t kPatchBytes = int64_t(1) << 28;  // of the patches that are copied at a time

// The input or the output as [N, D, H, W, channels].
at::Tensor channels_at_end(const ConvCall& call, const at::Tensor& tensor) {
  return call.channels_last ? tensor : tensor.permute({0, 2, 3, 4, 1});
}

at::Tensor inside_of(const at::Tensor& padded, const Shape& shape) {
  at::Tensor inside = padded;
  for (size_t d = 0; d < 3; ++d) {
    inside = inside.narrow(static_cast<int64_t>(d) + 1, shape.padding[d], shape.in[d]);
  }
  return inside;
}

// The image [N, D, H, W, C] with its padding.
at::Tensor padded_image(const ConvCall& call) {
  const Shape& shape = call.shape;
  const at::Tensor input = channels_at_end(call, call.input);
  if (!shape.is_padded()) return contiguous(input);
  const Space size = shape.padded();
  const std::vector<c10::SymInt> sizes{shape.images, size[0], size[1], size[2], shape.all_inputs()};
  const at::Tensor image = filled(sizes, 0, input.options());
  if (call.zero_point.defined()) copy_into(image, call.zero_point.expand(image.sizes()));
  copy_into(inside_of(image, shape), input);
  return image;
}

// The values [n, *out, *kernel, C / groups] under the kernel, of one group, as a view.
at::Tensor patches(const at::Tensor& image, const Shape& shape, int64_t group) {
  const auto strides = image.strides();
  std::vector<int64_t> sizes{image.size(0)}, steps{strides[0]};
  for (size_t d = 0; d < 3; ++d) {
    sizes.push_back(shape.out[d]);
    steps.push_back(shape.stride[d] * strides[d + 1]);
  }
  for (size_t d = 0; d < 3; ++d) {
    sizes.push_back(shape.kernel[d]);
    steps.push_back(shape.dilation[d] * strides[d + 1]);
  }
  sizes.push_back(shape.inputs);
  steps.push_back(1);
  return image.as_strided(sizes, steps, image.storage_offset() + group * shape.inputs);
}

// Calls compute(to) with a contiguous tensor [n, *out, channels] for the outputs of some images and
// channels: with a part of the output where that is contiguous, else with one that is copied there.
template <typename Compute>
void write_output(const ConvCall& call, int64_t first, int64_t n, int64_t channel, int64_t channels,
                  const Compute& compute) {
  const at::Tensor output =
      channels_at_end(call, call.output).narrow(0, first, n).narrow(-1, channel, channels);
  if (output.is_contiguous()) return compute(output);
  const at::Tensor to = at::empty(output.sizes(), output.options());
  compute(to);
  copy_into(output, to);
}

at::Tensor of_group(const at::Tensor& tensor, const Shape& shape, int64_t group) {
  return tensor.defined() ? tensor.narrow(0, group * shape.outputs, shape.outputs) : tensor;
}

void multiply(const ConvCall& call, const at::Tensor& image, int64_t first, int64_t group) {
  const Shape& shape = call.shape;
  const int64_t n = image.size(0), rows = n * shape.pixels();
  int8_mm::ProductCall product;
  product.input = contiguous(patches(image, shape, group)).view({rows, shape.depth()});
  product.weight = of_group(call.weight, shape, group).view({shape.outputs, shape.depth()});
  product.input_scale = call.input_scale;
  product.weight_scale = of_group(call.weight_scale, shape, group);
  product.bias = of_group(call.bias, shape, group);
  product.zero_point = call.zero_point;
  product.weight_sum = of_group(call.weight_sum, shape, group);
  product.has_zero_point = call.zero_point.defined();
  write_output(call, first, n, group * shape.outputs, shape.outputs, [&](const at::Tensor& to) {
    product.output = to.view({rows, shape.outputs});
    int8_mm::kernels(image).product(product);
  });
}

// The sums [n, *out, groups, outputs] of a depthwise convolution.
at::Tensor depthwise_sums(const ConvCall& call, const at::Tensor& image) {
  const Shape& shape = call.shape;
  const int64_t positions = volume(shape.kernel);
  std::vector<int64_t> sizes{image.size(0)};
  sizes.insert(sizes.end(), shape.out.begin(), shape.out.end());
  sizes.insert(sizes.end(), {shape.groups, shape.outputs});
  const auto options = image.options().dtype(at::kInt);
  const bool planned = only_planned([&] {
    return KernelPlan{.name = "addcmul",
                      .backend = image.is_cuda() ? "cuda" : "cpu",
                      .architecture = "torch",
                      .compute_dtype = "int32"};
  });
  if (planned) return at::empty(sizes, options);
  Shape whole = shape;  // one group that has all channels
  whole.inputs = shape.groups;
  const at::Tensor values = patches(image, whole, 0).flatten(4, 6);  // [n, *out, positions, C]
  const at::Tensor weight = call.weight.to(at::kInt).view({shape.groups, shape.outputs, positions});
  at::Tensor sums = at::zeros(sizes, options);
  for (int64_t p = 0; p < positions; ++p) {
    sums.addcmul_(values.select(4, p).unsqueeze(-1).to(at::kInt), weight.select(2, p));
  }
  if (call.zero_point.defined()) {
    sums.sub_(call.weight_sum.view({shape.groups, shape.outputs}).mul(call.zero_point));
  }
  return sums;
}

void add_up(const ConvCall& call, const at::Tensor& image, int64_t first) {
  const Shape& shape = call.shape;
  const int64_t n = image.size(0), rows = n * shape.pixels(), outputs = shape.all_outputs();
  int8_mm::RescaleCall rescale{.sums = depthwise_sums(call, image).view({rows, outputs}),
                               .input_scale = call.input_scale,
                               .weight_scale = call.weight_scale,
                               .bias = call.bias,
                               .output = {}};
  write_output(call, first, n, 0, outputs, [&](const at::Tensor& to) {
    rescale.output = to.view({rows, outputs});
    int8_mm::kernels(image).rescale(rescale);
  });
}

}  // namespace

void convolve_by_patches(const ConvCall& call) {
  const Shape& shape = call.shape;
  const at::Tensor image = padded_image(call);
  // A sum of a depthwise convolution takes as many bytes as four elements of a patch.
  const int64_t bytes =
      shape.pixels() *
      (shape.is_depthwise() ? 4 * shape.all_outputs() : std::max<int64_t>(shape.depth(), 1));
  const int64_t at_a_time = std::clamp<int64_t>(kPatchBytes / bytes, 1, shape.images);
  for (int64_t first = 0; first < shape.images; first += at_a_time) {
    const at::Tensor part = image.narrow(0, first, std::min(at_a_time, shape.images - first));
    if (shape.is_depthwise()) {
      add_up(call, part, first);
      continue;
    }
    for (int64_t group = 0; group < shape.groups; ++group) multiply(call, part, first, group);
  }
}

}  // namespace baraquant::int8_conv
