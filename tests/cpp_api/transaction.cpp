// SPDX-License-Identifier: BSD-3-Clause
// Every call of C++ that changes a model changes it as a whole, or not at all. An exception is thrown at
// ops and at allocations of memory; then the model is as before, and one more call gives what a first
// one gives. Prints `check`, the call, the kind of fault, their number, and `right` or what is WRONG.
#include <baraquant/files.h>
#include <baraquant/nn.h>
#include <baraquant/workflow.h>
#include <torch/library.h>
#include <torch/nn/modules.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

namespace {

using torch::Tensor;

// ---- faults -------------------------------------------------------------------------------------

constexpr int64_t never = -1;
int64_t ops_before_fault = never, memory_before_fault = never;

struct InjectedError {};  // an exception of no class that anything else knows

void count_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (ops_before_fault != never && ops_before_fault-- == 0) {
    ops_before_fault = never;
    throw InjectedError();
  }
  const auto key = c10::DispatchKey::TESTING_ONLY_GenericMode;
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&count_op>());
}

}  // namespace

void* operator new(size_t size) {
  if (memory_before_fault != never && memory_before_fault-- == 0) {
    memory_before_fault = never;
    throw std::bad_alloc();
  }
  if (void* place = std::malloc(std::max<size_t>(size, 1))) return place;
  throw std::bad_alloc();
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, size_t) noexcept { std::free(place); }

