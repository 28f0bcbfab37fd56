// SPDX-License-Identifier: BSD-3-Clause
// <baraquant/files.h> as a LibTorch program uses it. BARAQUANT_TEST_JOBS names a file with a job in
// each line, its fields split by tabs; the program prints a line for each. test_files.py writes the
// jobs, and compares the files and the lines with Python's.
#include <baraquant/files.h>
#include <baraquant/nn.h>
#include <baraquant/workflow.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/normalization.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "errors.h"

namespace {

using torch::Tensor;
using ModulePtr = std::shared_ptr<torch::nn::Module>;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

struct Network : torch::nn::Module {};

// The module of a path, whose last part need not exist.
torch::nn::Module& parent_of(torch::nn::Module& model, const std::string& path) {
  torch::nn::Module* at = &model;
  const auto parts = split(path, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const auto children = at->named_children();
    at = children.contains(parts[i])
             ? children[parts[i]].get()
             : at->register_module(parts[i], std::make_shared<Network>()).get();
  }
  return *at;
}

std::string last_of(const std::string& path) { return split(path, '.').back(); }

ModulePtr child(torch::nn::Module& model, const std::string& path) {
  return parent_of(model, path).named_children()[last_of(path)];
}

ModulePtr conv_of(const std::vector<std::string>& arguments) {
  const auto number = [&](size_t i) { return std::stoll(arguments[i]); };
  auto options = torch::nn::Conv2dOptions(number(1), number(2), {number(3), number(4)});
  options.stride(number(5)).groups(number(7));
  if (arguments[6] == "same") {
    options.padding(torch::kSame);
  } else {
    options.padding(torch::ExpandingArray<2>(number(6)));
  }
  if (arguments[8] == "circular") options.padding_mode(torch::kCircular);
  const auto conv = std::make_shared<torch::nn::Conv2dImpl>(options);
  if (arguments[8] == "last") {
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  return conv;
}

ModulePtr module_of(torch::nn::Module& model, const std::vector<std::string>& arguments) {
  const std::string& kind = arguments[0];
  const auto number = [&](size_t i) { return std::stoll(arguments[i]); };
  using torch::nn::LinearImpl, torch::nn::LinearOptions;
  if (kind == "Linear") {
    return std::make_shared<LinearImpl>(LinearOptions(number(1), number(2)).bias(number(3) == 1));
  }
  if (kind == "tie") {
    const Tensor weight = child(model, arguments[1])->named_parameters()["weight"];
    LinearOptions options(weight.size(1), weight.size(0));
    const auto linear = std::make_shared<LinearImpl>(options.bias(false));
    linear->weight.set_data(weight);
    return linear;
  }
  if (kind == "Embedding") {
    torch::nn::EmbeddingOptions options(number(1), number(2));
    if (number(3) >= 0) options.padding_idx(number(3));
    return std::make_shared<torch::nn::EmbeddingImpl>(options);
  }
  if (kind == "Conv2d") return conv_of(arguments);
  if (kind == "Prepared") return baraquant::nn::FakeQuantizedLinear(number(1), number(2)).ptr();
  if (kind == "LayerNorm") {
    return std::make_shared<torch::nn::LayerNormImpl>(
        torch::nn::LayerNormOptions(std::vector<int64_t>{number(1)}));
  }
  if (kind == "FusedLayerNorm") return baraquant::nn::LayerNorm(number(1)).ptr();
  if (kind == "FusedRMSNorm") {
    baraquant::nn::RMSNormOptions options(number(1));
    options.eps(1e-6).offset(static_cast<double>(number(2)));
    return baraquant::nn::RMSNorm(options).ptr();
  }
  if (kind == "FusedGELU") return baraquant::nn::GELU().ptr();
  if (kind == "GatedMLP") {
    const auto in = number(1), hidden = number(2);
    const auto gate = std::make_shared<LinearImpl>(in, hidden);
    const auto up = std::make_shared<LinearImpl>(in, hidden);
    return baraquant::nn::GatedMLP(gate, up, std::make_shared<LinearImpl>(hidden, in)).ptr();
  }
  if (kind == "BatchNorm1d") return std::make_shared<torch::nn::BatchNorm1dImpl>(number(1));
  if (kind == "same") return child(model, arguments[1]);
  throw std::runtime_error("no such kind: " + kind);
}

// A model by its description: "fc:Linear,8,4,1 norm:LayerNorm,4".
ModulePtr build(const std::string& description, torch::Dtype dtype) {
  const ModulePtr model = std::make_shared<Network>();
  for (const std::string& entry : split(description, ' ')) {
    const auto parts = split(entry, ':');
    const auto arguments = split(parts[1], ',');
    torch::nn::Module& parent = parent_of(*model, parts[0]);
    if (arguments[0] == "Buffer") {
      const auto type = arguments[1] == "complex" ? torch::kComplexFloat : torch::kLong;
      parent.register_buffer(last_of(parts[0]),
                             torch::full({std::stoll(arguments[2])}, 7, torch::dtype(type)));
      continue;
    }
    const ModulePtr module = module_of(*model, arguments);
    // to() would convert the counter of a BatchNorm too.
    if (dtype != torch::kFloat && arguments[0] != "same") module->to(dtype);
    parent.register_module(last_of(parts[0]), module);
  }
  model->eval();
  return model;
}

torch::Dtype dtype_of(const std::string& name) {
  if (name == "float64") return torch::kDouble;
  if (name == "float16") return torch::kHalf;
  return name == "bfloat16" ? torch::kBFloat16 : torch::kFloat;
}

baraquant::QuantConfig config_of(const std::string& name) {
  using namespace baraquant;
  if (name == "W8A8") return W8A8(false);
  if (name == "W8A8Static") return W8A8Static("min_max", false);
  if (name == "rotated") return W8A8().rotate(64);
  if (name == "W4A16") return W4A16(4, false);
  if (name == "factors") return W4A8(4, false, "search", true);
  return name == "W4A8" ? W4A8(8, true, "search", false) : W8A16();
}

// What load_ may change: the modules, and copies of the tensors.
struct Content {
  std::vector<const torch::nn::Module*> modules;
  std::map<std::string, Tensor> tensors;

  explicit Content(const torch::nn::Module& model) {
    for (const auto& module : model.modules(false)) modules.push_back(module.get());
    for (const auto& [name, tensor] : baraquant::state_dict(model)) tensors[name] = tensor.clone();
  }
  bool operator==(const Content& other) const {
    if (modules != other.modules || tensors.size() != other.tensors.size()) return false;
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.equal(other.tensors.at(name))) return false;
    }
    return true;
  }
};

