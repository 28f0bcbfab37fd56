// SPDX-License-Identifier: BSD-3-Clause
// <baraquant/ops.h> as a LibTorch program uses it. Prints a line for each result and for each error;
// test_ops.py compares them with Python's.
#include <ATen/ATen.h>
#include <baraquant/ops.h>
#include <torch/csrc/autograd/autograd.h>

#include <iostream>
#include <string>

#include "errors.h"

namespace {

// Numbers from 0 on, in steps of 0.37, as a tensor of that shape.
at::Tensor numbers(at::IntArrayRef sizes, double begin = -4.0) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kFloat) * 0.37 + begin).view(sizes);
}

// The values as exact text, whatever the dtype.
void show(const std::string& name, const at::Tensor& tensor) {
  std::cout << "result\t" << name << '\t' << toString(tensor.scalar_type());
  const at::Tensor values = tensor.to(at::kDouble).contiguous().view(-1);
  for (int64_t i = 0; i < values.numel(); ++i) {
    std::cout << '\t' << std::hexfloat << values[i].item<double>();
  }
  std::cout << '\n';
}

const at::Tensor kX = numbers({4, 8}), kScale = at::tensor({0.5f});
const at::Tensor kScales = numbers({4}, 0.25), kTokens = numbers({4, 1}, 0.25);
const at::Tensor kGroups = numbers({4, 2}, 0.25);
const at::Tensor kZeros = at::tensor({-3, 0, 2, 5}, at::kInt);

void affine() {
  using namespace baraquant;
  show("quantize tensor", quantize_per_tensor(kX, kScale, std::nullopt));
  show("quantize number", quantize_per_tensor(kX, 0.5, 3));
  show("quantize scale tensor", quantize_per_tensor(kX, kScale, 3, -8, 7));
  show("quantize uint8", quantize_per_channel(kX, kScales, kZeros + 128, 0, 0, 255, at::kByte));
  const at::Tensor q = quantize_per_channel(kX, kScales, kZeros, 0);
  show("quantize channel", q);
  show("dequantize channel", dequantize_per_channel(q, kScales, kZeros, 0));
  show("fake_quantize channel", fake_quantize_per_channel(kX, kScales, kZeros, 0, -8, 7));
  show("fake_quantize token", fake_quantize_per_token(kX, kTokens, std::nullopt));
  show("fake_quantize group", fake_quantize_per_group(kX, kGroups, std::nullopt, 4, -1, -8, 7));
}

void gradients() {
  const at::Tensor x = kX.clone().requires_grad_();
  const at::Tensor scales = kScales.clone().requires_grad_();
  const at::Tensor y = baraquant::fake_quantize_per_channel(x, scales, kZeros, 0, -8, 7);
  const auto found = torch::autograd::grad({y.sum()}, {x, scales});
  show("gradient of the input", found[0]);
  show("gradient of the scale", found[1]);
  const at::Tensor dy = at::ones_like(kX);
  const auto [dx, ds, dz] = baraquant::backward::fake_quantize_per_channel_backward_qparams(
      dy, kX, kScales, kZeros, 0, -8, 7);
  show("backward input", dx);
  show("backward scale", ds);
  show("backward zero point", dz);
}

void range() {
  const auto [scale, zero_point] = baraquant::choose_qparams_per_channel(kX, 0, -8, 7, false);
  show("choose scale", scale);
  show("choose zero point", zero_point);
  const auto [q, s, z] = baraquant::dynamic_range_quantize_per_token(kX);
  show("dynamic integers", q);
  show("dynamic scales", s);
  show("dynamic_fake_quantize", baraquant::dynamic_fake_quantize_per_group(kX, 4));
  const at::Tensor low = at::tensor({INFINITY}), high = at::tensor({-INFINITY});
  baraquant::observe_min_max_(kX, low, high);
  show("observed low", low);
  show("observed high", high);
}

void products() {
  const auto [w, sw, zw] = baraquant::dynamic_range_quantize_per_channel(numbers({3, 8}, -2), 0);
  const auto [q, s, z] = baraquant::dynamic_range_quantize_per_token(kX);
  show("int8_linear", baraquant::int8_linear(q, w, s, sw));
  const at::Tensor sums = baraquant::int8_product(q, w);
  show("int8_product", sums);
  show("rescale_product", baraquant::rescale_product(sums, s, sw));
  const at::Tensor line = q.reshape({1, 2, -1});
  const at::Tensor kernels = w.reshape({3, 2, 4});
  show("int8_conv", baraquant::int8_conv(line, kernels, kScale, sw));
  show("int8_conv options",
       baraquant::int8_conv(line, kernels, kScale, sw, numbers({3}), at::scalar_tensor(3, at::kInt),
                            std::nullopt, 2, 3, at::IntArrayRef{1}, 1, at::kHalf));
  show("quantized_linear", baraquant::quantized_linear(kX, w, sw));
  show("smoothquant_linear", baraquant::smoothquant_linear(q, w, sw, 0.5));
  show("static_quantized_linear", baraquant::static_quantized_linear(kX, w, sw, kScale));
  show("qat_linear", baraquant::qat_linear(kX, numbers({3, 8}, -2), numbers({3})));
}