namespace {

// ---- a model ------------------------------------------------------------------------------------

Tensor tokens() { return torch::arange(32).reshape({2, 16}).remainder(16); }

torch::nn::Linear linear(int64_t inputs = 16, int64_t outputs = 16) {
  return torch::nn::Linear(torch::nn::LinearOptions(inputs, outputs));
}

// Layers in every container, a tied weight, a convolution, buffers, and a layer that no call reaches.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    const auto head = linear();
    register_module(
        "embed", torch::nn::Embedding(torch::nn::EmbeddingOptions(16, 16)._weight(head->weight)));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    block = register_module(
        "block", torch::nn::Sequential(linear(16, 32), torch::nn::GELU(), linear(32, 16)));
    list = register_module("list", torch::nn::ModuleList());
    list->push_back(linear());
    dict = register_module("dict", torch::nn::ModuleDict());
    dict->update({{"fc", linear().ptr()}});
    register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 2, 3).padding(1)));
    register_module("idle", linear());
    register_module("head", head);
    calls = register_buffer("calls", torch::zeros({1}));
  }
  Tensor forward(const Tensor& input) {
    calls.add_(1);
    auto x = norm->forward(baraquant::call(*this, "embed", input).flatten(0, 1));
    x = block->forward(x) + baraquant::call(*list, "0", x) + baraquant::call(*dict, "fc", x);
    x = baraquant::call(*this, "conv", x.reshape({1, 2, 16, 16}));
    return baraquant::call(*this, "head", x.reshape({32, 16}));
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Sequential block{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::ModuleDict dict{nullptr};
  Tensor calls;
};
using Net = std::shared_ptr<NetImpl>;

Net built() {
  torch::manual_seed(0);
  return std::make_shared<NetImpl>();
}

Net prepared(const baraquant::QuantConfig& config) {
  auto net = built();
  baraquant::prepare_(*net, config);
  net->forward(tokens());
  return net;
}

Tensor output_of(NetImpl& net) {
  const torch::NoGradGuard no_grad;
  net.eval();
  return net.forward(tokens());
}

std::string bits_of(const Tensor& tensor) {
  const auto values = tensor.detach().contiguous();
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

// All that a call has to leave, a line for each module and tensor.
std::vector<std::string> state_of(const Net& net) {
  std::vector<std::string> lines;
  const auto add = [&](const auto&... parts) {
    std::ostringstream line;
    ((line << parts << ' '), ...);
    lines.push_back(line.str());
  };
  const auto add_tensor = [&](const std::string& name, const Tensor& tensor) {
    add(name, tensor.unsafeGetTensorImpl(), tensor.const_data_ptr(), tensor.sizes(),
        tensor.strides(), tensor.requires_grad(), std::hash<std::string>()(bits_of(tensor)));
  };
  for (const auto& item : net->named_modules("model")) {
    const auto& module = *item.value();
    add(item.key(), &module, typeid(module).name(), module.is_training());
    for (const auto& one : module.named_parameters(false)) add_tensor(one.key(), *one);
    for (const auto& one : module.named_buffers(false)) add_tensor(one.key(), *one);
    if (const auto* one = dynamic_cast<const baraquant::nn::Quantizer*>(&module)) {
      add("rounds", one->rounds());
    }
    if (const auto* one = dynamic_cast<const baraquant::nn::LearnedFakeQuantizeImpl*>(&module)) {
      add("is initialized", one->is_initialized());
    }
  }
  for (size_t i = 0; i < net->block->size(); ++i) add("in block", net->block->ptr(i).get());
  for (const auto& entry : *net->list) add("in list", entry.get());
  for (const auto& entry : *net->dict) add("in dict", entry.value().get());
  const auto random = bits_of(at::globalContext().defaultGenerator(at::kCPU).get_state());
  add("random numbers", std::hash<std::string>()(random));
  add("gradients", at::GradMode::is_enabled());
  return lines;
}

// ---- the calls ----------------------------------------------------------------------------------

struct Call {
  std::string name;
  std::function<Net()> make;
  std::function<void(NetImpl&)> change;
};

Call quantize(const std::string& name, const baraquant::QuantConfig& config) {
  return {"quantize_ " + name, built, [config](NetImpl& net) {
            baraquant::quantize_(net, config, {.calibration = [&] { net.forward(tokens()); }});
          }};
}

Call prepare(const std::string& name, const baraquant::QuantConfig& config) {
  return {"prepare_ " + name, built, [config](NetImpl& net) {
            baraquant::prepare_(net, config, {.calibration = [&] { net.forward(tokens()); }});
          }};
}

Call convert(const std::string& name, const baraquant::QuantConfig& config) {
  return {"convert_ " + name, [config] { return prepared(config); },
          [](NetImpl& net) { baraquant::convert_(net); }};
}

std::vector<Call> calls(const std::string& file) {
  using baraquant::PerGroup, baraquant::PerTensor, baraquant::TensorConfig;
  const auto learned = baraquant::QuantConfig(
      TensorConfig(4).granularity(PerGroup(2)).symmetric(false).learned(true),
      TensorConfig(8).granularity(PerTensor()).symmetric(false).dynamic(false).learned(true));
  const auto factors =
      baraquant::QuantConfig(TensorConfig(4).granularity(PerGroup(2)).group_factors(true),
                             TensorConfig(8).granularity(PerTensor()).dynamic(false));
  baraquant::StateDict state;
  for (const auto& [name, tensor] : baraquant::state_dict(*prepared(learned))) {
    state[name] = tensor.is_floating_point() ? tensor * 1.5 : tensor.clone();
  }
  return {
      quantize("W8A8", baraquant::W8A8()),
      quantize("static", baraquant::W8A8Static("mse", false)),
      quantize("W4A16", baraquant::W4A16(4)),
      quantize("W4A8 rotated", baraquant::W4A8(4).rotate(16)),
      prepare("static", baraquant::W8A8Static("percentile")),
      prepare("rotated", baraquant::W8A8Static().rotate(16)),
      prepare("learned", learned),
      convert("static", baraquant::W8A8Static()),
      convert("factors", factors),
      convert("learned", learned),
      {"load_", built, [file](NetImpl& net) { baraquant::load_(net, file); }},
      {"load_state_dict",
       [learned] {
         auto net = built();
         baraquant::prepare_(*net, learned);
         return net;
       },
       [state](NetImpl& net) { baraquant::load_state_dict(net, state); }},
      {"replace_module in a Sequential", built,
       [layer = linear(32, 16)](NetImpl& net) {
         baraquant::replace_module(*net.block, "2", layer);
       }},
      {"replace_module in a list", built,
       [layer = linear()](NetImpl& net) { baraquant::replace_module(*net.list, "0", layer); }},
  };
}

// ---- the checks ---------------------------------------------------------------------------------

// Points of 0 to `total`, at most `count` of them, the first and the last among them.
std::vector<int64_t> sample(int64_t total, int64_t count) {
  std::vector<int64_t> points;
  const auto steps = std::min(total, count);
  for (int64_t i = 0; i < steps; ++i)
    points.push_back(i * (total - 1) / std::max<int64_t>(steps - 1, 1));
  return points;
}

// A model whose modules know their names: PyTorch makes them when they are first asked for, and ends
// the program where there is no memory for that.
Net made(const Call& call) {
  auto net = call.make();
  for (const auto& module : net->modules()) std::ignore = module->name();
  return net;
}

void check(const Call& call, const std::string& kind, int64_t& before_fault, int64_t count) {
  constexpr int64_t many = int64_t{1} << 60;
  const auto wanted = [&] {
    auto net = made(call);
    call.change(*net);
    return output_of(*net);
  }();
  auto net = made(call);
  before_fault = many;
  call.change(*net);
  const auto total = many - before_fault;
  before_fault = never;
  std::string wrong;
  net = made(call);
  auto state = state_of(net);
  for (const auto point : sample(total, count)) {
    bool is_thrown = false;
    before_fault = point;
    try {
      call.change(*net);
    } catch (...) {
      is_thrown = true;
    }
    before_fault = never;
    const auto now = state_of(net);
    if (is_thrown && now == state) continue;
    if (is_thrown) {
      size_t line = 0;
      while (line + 1 < std::min(now.size(), state.size()) && now[line] == state[line]) ++line;
      wrong += " WRONG at " + std::to_string(point) + ": " + now[line].substr(0, 100);
    }
    net = made(call);  // PyTorch may catch a lack of memory itself, and go on
    state = state_of(net);
  }
  call.change(*net);
  if (!torch::equal(output_of(*net), wanted)) wrong += " WRONG: a second call differs";
  std::cout << "check\t" << call.name << '\t' << kind << '\t' << total << '\t'
            << (wrong.empty() ? "right" : wrong) << std::endl;
}

}  // namespace

// The arguments: a path for a file, and the most ops and allocations of each call that fail.
int main(int, char** arguments) {
  const std::string file = arguments[1];
  auto saved = built();
  baraquant::quantize_(*saved, baraquant::W4A16(4));
  for (const auto& tensor : {saved->calls, saved->norm->running_var}) tensor.fill_(7);
  baraquant::save(*saved, file);
  for (const auto& call : calls(file)) {
    {
      const c10::impl::IncludeDispatchKeyGuard guard(c10::DispatchKey::TESTING_ONLY_GenericMode);
      check(call, "ops", ops_before_fault, std::atoll(arguments[2]));
    }
    check(call, "memory", memory_before_fault, std::atoll(arguments[3]));
  }
}
