// SPDX-License-Identifier: BSD-3-Clause
// Serves a quantized network that Python has trained, in three forms: TorchScript, a package of
// AOTInductor, and the safetensors file of baraquant.save.
//
// Usage: serve FOLDER [--cuda] [--benchmark]
// FOLDER, which `export_digits.py` writes, has network.pt, network.pt2, network.safetensors, and the
// tensors `input` and `output` as input.pt and output.pt. Exit code 1 if a form does not give the
// bits of `output`. --benchmark measures the rows per second.
#include <baraquant/files.h>
#include <baraquant/ops.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/cuda.h>
#include <torch/nn/modules.h>
#include <torch/script.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

using torch::Tensor;
using Network = std::function<Tensor(const Tensor& rows)>;

Tensor read_tensor(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, path.string(), ": expected a tensor, but the file cannot be read");
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  return torch::pickle_load(bytes).toTensor();
}

Network from_torchscript(const std::filesystem::path& path, torch::Device device) {
  auto module = torch::jit::load(path.string(), device);
  module.eval();
  return [module](const Tensor& rows) mutable { return module.forward({rows}).toTensor(); };
}

Network from_package(const std::filesystem::path& path) {
  auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(path.string());
  return [loader](const Tensor& rows) { return loader->run({rows}).front(); };
}

// The file holds integers and scales; the program says what they are the weights of.
Network from_safetensors(const std::filesystem::path& path, torch::Device device) {
  using namespace torch::nn;
  Sequential network(Linear(64, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, 10));
  network->to(device);
  baraquant::load_(network, path);
  network->eval();
  return [network](const Tensor& rows) mutable { return network->forward(rows); };
}

double seconds(const std::function<void()>& work, bool on_cuda) {
  const auto start = std::chrono::steady_clock::now();
  work();
  if (on_cuda) torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rows per second, for several sizes of a batch: the best of five runs.
void benchmark(const Network& network, const Tensor& input) {
  const bool on_cuda = input.is_cuda();
  for (const int64_t rows : {1, 16, 256, 4096}) {
    const auto batch = input.repeat({rows / input.size(0) + 1, 1}).slice(0, 0, rows).contiguous();
    const int64_t calls = std::max<int64_t>(10, 20000 / rows);
    double best = 1e9;
    for (int run = 0; run < 5; ++run) {
      best = std::min(best, seconds(
                                [&] {
                                  for (int64_t call = 0; call < calls; ++call) network(batch);
                                },
                                on_cuda));
    }
    std::printf("    %5ld rows: %12.0f rows/s, %8.1f us a call, %d threads\n", rows,
                static_cast<double>(calls * rows) / best, best / static_cast<double>(calls) * 1e6,
                torch::get_num_threads());
  }
}

bool serve(const char* name, const Network& network, const Tensor& input, const Tensor& output,
           bool measures) {
  const bool same = torch::equal(network(input), output);
  std::printf("%-12s %s\n", name, same ? "gives the bits of Python" : "gives OTHER BITS");
  if (measures) benchmark(network, input);
  return same;
}

}  // namespace

int main(int count, char** arguments) {
  torch::Device device(torch::kCPU);
  bool measures = false;
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--cuda") {
      device = torch::Device(torch::kCUDA);
    } else if (argument == "--benchmark") {
      measures = true;
    } else {
      names.push_back(argument);
    }
  }
  if (names.size() != 1) {
    std::cerr << "usage: serve FOLDER [--cuda] [--benchmark]\n";
    return 2;
  }
  try {
    const torch::NoGradGuard no_grad;
    const std::filesystem::path folder = names.front();
    const auto input = read_tensor(folder / "input.pt").to(device);
    const auto output = read_tensor(folder / "output.pt").to(device);
    bool same = serve("safetensors", from_safetensors(folder / "network.safetensors", device),
                      input, output, measures);
    same &= serve("TorchScript", from_torchscript(folder / "network.pt", device), input, output,
                  measures);
    if (std::filesystem::exists(folder / "network.pt2")) {
      same &= serve("AOTInductor", from_package(folder / "network.pt2"), input, output, measures);
    } else {
      std::printf("%-12s not exported\n", "AOTInductor");
    }
    return same ? 0 : 1;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}
