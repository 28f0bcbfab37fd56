// SPDX-License-Identifier: BSD-3-Clause
// <baraquant/nn.h> and <baraquant/workflow.h> as a program that trains uses them.
// Usage: modules FOLDER [DEVICE]. FOLDER has a file `MODEL.CONFIG.DTYPE.in` for each case, with the parameters
// and the inputs; the results are written beside it. The errors are printed, each with its call, for
// test_modules.py.
#include <baraquant/nn.h>
#include <baraquant/workflow.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

#include "errors.h"
#include "held_tensors.h"
#include "module_configs.h"

namespace {

using torch::Tensor;

using Tensors = std::map<std::string, Tensor>;

Tensors read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  Tensors tensors;
  for (const auto& item : torch::pickle_load(bytes).toGenericDict()) {
    tensors[item.key().toStringRef()] = item.value().toTensor();
  }
  return tensors;
}

void write(const std::filesystem::path& path, const Tensors& tensors) {
  c10::Dict<std::string, Tensor> dictionary;
  for (const auto& [name, tensor] : tensors) dictionary.insert(name, tensor.detach().clone());
  const auto bytes = torch::pickle_save(dictionary);
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void add(Tensors& results, const std::string& prefix, const torch::nn::Module& model) {
  for (const auto& [name, tensor] : baraquant::state_dict(model)) {
    results.emplace(prefix + name, tensor.clone());
  }
}

void report(const std::string& name, const std::string& what, const baraquant::Report& report) {
  for (const auto& [path, became] : report.changed) {
    std::cout << "report\t" << name << '\t' << what << '\t' << path << '\t' << became << '\n';
  }
}

Tensor run(torch::nn::Sequential& model, const Tensor& input) { return model->forward(input); }

torch::nn::Sequential cloned(const torch::nn::Sequential& model) {
  return torch::nn::Sequential(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
}

// The gradient that reaches a floating input in evaluation.
void add_gradient(Tensors& results, const std::string& name, torch::nn::Sequential& model,
                  const Tensor& input) {
  if (!input.is_floating_point()) return;
  const auto leaf = input.detach().clone().requires_grad_();
  run(model, leaf).square().sum().backward();
  results[name] = leaf.grad();
}

void train(const std::string& name, torch::nn::Sequential& model, const Tensors& inputs,
           const QuantConfig& config, Tensors& results) {
  baraquant::Options options;
  if (config.observer() == "percentile" || config.observer() == "mse") {
    options.calibration = [&] { run(model, inputs.at("input1")), run(model, inputs.at("input2")); };
  }
  report(name, "prepared", baraquant::prepare_(model, config, options));
  add(results, "prepared.", *model);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  for (const auto* step : {"0", "1", "2"}) {
    optimizer.zero_grad();
    const auto output = run(model, inputs.at(std::string("input") + step));
    results[std::string("output") + step] = output;
    output.square().mean().backward();
    optimizer.step();
  }
  model->eval();
  results["evaluated"] = run(model, inputs.at("input0"));
  add(results, "trained.", *model);
  auto copy = cloned(model);
  results["cloned"] = run(copy, inputs.at("input0"));
  add_gradient(results, "gradient of prepared", model, inputs.at("input0"));
  report(name, "converted", baraquant::convert_(model));
  results["converted"] = run(model, inputs.at("input0"));
  add_gradient(results, "gradient of converted", model, inputs.at("input0"));
  add(results, "converted.", *model);
  auto again = cloned(model);
  results["cloned again"] = run(again, inputs.at("input0"));
  if (results["evaluated"].scalar_type() != torch::kFloat32) return;
  model->to(torch::kBFloat16);
  const auto& input = inputs.at("input0");
  results["in bfloat16"] =
      run(model, input.is_floating_point() ? input.to(torch::kBFloat16) : input);
}

void quantize(const std::string& name, torch::nn::Sequential& model, const Tensors& inputs,
              const QuantConfig& config, Tensors& results) {
  const baraquant::Options options{.calibration = [&] {
    run(model, inputs.at("input1"));
    run(model, inputs.at("input2"));
  }};
  report(name, "quantized", baraquant::quantize_(model, config, options));
  model->eval();
  results["quantized"] = run(model, inputs.at("input0"));
  add(results, "quantized.", *model);
}

void by_archive(torch::nn::Sequential& from, torch::nn::Sequential& to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
}

// Puts the tensors of one quantized model in the places of another's, in each way, and prints whether
// the outputs follow.
void replace_tensors(const std::string& name, const torch::nn::Sequential& model,
                     torch::nn::Sequential& other, const Tensor& input) {
  const torch::NoGradGuard no_gradient;
  const auto wanted = run(other, input);
  const auto follows = [&](const std::string& way, torch::nn::Sequential& copy) {
    std::cout << "replaced\t" << name << '\t' << way << '\t' << run(copy, input).equal(wanted)
              << '\n';
  };
  const std::map<std::string, void (*)(Tensor&, const Tensor&)> ways = {
      {"copy_", [](Tensor& to, const Tensor& from) { to.copy_(from); }},
      {"data.copy_", [](Tensor& to, const Tensor& from) { to.data().copy_(from); }},
      {"set_data", [](Tensor& to, const Tensor& from) { to.set_data(from.clone()); }}};
  for (const auto& [way, put] : ways) {
    auto copy = cloned(model);
    run(copy, input);
    auto to = copy->named_buffers(), from = other->named_buffers();
    for (auto& item : to) put(item.value(), from[item.key()]);
    for (auto& item : copy->named_parameters()) {
      put(item.value(), other->named_parameters()[item.key()]);
    }
    follows(way, copy);
  }
  auto copy = cloned(model);
  run(copy, input);
  by_archive(other, copy);
  follows("torch::load", copy);
}

void run_case(const std::filesystem::path& path, torch::Device device) {
  const auto name = path.stem().string();
  const auto dot = name.find('.'), last = name.rfind('.');
  const auto model_name = name.substr(0, dot);
  const auto& config = configs.at(name.substr(dot + 1, last - dot - 1));
  auto inputs = read(path);
  Tensors parameters, results;
  for (auto& [key, tensor] : inputs) {
    tensor = tensor.to(device);
    if (!key.starts_with("input")) parameters[key] = tensor;
  }
  const auto loaded = [&](const Tensors& from) {
    auto model = build(model_name);
    model->to(device, from.begin()->second.scalar_type());
    baraquant::load_state_dict(*model, from);
    return model;
  };
  auto trained = loaded(parameters), quantized = loaded(parameters);
  train(name, trained, inputs, config, results);
  quantize(name, quantized, inputs, config, results);
  Tensors others, unused;
  for (const auto& [key, tensor] : parameters) others[key] = tensor.flip(0) * -0.75;
  auto other = loaded(others);
  quantize("other", other, inputs, config, unused);
  replace_tensors(name, quantized, other, inputs.at("input0"));
  write(std::filesystem::path(path).replace_extension(".out"), results);
}

// ---- Wrong calls --------------------------------------------------------------------------------

// test_modules.py makes the same call in Python out of the text of this one.
#define WRONG(...) show_error(#__VA_ARGS__, [&] { static_cast<void>(__VA_ARGS__); })

void errors() {
  using namespace baraquant;
  using namespace baraquant::nn;
  using std::nullopt;
  using torch::kHalf, torch::kInt, torch::nn::Conv2dOptions, torch::nn::EmbeddingOptions;
  const auto ones = [](auto... sizes) { return torch::ones({sizes...}); };
  const Tensor INT8 = ones(3, 4).to(torch::kChar), BYTES = ones(3, 2).to(torch::kByte);
  const Tensor SCALE = ones(3);
  using Given = FakeQuantizeOptions;
  using Packed = WeightOnlyInt4LinearOptions;
  using Factors = LearnedFakeQuantizeInt4Options;
  WRONG(FakeQuantize(Given().mode("running")));
  WRONG(FakeQuantize(Given()));
  WRONG(FakeQuantize(Given().scale(-0.5)));
  WRONG(FakeQuantize(Given().mode("dynamic").granularity("per_row")));
  WRONG(FakeQuantize(Given().mode("dynamic").granularity("per_channel")));
  WRONG(FakeQuantize(Given().scale(INT8)));
  WRONG(FakeQuantize(Given().scale(0.5).zero_point(ones(2).to(kInt))));
  WRONG(FakeQuantize(Given().mode("observed").granularity("per_token")));
  WRONG(FakeQuantize(Given().mode("observed").averaging_constant(1.5)));
  WRONG(LearnedFakeQuantize(LearnedFakeQuantizeOptions().quant_max(0).quant_min(-8)));
  WRONG(LearnedFakeQuantize()->round(ones(2)));
  WRONG(FakeQuantize(Given().mode("dynamic"))->calculate_qparams());
  WRONG(FakeQuantize(Given().scale(0.5))->enable_observer());
  WRONG(FakeQuantizedLinear(FakeQuantizedLinearOptions(6, 4).config(W4A16(4))));
  WRONG(FakeQuantizedLinear(FakeQuantizedLinearOptions(131072, 1)));
  WRONG(FakeQuantizedEmbedding(EmbeddingOptions(4, 4).max_norm(1.5)));
  WRONG(QuantizedLinear(QuantizedLinearOptions(INT8.to(kInt), SCALE)));
  WRONG(QuantizedLinear(QuantizedLinearOptions(INT8, ones(4))));
  WRONG(QuantizedLinear(QuantizedLinearOptions(INT8, SCALE).bits(9)));
  WRONG(StaticQuantizedLinear(StaticQuantizedLinearOptions(INT8, SCALE, ones(2))));
  WRONG(WeightOnlyLinear(DequantizedOptions(INT8, SCALE).group_size(2)));
  WRONG(WeightOnlyInt4Linear(Packed(INT8, SCALE, 7)));
  WRONG(WeightOnlyInt4Linear(Packed(BYTES, SCALE, 5)));
  WRONG(WeightOnlyInt4Linear(Packed(BYTES, SCALE, -1)));
  WRONG(WeightOnlyInt4Linear(Packed(BYTES, SCALE, 4).weight_bits(5)));
  WRONG(WeightOnlyInt4Linear(Packed(BYTES, SCALE, 4).group_size(2)));
  WRONG(WeightOnlyInt4Linear(Packed(BYTES, SCALE, 4).weight_zero_point(ones(2).to(kInt))));
  WRONG(WeightOnlyInt4Linear(Packed(BYTES, SCALE, 4).bias(ones(2))));
  WRONG(QuantizedConv2d(DequantizedOptions(INT8, SCALE), Conv2dOptions(4, 3, 1)));
  WRONG(QuantConfig(TensorConfig(9)));
  WRONG(QuantConfig(TensorConfig(8).granularity(PerToken())));
  WRONG(TensorConfig().learned(true).dynamic(true).check());
  WRONG(W8A8Static("median"));
  WRONG(W8A8().scale_dtype("half"));
  WRONG(W8A8().backward("int4"));
  WRONG(W8A8().backward("int8", "up"));
  WRONG(W8A8().backward("float", "stochastic"));
  WRONG(QuantConfig(TensorConfig(8), activation()).backward("int8"));
  WRONG(W8A8().backward("int8_input").scale_dtype("bfloat16"));
  WRONG(W8A8().rotate(12));
  WRONG(QuantizedLinear(QuantizedLinearOptions(INT8, SCALE).rotate(8)));
  WRONG(WeightOnlyLinear(DequantizedOptions(INT8, SCALE).rotate(3)));
  WRONG(QuantizedLinear(QuantizedLinearOptions(INT8, SCALE).smooth(ones(4)).rotate(4)));
  WRONG(QuantConfig(TensorConfig(8), TensorConfig(8).granularity(PerToken())).conv_inputs(true));
  WRONG(QuantConfig(TensorConfig(8)).conv_inputs(true));
  WRONG(FakeQuantize(Given().scale(0.5).scale_dtype("float64")));
  WRONG(LearnedFakeQuantize(LearnedFakeQuantizeOptions().scale_dtype("float64")));
  WRONG(LearnedFakeQuantize(LearnedFakeQuantizeOptions().scale_rule("mean")));
  WRONG(LearnedFakeQuantizeInt4(Factors(3, {2, 2})));
  WRONG(LearnedFakeQuantizeInt4(Factors(2, {2})));
  WRONG(LearnedFakeQuantizeInt4(Factors(2, {2, 2}).scale_rule("mean")));
  WRONG(LearnedFakeQuantizeInt4(Factors(2, {2, 2}).dtype(kHalf)));
  WRONG(LearnedFakeQuantizeInt4(Factors(2, {2, 2}))->initialize(ones(2, 6)));
  LearnedFakeQuantizeInt4 UNKNOWN(Factors(2, {2, 2}));
  UNKNOWN->eval();
  WRONG(UNKNOWN->round(ones(2, 4)));
  WRONG(factors(8, true).dynamic(false).check());
  WRONG(TensorConfig(3).ternary(true).check());
  WRONG(QuantConfig(TensorConfig(8), ternary(PerTensor())));
  WRONG(W4A8(nullopt, true, "search", true, true));
  WRONG(W2A8(nullopt, true, "search", true));
  WRONG(FakeQuantizeInt4(FakeQuantizeInt4Options(2).bits(5)));
  torch::nn::Sequential RELU{torch::nn::ReLU()};
  WRONG(prepare_(RELU, W8A8()));
  WRONG(convert_(RELU));
  torch::nn::Sequential LINEAR(torch::nn::Linear(4, 4));
  WRONG(quantize_(LINEAR, W8A8Static()));
  WRONG(prepare_(LINEAR, W8A8Static("mse")));
  WRONG(prepare_(LINEAR, W4A16(3)));
  torch::NoGradGuard no_grad;
  torch::nn::Sequential BROKEN(torch::nn::Linear(2, 2)), LARGE(torch::nn::Linear(2, 2));
  BROKEN->parameters()[0].fill_(std::numeric_limits<float>::quiet_NaN());
  LARGE->parameters()[0].fill_(1e8);
  WRONG(quantize_(BROKEN, W8A8()));
  WRONG(quantize_(LARGE, W8A8().scale_dtype("float16")));
  torch::nn::Sequential PREPARED(torch::nn::Linear(4, 4));
  prepare_(PREPARED, W8A8Static());
  WRONG(convert_(PREPARED));
  WRONG(prepare_(PREPARED, W8A8()));
  WRONG(quantize_(PREPARED, W8A8()));
}

struct Typed : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(4, 4));
};

