// SPDX-License-Identifier: BSD-3-Clause
// Quantization-aware training in C++ alone: float, prepared, integers, a file, and the bits again.
//
// Usage: qat_digits DIGITS.csv FOLDER [--epochs N] [--cuda]
// A line of the CSV is a label and 64 pixels in 0 to 16. The first 70 % of the lines are for
// training. FOLDER gets a safetensors file for each scheme, which Python's baraquant.load_ reads too.
// Exit code 1 if a converted or a loaded network does not give the bits of training.
#include <baraquant/files.h>
#include <baraquant/nn.h>
#include <baraquant/workflow.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numbers>
#include <sstream>
#include <string>
#include <vector>

namespace {

using torch::Tensor;

constexpr int64_t batch_size = 64, pixels = 64, classes = 10;
constexpr double learning_rate = 0.1, scale_rate = 0.003;

struct Digits {
  Tensor train_images, train_labels, test_images, test_labels;
};

Digits read_digits(const std::string& path, torch::Device device) {
  std::ifstream file(path);
  TORCH_CHECK(file, path, ": expected a CSV of digits, but it cannot be read");
  std::vector<float> images;
  std::vector<int64_t> labels;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string field;
    std::vector<float> numbers;
    while (std::getline(fields, field, ',')) numbers.push_back(std::stof(field));
    TORCH_CHECK(numbers.size() == pixels + 1, path, ": expected ", pixels + 1,
                " numbers in a line, but got ", numbers.size());
    labels.push_back(static_cast<int64_t>(numbers.front()));
    images.insert(images.end(), numbers.begin() + 1, numbers.end());
  }
  const auto count = static_cast<int64_t>(labels.size()), train = count * 7 / 10;
  const auto all = (torch::tensor(images).view({count, pixels}) / 16).to(device);
  const auto named = torch::tensor(labels).to(device);
  return {all.slice(0, 0, train), named.slice(0, 0, train), all.slice(0, train),
          named.slice(0, train)};
}

torch::nn::Sequential float_network(torch::Device device) {
  using namespace torch::nn;
  Sequential network(Linear(pixels, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, classes));
  network->to(device);
  return network;
}

