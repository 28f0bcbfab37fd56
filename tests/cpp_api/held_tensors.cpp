// SPDX-License-Identifier: BSD-3-Clause
// What the modules of <baraquant/nn.h> hold: nothing that is derived from their tensors, and nothing of
// a model that was replaced. Prints `check`, a name, and `right` or `WRONG` for each.
#include <baraquant/nn.h>
#include <baraquant/ops.h>
#include <baraquant/workflow.h>
#include <torch/nn/modules.h>
#include <torch/serialize.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

using torch::Tensor;

void show(const std::string& name, bool right) {
  std::cout << "check\t" << name << '\t' << (right ? "right" : "WRONG") << '\n';
}

// ---- what is derived from tensors ---------------------------------------------------------------

struct Case {
  std::string name;
  baraquant::QuantConfig config;
  std::function<torch::nn::Sequential()> make;
  Tensor input;
};

torch::nn::Sequential linear() { return torch::nn::Sequential(torch::nn::Linear(16, 8)); }
torch::nn::Sequential conv() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 8, 3)));
}

std::vector<Case> cases() {
  using baraquant::PerTensor, baraquant::QuantConfig, baraquant::TensorConfig;
  const auto rows = torch::rand({5, 16}) + 1, image = torch::rand({2, 16, 6, 6}) + 1;
  const auto of_tensor = TensorConfig(8).granularity(PerTensor()).symmetric(false).dynamic(true);
  const auto fixed = TensorConfig(8).granularity(PerTensor()).symmetric(false).dynamic(false);
  const auto conv_inputs = [](const TensorConfig& input) {
    auto config = QuantConfig(TensorConfig(8), input);
    config.conv_inputs(true);
    return config;
  };
  return {
      {"dynamic", baraquant::W8A8(false), linear, rows},
      {"dynamic per tensor", QuantConfig(TensorConfig(8), of_tensor), linear, rows},
      {"static", baraquant::W8A8Static("min_max", false), linear, rows},
      {"weights alone", baraquant::W8A16(), linear, rows},
      {"packed weights", baraquant::W4A16(4, false), linear, rows},
      {"factors", baraquant::W4A8(4, false), linear, rows},
      {"convolution", conv_inputs(of_tensor), conv, image},
      {"static convolution", conv_inputs(fixed), conv, image},
  };
}

torch::nn::Sequential quantized(const Case& one) {
  auto model = one.make();
  baraquant::quantize_(*model, one.config, {.calibration = [&] { model->forward(one.input); }});
  model->eval();
  return model;
}

// Other ways than torch::load: modules.cpp.
void nothing_is_derived() {
  for (const auto& one : cases()) {
    const torch::NoGradGuard no_grad;
    auto model = quantized(one), other = quantized(one);
    const auto before = model->forward(one.input);
    std::stringstream stream;
    torch::serialize::OutputArchive out;
    other->save(out);
    out.save_to(stream);
    torch::serialize::InputArchive in;
    in.load_from(stream);
    model->load(in);
    const auto after = model->forward(one.input);
    show(one.name + " follows torch::load",
         torch::equal(after, other->forward(one.input)) && !torch::equal(after, before));
  }
}

// ---- what is replaced ---------------------------------------------------------------------------

std::vector<std::weak_ptr<torch::nn::Module>> modules_of(torch::nn::Module& model) {
  std::vector<std::weak_ptr<torch::nn::Module>> found;
  for (const auto& module : model.modules(/*include_self=*/false)) found.push_back(module);
  return found;
}

std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> weights_of(torch::nn::Module& model) {
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> found;
  for (const auto& tensor : model.parameters()) found.emplace_back(tensor.getIntrusivePtr());
  return found;
}

template <typename Weak>
bool all_gone(const std::vector<Weak>& found) {
  bool gone = !found.empty();
  for (const auto& one : found) gone = gone && one.expired();
  return gone;
}