struct Named : torch::nn::Module {
  Named() {
    register_module("fc", torch::nn::Linear(4, 4));
    register_module("layers", torch::nn::ModuleList(torch::nn::Linear(4, 4)));
    using Entries = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
    register_module("by_name",
                    torch::nn::ModuleDict(Entries{{"one", torch::nn::Linear(4, 4).ptr()}}));
  }
  Tensor forward(const Tensor& x) {
    auto& list = *named_children()["layers"]->as<torch::nn::ModuleListImpl>();
    auto& dictionary = *named_children()["by_name"]->as<torch::nn::ModuleDictImpl>();
    const auto first = baraquant::call(list, "0", baraquant::call(*this, "fc", x));
    return baraquant::call(dictionary, "one", first);
  }
};

// A class of the program, whose vtable holds functions of the library, also of the second base.
struct Own : baraquant::nn::FakeQuantizeInt4Impl {
  using FakeQuantizeInt4Impl::FakeQuantizeInt4Impl;
};

// What has no counterpart in Python: typed members, containers, children by name.
void of_cpp_alone() {
  auto typed = std::make_shared<Typed>();
  show("a typed member is an error", says("fc: expected the model alone to hold this Linear",
                                          [&] { baraquant::prepare_(*typed, baraquant::W8A8()); }));
  show("the error leaves the model as it was",
       typed->named_children()["fc"].get() == typed->fc.get());
  auto named = std::make_shared<Named>();
  const auto x = torch::randn({3, 4});
  const auto floats = named->forward(x);
  const auto prepared = baraquant::prepare_(*named, baraquant::W8A8());
  const auto report = baraquant::convert_(*named);
  show("containers", prepared.changed.size() == 3 && report.changed.size() == 3);
  const auto near = torch::cosine_similarity(named->forward(x), floats, 1).min().item<double>();
  show("children by name", near > 0.98 && !torch::equal(named->forward(x), floats));
  show("unknown child",
       says("expected a child other", [&] { baraquant::call(*named, "other", x); }));
  const torch::nn::Linear shared(4, 4);
  torch::nn::Sequential twice(shared, torch::nn::ReLU(), shared);
  show("a variable is an error",
       says("something else holds it", [&] { baraquant::prepare_(twice, baraquant::W8A8()); }));
  torch::nn::Sequential replaced(torch::nn::Linear(4, 4), torch::nn::ReLU());
  baraquant::replace_module(*replaced, "1", torch::nn::Tanh());
  show("replace_module",
       replaced->forward(x).abs().max().item<double>() < 1 &&
           replaced->at<torch::nn::TanhImpl>(1).name().find("Tanh") != std::string::npos);
  torch::nn::Sequential filtered(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto some = baraquant::quantize_(
      filtered, baraquant::W8A8(),
      {.filter = [](const torch::nn::Module&, const std::string& path) { return path == "1"; }});
  show("filter", some.changed.size() == 1 && some.left_out.front().second == "filter_fn");
  show("a layer by its own type",
       filtered->at<baraquant::nn::QuantizedLinearImpl>(1).qweight.scalar_type() == torch::kChar);
  const std::shared_ptr<torch::nn::Module> own =
      std::make_shared<Own>(baraquant::nn::FakeQuantizeInt4Options(2));
  auto* const rounds = dynamic_cast<baraquant::nn::RoundsToInt4*>(own.get());
  const auto* const given = own->as<baraquant::nn::FakeQuantizeInt4Impl>();
  show("a derived class", rounds->group_size() == 2 && rounds->smooth(x).equal(x) &&
                              given->quant_max() == 7 && typeid(*own) == typeid(Own));
  const auto table = some.str();
  show("a report", table.find("1 changed, 1 left out; 40.0 % of 40") != std::string::npos);
}

// ---- Trainings that are resumed -----------------------------------------------------------------

using torch::nn::Sequential;

Sequential prepared_of(const QuantConfig& config) {
  Sequential model(torch::nn::Linear(8, 8), torch::nn::Linear(8, 4));
  baraquant::prepare_(model, config);
  return model;
}

// The outputs of some steps. Nothing is rounded at first, and the first batch has zeros alone.
Tensor train_between(Sequential& model, int first, int last) {
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  std::vector<Tensor> outputs = {torch::zeros({3, 4})};
  for (int step = first; step < last; ++step) {
    model->apply([step](torch::nn::Module& module) {
      auto* quantizer = dynamic_cast<baraquant::nn::Quantizer*>(&module);
      if (quantizer != nullptr && step % 2 == 0) quantizer->enable_fake_quant(step > 0);
    });
    optimizer.zero_grad();
    outputs.push_back(run(model, torch::sin(torch::arange(24.0).reshape({3, 8}) + step) * step));
    outputs.back().square().mean().backward();
    optimizer.step();
  }
  return torch::stack(outputs).detach();
}

bool same(const torch::nn::Module& one, const torch::nn::Module& other) {
  const auto left = baraquant::state_dict(one), right = baraquant::state_dict(other);
  return std::ranges::equal(left, right, [](const auto& mine, const auto& yours) {
    return mine.first == yours.first && mine.second.dtype() == yours.second.dtype() &&
           mine.second.nan_to_num(7.0).equal(yours.second.nan_to_num(7.0));
  });
}

void by_state_dict(Sequential& from, Sequential& to) {
  baraquant::load_state_dict(*to, baraquant::state_dict(*from));
}

void by_tensors(Sequential& from, Sequential& to) {
  const torch::NoGradGuard no_grad;
  for (auto& item : to->named_parameters()) item->copy_(from->named_parameters()[item.key()]);
  for (auto& item : to->named_buffers()) item->copy_(from->named_buffers()[item.key()]);
}

void by_clone(Sequential& from, Sequential& to) { to = cloned(from); }

void of_resuming() {
  const std::map<std::string, void (*)(Sequential&, Sequential&)> ways = {
      {"torch::load", by_archive},
      {"load_state_dict", by_state_dict},
      {"tensors", by_tensors},
      {"a clone", by_clone}};
  const std::vector<std::string> names = {"w8a8",    "static_average",         "ternary",
                                          "factors", "factors_learned_static", "learned_asymmetric",
                                          "rotated", "observed_weights"};
  for (const auto& name : names) {
    const auto& config = configs.at(name);
    for (const auto& [way, take] : ways) {
      for (int stop = 0; stop < 5; ++stop) {
        auto model = prepared_of(config), resumed = prepared_of(config);
        train_between(model, 0, stop);
        // The state takes the place of that of another training, or of none.
        if (stop % 2 == 1 || (stop == 0 && way != "tensors")) train_between(resumed, 0, 3);
        take(model, resumed);
        const auto what = c10::str(name, ", resumed at step ", stop, " by ", way);
        show(what + ", has the state", same(*model, *resumed));
        const auto wanted = train_between(model, stop, 5), got = train_between(resumed, stop, 5);
        show(what + ", has the bits", got.equal(wanted) && same(*model, *resumed));
      }
    }
    auto model = prepared_of(config);
    auto source = prepared_of(configs.at(name == "rotated" ? "rotated_per_tensor" : "per_tensor"));
    const auto* const part = "but got that of one that is dynamic per_tensor symmetric in [-";
    const auto refuses = [&](auto take) { return says(part, [&] { take(source, model); }); };
    show(name + " refuses another state", refuses(by_archive) && refuses(by_state_dict));
    model->to(torch::kHalf);
    for (const auto& item : model->named_buffers()) {
      const bool is_switch = item.key().ends_with("_enabled") || item.key().ends_with("saw_zeros");
      if (is_switch) show(item.key() + " stays uint8", item->scalar_type() == torch::kByte);
      if (!item.key().ends_with("scheme")) continue;
      show(item.key() + " stays int32", item->scalar_type() == torch::kInt);
    }
  }
  for (const auto* name : {"w8a8", "factors"}) {
    torch::nn::LinearImpl linear(8, 8);
    linear.weight = torch::empty({8, 8}, torch::kMeta);
    linear.bias = Tensor();
    baraquant::nn::FakeQuantizedLinear meta(linear, configs.at(name));
    meta->weight_fake_quant->disable_fake_quant();
    const auto copy =
        std::dynamic_pointer_cast<baraquant::nn::FakeQuantizedLinearImpl>(meta->clone());
    show(c10::str(name, " has a switch beside a meta weight"),
         copy->weight.is_meta() && !copy->weight_fake_quant->rounds());
  }
  // A state that was saved before the entries were there.
  auto model = prepared_of(configs.at("learned_asymmetric"));
  auto state = baraquant::state_dict(*model);
  std::erase_if(state, [](const auto& item) {
    return item.first.ends_with("scheme") || item.first.ends_with("fake_quant_enabled") ||
           item.first.ends_with("saw_zeros");
  });
  baraquant::load_state_dict(*model, state);
  model->apply([](torch::nn::Module& module) {
    auto* quantizer = dynamic_cast<baraquant::nn::Quantizer*>(&module);
    if (quantizer != nullptr) quantizer->disable_fake_quant();
  });
  show("a switch that is off has to be in the state",
       says("input_fake_quant.fake_quant_enabled",
            [&] { baraquant::load_state_dict(*model, state); }));
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  std::cout << std::unitbuf;  // so that a crash shows where it came
  torch::manual_seed(0);
  errors();
  of_cpp_alone();
  of_held_tensors();
  of_resuming();
  const torch::Device device(count > 2 ? arguments[2] : "cpu");
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    if (entry.path().extension() == ".in") run_case(entry.path(), device);
  }
}