// One line on the terminal that fills up; nothing where the output is no terminal.
class Progress {
 public:
  Progress(std::string what, int64_t total) : what_(std::move(what)), total_(total) {}
  ~Progress() {
    if (is_terminal_) std::fprintf(stderr, "\r%*s\r", width + 40, "");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance() {
    ++done_;
    if (!is_terminal_) return;
    const auto filled = static_cast<int>(width * done_ / total_);
    const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                            std::string(static_cast<size_t>(width - filled), '.');
    std::fprintf(stderr, "\r%-22s [%s] %ld/%ld", what_.c_str(), bar.c_str(), done_, total_);
  }

 private:
  static constexpr int width = 40;
  std::string what_;
  int64_t total_, done_ = 0;
  bool is_terminal_ = isatty(fileno(stderr)) != 0;
};

// SGD on a cosine schedule. Only the weights decay; scales take smaller steps.
void train(torch::nn::Sequential& network, const Digits& digits, int64_t epochs,
           const std::string& what) {
  using torch::optim::SGDOptions;
  std::vector<Tensor> weights, biases, scales;
  for (const auto& item : network->named_parameters()) {
    auto& group = item.key().ends_with(".weight") ? weights
                  : item.key().ends_with(".bias") ? biases
                                                  : scales;
    group.push_back(*item);
  }
  const auto options = [](double rate, double decay) {
    return std::make_unique<SGDOptions>(SGDOptions(rate).momentum(0.9).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights, options(learning_rate, 5e-4));
  groups.emplace_back(biases, options(learning_rate, 0));
  groups.emplace_back(scales, options(scale_rate, 0));
  torch::optim::SGD optimizer(groups, SGDOptions(learning_rate).momentum(0.9));
  const std::vector<double> rates = {learning_rate, learning_rate, scale_rate};

  const auto steps = digits.train_labels.size(0) / batch_size;
  Progress progress(what, epochs * steps);
  network->train();
  for (int64_t epoch = 0, step = 0; epoch < epochs; ++epoch) {
    const auto order =
        torch::randperm(digits.train_labels.size(0)).to(digits.train_labels.device());
    for (int64_t batch = 0; batch < steps; ++batch, ++step) {
      const auto part = order.slice(0, batch * batch_size, (batch + 1) * batch_size);
      const auto share = static_cast<double>(step) / static_cast<double>(epochs * steps);
      const auto factor = 0.5 * (1 + std::cos(std::numbers::pi * share));
      for (size_t i = 0; i < rates.size(); ++i) {
        optimizer.param_groups()[i].options().set_lr(rates[i] * factor);
      }
      const auto logits = network->forward(digits.train_images.index({part}));
      const auto loss =
          torch::nn::functional::cross_entropy(logits, digits.train_labels.index({part}));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      progress.advance();
    }
  }
}

Tensor evaluate(torch::nn::Sequential& network, const Digits& digits) {
  const torch::NoGradGuard no_grad;
  network->eval();
  return network->forward(digits.test_images);
}

double accuracy(const Tensor& logits, const Digits& digits) {
  const auto hits = logits.argmax(1).eq(digits.test_labels);
  return 100 * hits.to(torch::kFloat64).mean().item<double>();
}

struct Scheme {
  const char* name;
  baraquant::QuantConfig config;
};

std::vector<Scheme> schemes() {
  using namespace baraquant;
  const auto learned = [](int64_t bits, const Granularity& granularity) {
    return TensorConfig(bits).granularity(granularity).learned(true);
  };
  return {
      {"w8a8", W8A8()},
      {"w8a8_static", W8A8Static("moving_average")},
      {"w4a8", W4A8(std::nullopt)},
      {"w4a16_groups_of_32", W4A16(32)},
      {"w4a4_learned", QuantConfig(learned(4, PerChannel()), learned(4, PerTensor()))},
      {"w2a8_learned", QuantConfig(learned(2, PerChannel()), learned(8, PerTensor()))},
  };
}

// A float network, trained further with one scheme, stored and loaded. Returns whether the bits are
// those of training's last evaluation.
bool run(const Scheme& scheme, const baraquant::StateDict& start, const Digits& digits,
         const std::filesystem::path& folder, int64_t epochs) {
  const auto device = digits.test_images.device();
  auto quantized = float_network(device), network = float_network(device);
  baraquant::load_state_dict(*quantized, start);
  baraquant::load_state_dict(*network, start);
  baraquant::quantize_(quantized, scheme.config,
                       {.calibration = [&] { quantized->forward(digits.train_images); }});
  const auto before = accuracy(evaluate(quantized, digits), digits);

  baraquant::prepare_(network, scheme.config);
  train(network, digits, epochs, scheme.name);
  const auto trained = evaluate(network, digits);
  baraquant::convert_(network);
  const auto converted = evaluate(network, digits);
  const auto path = folder / (std::string(scheme.name) + ".safetensors");
  baraquant::save(network, path);
  auto fresh = float_network(device);
  baraquant::load_(fresh, path);
  const auto loaded = evaluate(fresh, digits);
  const bool same = torch::equal(trained, converted) && torch::equal(trained, loaded);
  std::printf("%-20s %9.2f %% %9.2f %% %12ju   %s\n", scheme.name, before, accuracy(loaded, digits),
              std::filesystem::file_size(path), same ? "the same" : "DIFFERENT");
  return same;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> names;
  int64_t epochs = 20;
  torch::Device device(torch::kCPU);
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--epochs" && i + 1 < count) {
      epochs = std::stoll(arguments[++i]);
    } else if (argument == "--cuda") {
      device = torch::Device(torch::kCUDA);
    } else {
      names.push_back(argument);
    }
  }
  if (names.size() != 2 || epochs < 1) {
    std::cerr << "usage: qat_digits DIGITS.csv FOLDER [--epochs N] [--cuda]\n";
    return 2;
  }
  try {
    torch::manual_seed(0);
    torch::set_num_threads(1);  // layers this small lose more to waking a thread than they gain
    std::filesystem::create_directories(names[1]);
    const auto digits = read_digits(names[0], device);
    auto floats = float_network(device);
    train(floats, digits, 2 * epochs, "float");
    std::printf("%ld images for training, %ld for the test; float: %.2f %%\n\n",
                digits.train_labels.size(0), digits.test_labels.size(0),
                accuracy(evaluate(floats, digits), digits));
    std::printf("%-20s %11s %11s %12s   %s\n", "scheme", "quantized", "trained", "bytes",
                "bits of the file, compared with training's");
    bool same = true;
    const auto start = baraquant::state_dict(*floats);
    for (const auto& scheme : schemes()) {
      same = run(scheme, start, digits, names[1], epochs) && same;
    }
    return same ? 0 : 1;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}