void nothing_is_held() {
  for (const auto& one : cases()) {
    auto model = one.make();
    auto floats = modules_of(*model);
    const auto weights = weights_of(*model);
    baraquant::quantize_(*model, one.config, {.calibration = [&] { model->forward(one.input); }});
    show(one.name + ": quantize_ frees the model", all_gone(floats) && all_gone(weights));
    auto trained = one.make();
    floats = modules_of(*trained);
    baraquant::prepare_(*trained, one.config);
    show(one.name + ": prepare_ frees the layers", all_gone(floats));
    trained->forward(one.input);
    const auto prepared = modules_of(*trained);
    const auto masters = weights_of(*trained);
    baraquant::convert_(*trained);
    show(one.name + ": convert_ frees the model", all_gone(prepared) && all_gone(masters));
  }
}

// A module whose calls change a buffer and draw random numbers.
struct RemembersImpl : torch::nn::Module {
  RemembersImpl() { memory = register_buffer("memory", torch::full({16}, 3.0F)); }
  Tensor forward(const Tensor& input) {
    memory.mul_(0.5).add_(input.mean(0));
    return input + memory + torch::rand({16});
  }
  Tensor memory;
};
TORCH_MODULE(Remembers);

void calibration_leaves_the_state() {
  for (const bool trains : {false, true}) {
    const Remembers first;
    auto model = torch::nn::Sequential(first, torch::nn::Linear(16, 8));
    const auto input = torch::rand({4, 16});
    torch::manual_seed(7);
    const baraquant::Options options{.calibration = [&] { model->forward(input); }};
    if (trains) {
      baraquant::prepare_(*model, baraquant::W8A8Static(), options);
    } else {
      baraquant::quantize_(*model, baraquant::W8A8Static(), options);
    }
    const auto next = torch::rand({3});
    torch::manual_seed(7);
    const bool same = torch::equal(first->memory, torch::full({16}, 3.0F)) &&
                      torch::equal(next, torch::rand({3}));
    show(std::string(trains ? "prepare_" : "quantize_") + ": calibration leaves the state", same);
  }
}

void all_or_nothing() {
  auto model = torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto modules = modules_of(*model);
  {
    const torch::NoGradGuard no_grad;
    model->at<torch::nn::LinearImpl>(1).weight.fill_(3e37);  // its scale is no float16
  }
  bool raised = false;
  try {
    baraquant::quantize_(*model, baraquant::W8A8().scale_dtype("float16"));
  } catch (const c10::ValueError&) {
    raised = true;
  }
  bool kept = raised;
  for (const auto& one : modules) kept = kept && !one.expired();
  show("an error in the last layer changes none", kept);
}

// ---- what is not finite, or not there -----------------------------------------------------------

void unknown_scales() {
  baraquant::nn::LearnedFakeQuantize learned;
  const auto bad = torch::tensor({1.0F, std::numeric_limits<float>::quiet_NaN()});
  const auto first = learned->forward(bad);
  show("a NaN in the first batch sets no scale", first.isnan().any().item<bool>() &&
                                                     !learned->is_initialized() &&
                                                     learned->skipped_batches.item<int64_t>() == 1);
  learned->forward(torch::ones({4}));
  show("the next batch is the first",
       learned->is_initialized() && learned->scale.isfinite().all().item<bool>());

  auto model = linear();
  baraquant::prepare_(*model, baraquant::W8A8Static());
  model->eval();
  std::string message;
  try {
    model->forward(torch::ones({2, 16}));
  } catch (const c10::ValueError& error) {
    message = error.what_without_backtrace();
  }
  show("evaluation before any data is an error", message.find("seen no data") != std::string::npos);
}

void empty_layers() {
  const auto config = baraquant::W8A8();
  auto model = torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 0));
  const auto report = baraquant::quantize_(*model, config);
  show("an empty layer stays floating",
       report.left_out.size() == 1 && report.left_out[0].second == "its weight has no elements" &&
           model->forward(torch::ones({3, 4})).sizes() == at::IntArrayRef({3, 0}));
  show("an input without rows", model->forward(torch::ones({0, 4})).size(0) == 0);
}

}  // namespace

int main() {
  torch::manual_seed(0);
  nothing_is_derived();
  nothing_is_held();
  calibration_leaves_the_state();
  all_or_nothing();
  unknown_scales();
  empty_layers();
}