void four_bits() {
  const at::Tensor w = numbers({3, 8}, -12);
  const auto [scale, factor, zero_point] = baraquant::choose_int4_qparams(w, 4, false);
  show("int4 scale", scale);
  show("int4 factor", factor);
  show("int4 zero point", zero_point);
  const at::Tensor packed = baraquant::quantize_int4(w, scale, factor, 4, zero_point);
  show("int4 packed", packed);
  const at::Tensor w8 = baraquant::expand_int4(packed, factor, 4, 8, zero_point);
  show("int4 expanded", w8);
  show("int4 repacked", baraquant::pack_int4(w8));
  const auto [q, s, z] = baraquant::dynamic_range_quantize_per_token(kX);
  show("int4_linear", baraquant::int4_linear(q, packed, s, scale, factor, 4));
  show("quantized_int4_linear",
       baraquant::quantized_int4_linear(kX, packed, scale, factor, 4, numbers({3}), zero_point));
  show("static_quantized_int4_linear",
       baraquant::static_quantized_int4_linear(kX, packed, scale, factor, 4, kScale));
}

void weight_only() {
  const at::Tensor w = at::arange(-12, 12, at::kChar).view({3, 8}), z = at::arange(6).view({3, 2});
  show("weight_only_linear", baraquant::weight_only_linear(kX, w, numbers({3})));
  show("weight_only_linear of groups",
       baraquant::weight_only_linear(kX, w, numbers({3, 2}), numbers({3}), z, 4));
}

void integer_backward() {
  const at::Tensor random = at::arange(1, 3), leaf = kX.detach().clone().requires_grad_();
  const auto [rows, row_scales] = baraquant::scaled_quantize_per_token(kX, at::arange(1.0f, 9.0f));
  show("scaled rows", rows);
  show("scaled row scales", row_scales);
  const auto [columns, scales] =
      baraquant::scaled_quantize_transposed(kX, at::arange(1.0f, 5.0f), random);
  show("scaled columns", columns);
  show("scaled column scales", scales);
  show("transpose_int8", baraquant::transpose_int8(columns));
  at::manual_seed(3);
  show("draw_random", baraquant::draw_random(kX, 2).slice(0, 1));
  const auto y = baraquant::qat_linear(leaf, numbers({3, 8}, -2), numbers({3}), true, -128, 127,
                                       -128, 127, "int8", "stochastic");
  y.sum().backward();
  show("gradient from integers", leaf.grad());
}

void errors() {
  using namespace baraquant;
  const at::Tensor integers = at::ones({4, 8}, at::kChar), weight = at::ones({3, 8}, at::kChar);
  show_error("scale shape", [] { fake_quantize_per_channel(kX, kScale, std::nullopt, 0); });
  show_error("axis", [] { quantize_per_channel(kX, kScales, std::nullopt, 2); });
  show_error("range", [] { quantize_per_tensor(kX, 0.5, 0, 7, -8); });
  show_error("number", [] { quantize_per_tensor(kX, -1.0, 0); });
  show_error("zero point", [] { quantize_per_tensor(kX, 0.5, 200); });
  show_error("dtype", [] { quantize_per_tensor(kX, 0.5, 0, -8, 7, at::kShort); });
  show_error("input dtype", [&] { fake_quantize_per_tensor(integers, 0.5, 0); });
  show_error("group", [] { fake_quantize_per_group(kX, kGroups, std::nullopt, 0); });
  show_error("sparse", [] { choose_qparams_per_tensor(kX.to_sparse()); });
  show_error("symmetric", [] { dynamic_fake_quantize_per_tensor(kX, 0, 1); });
  show_error("depth", [&] { int8_linear(integers, weight.narrow(1, 0, 4), kTokens, kScales); });
  show_error("weight", [] { quantized_linear(kX, kX, kScales); });
  show_error("factor", [] { scaled_quantize_per_token(kX, at::ones({7})); });
  show_error("random", [] { scaled_quantize_per_token(kX, at::ones({8}), at::ones({2})); });
  show_error("bytes", [] { transpose_int8(kX); });
  show_error("floating weight", [] { weight_only_linear(kX, kX, kScales); });
  show_error("count", [] { draw_random(kX, 0); });
  show_error("backward", [] {
    qat_linear(kX, numbers({3, 8}, -2), std::nullopt, true, -128, 127, -128, 127, "int4");
  });
  show_error("learned", [] {
    quantize_per_channel(kX, kScales.clone().requires_grad_(), std::nullopt, 0, -8, 7, at::kFloat);
  });
}

}  // namespace

int main() {
  affine();
  gradients();
  range();
  products();
  integer_backward();
  four_bits();
  weight_only();
  errors();
}
