// SPDX-License-Identifier: BSD-3-Clause
// What a call of <baraquant/ops.h> on a few values costs the host, beside the calls of namespace at.
//
//     cpp_calls DEVICE REPEATS ROUNDS
//
// Each round takes the calls in an order of its own. Prints a line for each call: case, mode, name,
// and the median of its seconds over the rounds.
#include <ATen/ATen.h>
#include <baraquant/ops.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kLow = -128, kHigh = 127;
constexpr int64_t kCount = 64;

using Call = std::function<at::Tensor(const at::Tensor&)>;
using Calls = std::vector<std::pair<std::string, Call>>;

struct Case {
  std::string name;
  Calls calls;
};

// A device's queue is empty after that.
void wait_for(const at::Tensor& x) {
  if (!x.is_cpu()) x.select(0, 0).item();
}

double measure(const std::function<void()>& call, int repeats, const at::Tensor& x) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  wait_for(x);
  return elapsed.count() / repeats;
}

double median(std::vector<double>& samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

std::vector<Case> cases(const at::TensorOptions& options) {
  const at::Tensor scale = at::full({1}, 0.02, options);
  const at::Tensor zero = at::zeros({1}, options.dtype(at::kInt));
  const at::Tensor scales = scale.expand({kCount}).contiguous();
  const at::Tensor zeros = zero.expand({kCount}).contiguous();
  const Call clamp = [](const at::Tensor& x) { return at::clamp(x, kLow, kHigh); };
  return {
      {"per_tensor, numbers",
       {{"baraquant",
         [](const at::Tensor& x) {
           return baraquant::fake_quantize_per_tensor(x, 0.02, 0, kLow, kHigh);
         }},
        {"PyTorch",
         [](const at::Tensor& x) {
           return at::fake_quantize_per_tensor_affine(x, 0.02, 0, kLow, kHigh);
         }},
        {"at::clamp", clamp}}},
      {"per_tensor, tensors",
       {{"baraquant",
         [=](const at::Tensor& x) {
           return baraquant::fake_quantize_per_tensor(x, scale, zero, kLow, kHigh);
         }},
        {"PyTorch",
         [=](const at::Tensor& x) {
           return at::fake_quantize_per_tensor_affine(x, scale, zero, kLow, kHigh);
         }},
        {"at::clamp", clamp}}},
      {"per_channel(0)",
       {{"baraquant",
         [=](const at::Tensor& x) {
           return baraquant::fake_quantize_per_channel(x, scales, zeros, 0, kLow, kHigh);
         }},
        {"PyTorch",
         [=](const at::Tensor& x) {
           return at::fake_quantize_per_channel_affine(x, scales, zeros, 0, kLow, kHigh);
         }},
        {"at::clamp", clamp}}},
  };
}

void compare(const Case& measured, const std::string& mode, const at::Tensor& x, int repeats,
             int rounds) {
  const at::Tensor grad = at::ones_like(x);
  const bool is_backward = mode == "forward + backward";
  std::vector<std::function<void()>> calls;
  for (const auto& [name, call] : measured.calls) {
    calls.emplace_back([&, call = call] {
      const at::Tensor y = call(x);
      if (is_backward) torch::autograd::grad({y}, {x}, {grad});
    });
  }
  std::vector<std::vector<double>> samples(calls.size());
  std::vector<size_t> order(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    order[i] = i;
    measure(calls[i], repeats, x);
  }
  std::mt19937 random(0);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) samples[i].push_back(measure(calls[i], repeats, x));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    std::cout << measured.name << '\t' << mode << '\t' << measured.calls[i].first << '\t'
              << median(samples[i]) << '\n';
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const at::TensorOptions options = at::device(at::Device(arguments[1])).dtype(at::kFloat);
  const int repeats = std::stoi(arguments[2]), rounds = std::stoi(arguments[3]);
  const at::Tensor x = at::randn({kCount}, options);
  const at::Tensor recorded = x.clone().requires_grad_();
  for (const Case& measured : cases(options)) {
    {
      const at::NoGradGuard guard;
      compare(measured, "no grad", x, repeats, rounds);
    }
    compare(measured, "grad recorded", recorded, repeats, rounds);
    compare(measured, "forward + backward", recorded, repeats, rounds);
  }
}