void show(const Tensor& tensor) {
  const Tensor values = tensor.to(torch::kDouble).contiguous().view(-1);
  for (int64_t i = 0; i < values.numel(); ++i) {
    std::cout << '\t' << std::hexfloat << values[i].item<double>();
  }
}

Tensor numbers(torch::Dtype dtype) {
  return (torch::arange(24, torch::kDouble) * 0.37 - 4).view({3, 8}).to(dtype);
}

// The outputs of all layers that take eight features.
void show_outputs(torch::nn::Module& model, torch::Dtype dtype) {
  for (const auto& item : model.named_children()) {
    if (dynamic_cast<baraquant::nn::FusedLayer*>(item.value().get()) != nullptr) {
      std::cout << '\t' << item.key();
      show(baraquant::call(model, item.key(), numbers(dtype)));
      continue;
    }
    const auto* layer = dynamic_cast<baraquant::nn::QuantizedLayer*>(item.value().get());
    const auto* int4 = dynamic_cast<const baraquant::nn::Int4Linear*>(layer);
    const auto* narrow = dynamic_cast<const baraquant::nn::WeightOnlyInt4LinearImpl*>(layer);
    const bool is_packed = int4 != nullptr || narrow != nullptr;
    if (layer == nullptr || (!is_packed && layer->qweight.dim() != 2)) continue;
    const bool is_table =
        dynamic_cast<const baraquant::nn::QuantizedEmbeddingImpl*>(layer) != nullptr;
    const int64_t features = int4 != nullptr     ? int4->in_features()
                             : narrow != nullptr ? narrow->in_features()
                                                 : layer->qweight.size(1);
    if (!is_table && features != 8) continue;
    const Tensor input = is_table ? torch::arange(4) : numbers(dtype);
    std::cout << '\t' << item.key();
    show(baraquant::call(model, item.key(), input));
  }
}

void work(const std::vector<std::string>& job, torch::nn::Module& model) {
  const std::string &kind = job[0], &input = job[3], &output = job[4];
  if (kind == "quantize") {
    baraquant::quantize_(model, config_of(job[5]));
  } else if (kind == "static") {
    baraquant::Options options;
    options.calibration = [&] { baraquant::call(model, "fc", numbers(torch::kFloat)); };
    baraquant::quantize_(model, config_of(job[5]), options);
  } else if (kind == "wrong") {  // one with a scale that is no number
    baraquant::quantize_(model, config_of(job[5]));
    const torch::NoGradGuard no_grad;
    baraquant::state_dict(model).at(job[3])[1] = NAN;
  } else if (kind != "save") {
    baraquant::load_(model, input);
  }
  if (kind == "twice") baraquant::load_(model, input);
  if (!output.empty()) baraquant::save(model, output);
}

// Prints the error of a call, if it has one; whether it has none.
template <typename F>
bool succeeds(const F& call) {
  auto [kind, text] = error_of(call);
  if (kind == "none") return true;
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) {
    text.replace(at, 1, "\\n");
  }
  std::cout << kind << '\t' << text;
  return false;
}

void run(const std::vector<std::string>& job) {
  torch::manual_seed(3);
  const torch::Dtype dtype = dtype_of(job[1]);
  const ModulePtr model = build(job[2], dtype);
  const Content before(*model);
  const bool is_done = succeeds([&] {
    work(job, *model);
    std::cout << "ok";
    if (job[0] == "outputs" || job[0] == "quantize") show_outputs(*model, dtype);
    if (job[0] == "state") {
      for (const auto& [name, tensor] : baraquant::state_dict(*model)) {
        std::cout << '\t' << name;
        show(tensor);
      }
    }
  });
  if (is_done) return;
  const bool is_unchanged = job[0] == "wrong" || before == Content(*model);
  std::cout << '\t' << (is_unchanged ? "unchanged" : "changed");
}

// A typed member would still hold the float layer after the file was loaded.
struct Typed : torch::nn::Module {
  Typed() { register_module("fc", fc); }
  torch::nn::Linear fc{8, 8};
};

}  // namespace

int main() {
  std::ifstream jobs(std::getenv("BARAQUANT_TEST_JOBS"));
  for (std::string line; std::getline(jobs, line);) {
    const auto job = split(line, '\t');
    if (job[0] == "typed") {
      torch::nn::ModuleHolder<Typed> model(std::make_shared<Typed>());
      succeeds([&] { baraquant::load_(model, job[3]); });
      std::cout << '\t';
      succeeds([&] { baraquant::save(model, job[3]); });
    } else {
      run(job);
    }
    std::cout << std::endl;
  }
}
