// SPDX-License-Identifier: BSD-3-Clause
// The convolution of integers below autograd, for CPU, CUDA and Meta. It checks, allocates, brings
// the tensors into the layouts that kernels read and launches. Meta stops before the launches.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>

#include "frame/copies.h"
#include "frame/dtypes.h"
#include "frame/outputs.h"
#include "frame/plan.h"
#include "int8_conv/checks.h"
#include "int8_conv/launch.h"
#include "int8_mm/launch.h"

namespace baraquant::int8_conv {
namespace {

// Whether tests want the copy of the patches on the CPU too.
std::atomic<bool> patches_are_forced{false};

// Returns the memory format that the strides of the input have. NB: suggest_memory_format() takes
// one image whose batch has any other stride for contiguous.
at::MemoryFormat format_of(const ConvArgs& args) {
  if (!args.is_batched() || args.space() == 1) return at::MemoryFormat::Contiguous;
  const auto last =
      args.space() == 2 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  const at::Tensor& input = args.input;
  if (input.is_contiguous(last) && !input.is_contiguous()) return last;
  return input.suggest_memory_format();
}

// Returns [N, C, *space] with three dimensions of space, as a view; of a tensor of channels_last
// [N, *space, C].
at::Tensor with_three(const at::Tensor& tensor, const ConvArgs& args, bool channels_last) {
  at::Tensor result = args.is_batched() ? tensor : tensor.unsqueeze(0);
  const int64_t first = channels_last ? 1 : 2;
  for (int64_t d = args.space(); d < 3; ++d) result = result.unsqueeze(first);
  return result;
}

at::Tensor channels_to_back(const at::Tensor& tensor) { return tensor.movedim(1, -1); }

at::Tensor vector(const at::Tensor& tensor) { return contiguous(tensor).view({tensor.numel()}); }

at::Tensor sums_of_weight(const ConvArgs& args, const at::Tensor& weight) {
  if (args.weight_sum) return contiguous(*args.weight_sum);
  const at::Tensor rows = weight.view({weight.size(0), weight.numel() / weight.size(0)});
  at::Tensor sums = at::empty({rows.size(0)}, rows.options().dtype(at::kInt));
  int8_mm::kernels(rows).weight_sums(rows, sums);
  return sums;
}

// Gives a call the weight in a layout that its kernel reads.
void take_weight(const ConvArgs& args, bool on_cpu, ConvCall& call) {
  const at::Tensor last = channels_to_back(args.weight);
  const bool lies_first = !last.is_contiguous() && args.weight.is_contiguous();
  call.channels_first = on_cpu && lies_first && keeps_channels_first(call.shape);
  if (call.channels_first) {
    call.weight = args.weight;
  } else if (on_cpu && lies_first && !is_planning()) {
    call.weight = channels_last_copy(args.weight);
  } else {
    call.weight = contiguous(last);
  }
  const int64_t first = call.channels_first ? 2 : 1;
  for (int64_t d = args.space(); d < 3; ++d) call.weight = call.weight.unsqueeze(first);
}

ConvCall prepare(const ConvArgs& args, bool on_cpu, bool channels_last, const at::Tensor& output) {
  ConvCall call;
  call.shape = shape_of(args);
  const at::Tensor from = channels_last ? channels_to_back(args.input) : args.input;
  call.input = with_three(contiguous(from), args, channels_last);
  call.channels_last = channels_last;
  take_weight(args, on_cpu, call);
  call.input_scale = vector(args.input_scale);
  call.weight_scale = contiguous(args.weight_scale);
  if (args.bias) call.bias = contiguous(cast(*args.bias, compute_dtype(args.output_dtype())));
  if (args.input_zero_point) {
    call.zero_point = vector(cast_zero_point(*args.input_zero_point, args.input.scalar_type()));
    if (args.weight_sum || !on_cpu || !finds_sums_on_cpu(call.shape)) {
      call.weight_sum = sums_of_weight(args, call.weight);
    }
  }
  call.output = with_three(channels_last ? channels_to_back(output) : output, args, channels_last);
  return call;
}

at::Tensor int8_conv_device(const ConvArgs& args) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor& input = args.input;
  const auto sizes = check_conv(args);
  const at::MemoryFormat format = format_of(args);
  const at::Tensor output =
      empty_dense(sizes, input.options().dtype(args.output_dtype()).memory_format(format));
  if (!has_work(output)) return output;
  const bool on_cpu = !input.is_cuda() && !patches_are_forced.load(std::memory_order_relaxed);
  const ConvCall call = prepare(args, on_cpu, format != at::MemoryFormat::Contiguous, output);
  on_cpu ? convolve_on_cpu(call) : convolve_by_patches(call);
  return output;
}

}  // namespace

void force_patches(bool forced) { patches_are_forced = forced; }

TORCH_LIBRARY_IMPL(baraquant, CPU, m) { m.impl("int8_conv", kernel_of<&int8_conv_device>); }
TORCH_LIBRARY_IMPL(baraquant, CUDA, m) { m.impl("int8_conv", kernel_of<&int8_conv_device>); }
TORCH_LIBRARY_IMPL(baraquant, Meta, m) { m.impl("int8_conv", kernel_of<&int8_conv_device>); }

}  // namespace baraquant::int8_conv
