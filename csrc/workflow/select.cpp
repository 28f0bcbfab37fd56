// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/select.h"

#include <algorithm>
#include <map>

namespace baraquant::workflow {

namespace {

constexpr const char* filtered = "filter_fn";

using Key = const void*;

Key key_of(const torch::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

// Why a module that is no float layer stays as it is; empty if it has no weights.
std::string why_unknown(const torch::nn::Module& module) {
  if (is_prepared(module)) return "it is prepared already";
  if (is_converted(module)) return "it is converted already";
  if (weights_of(module).empty()) return "";
  return "there is no quantized form of " + type_name(module);
}

bool is_empty(const torch::nn::Module& module) {
  const auto weights = weights_of(module);
  return std::all_of(weights.begin(), weights.end(),
                     [](const torch::Tensor& weight) { return weight.numel() == 0; });
}

std::string about(const nn::FakeQuantizedLayer& prepared) {
  const auto& config = prepared.config();
  const bool is_embedding = dynamic_cast<const nn::FakeQuantizedEmbeddingImpl*>(&prepared);
  return type_name(prepared) + "(" +
         (is_embedding ? "weight=" + config.weight_str() : config.str()) + ")";
}

struct Chooser {
  torch::nn::Module& model;
  const std::vector<Place>& places;
  const Choice& choice;
  const Filter& filter;
  Report& report;
  std::vector<Chosen> chosen;
  // Learned and observed scales, which layers with one weight share.
  std::map<Key, std::shared_ptr<nn::FakeQuantizedLayer>> first_with;
  std::map<Key, std::set<const torch::nn::Module*>> holders;  // of each parameter

  bool is_filtered(const torch::nn::Module& module) const {
    if (!filter) return false;
    std::string taken, refused;
    for (const auto& place : places) {
      if (place.module == &module) (filter(module, place.path) ? taken : refused) = place.path;
    }
    TORCH_CHECK_VALUE(taken.empty() || refused.empty(), choice.caller, ": ", taken,
                      ": expected filter_fn to say the same of one shared module, but it took ",
                      taken, " and refused ", refused);
    return taken.empty();
  }

  void visit(const Place& place) {
    const auto* kind = kind_of(*place.module);
    std::string reason;
    if (kind == nullptr) {
      reason = why_unknown(*place.module);
    } else if (is_filtered(*place.module)) {
      reason = filtered;
    } else {
      reason = why_float(*place.module);
      if (reason.empty() && is_empty(*place.module)) reason = "its weight has no elements";
      if (reason.empty()) reason = prepare(place, *kind);
    }
    if (!reason.empty()) report.left_out.emplace_back(place.path, reason);
  }

  // Whether another module has one of the parameters, and would compute with a rotated one.
  bool is_shared(const torch::nn::Module& module) {
    if (holders.empty()) {
      const auto count = [&](const torch::nn::Module& one) {
        for (const auto& tensor : one.parameters(/*recurse=*/false)) {
          holders[key_of(tensor)].insert(&one);
        }
      };
      count(model);
      for (const auto& place : places) count(*place.module);
    }
    const auto own = module.parameters(/*recurse=*/false);
    return std::any_of(own.begin(), own.end(), [&](const torch::Tensor& tensor) {
      return holders[key_of(tensor)].size() > 1;
    });
  }

  // Returns why the layer stays floating; empty if it is chosen.
  std::string prepare(const Place& place, const Kind& kind) {
    with_path(choice.caller, place.path, [&] { choice.check(*place.module); });
    std::shared_ptr<nn::FakeQuantizedLayer> prepared;
    try {
      const auto config = choice.config(kind);
      prepared =
          kind.prepare(*place.module, is_shared(*place.module) ? config.with_rotation(0) : config);
    } catch (const c10::ValueError& error) {
      return std::string("the configuration does not fit: ") + error.what_without_backtrace();
    }
    if (!prepared->config().weight().dynamic()) {
      const auto [first, is_new] = first_with.emplace(key_of(prepared->weight), prepared);
      const bool is_same = first->second->config().weight() == prepared->config().weight();
      if (!is_new && is_same) prepared->share_weight_quantizer(*first->second);
    }
    chosen.push_back({place.path, place.module, prepared, ""});
    return "";
  }

  // A weight that stays floating in another module stays floating in all.
  void leave_out_tied() {
    std::set<const torch::nn::Module*> swapped;
    for (const auto& one : chosen) swapped.insert(one.module);
    std::map<std::string, std::string> why(report.left_out.begin(), report.left_out.end());
    std::map<Key, std::string> floating;
    const auto note = [&](const torch::nn::Module& module, const std::string& path) {
      if (swapped.contains(&module) || is_prepared(module)) return;
      const auto reason = why.find(path);
      if (reason != why.end() && reason->second == filtered) return;
      for (const auto& tensor : module.parameters(/*recurse=*/false)) {
        floating.emplace(key_of(tensor), path.empty() ? "(the model)" : path);
      }
    };
    note(model, "");
    for (const auto& place : places) note(*place.module, place.path);
    std::vector<Chosen> kept;
    for (auto& one : chosen) {
      const auto other = floating.find(key_of(one.prepared->weight));
      if (other == floating.end()) {
        kept.push_back(std::move(one));
      } else {
        report.left_out.emplace_back(
            one.path, "its weight is also that of " + other->second + ", which stays floating");
      }
    }
    chosen = std::move(kept);
  }
};

}  // namespace

std::vector<Chosen> choose(torch::nn::Module& model, const std::vector<Place>& places,
                           const Choice& choice, const Filter& filter, Report& report) {
  TORCH_CHECK_VALUE(kind_of(model) == nullptr, choice.caller,
                    ": expected a model that contains the layers to swap, but got a ",
                    type_name(model), " itself; wrap it in nn.Sequential");
  report.total_parameters = total_elements(model.parameters());
  report.bytes_before = report.bytes_after = total_bytes(model);
  Chooser chooser{model, places, choice, filter, report, {}, {}, {}};
  for (const auto& place : first_places(places)) chooser.visit(place);
  chooser.leave_out_tied();
  Swaps swaps;
  std::vector<torch::Tensor> weights;
  for (const auto& one : chooser.chosen) {
    swaps[one.module] = one.prepared;
    report.changed.emplace_back(one.path, about(*one.prepared));
    weights.push_back(one.prepared->weight);
  }
  report.quantized_parameters = total_elements(weights);
  check_owners(choice.caller, places, swaps);
  return std::move(chooser.chosen);
}

void with_path(const std::string& caller, const std::string& path,
               const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, caller, ": ", path, ": ", error.what_without_backtrace());
  }
}

namespace {

// The first reasons of a report in brackets; empty if there are none.
std::string reasons(const Report& report) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& one : report.left_out) {
    if (one.second != filtered) found.push_back(one);
  }
  if (found.empty()) found = report.left_out;
  std::string text;
  for (size_t i = 0; i < found.size() && i < 5; ++i) {
    text += (i == 0 ? " (" : "; ") + found[i].first + ": " + found[i].second;
  }
  return text.empty() ? "" : text + ")";
}

}  // namespace

std::string nothing_to(const char* verb, const torch::nn::Module& model,
                       const std::vector<Place>& places, const Report& report) {
  const auto kind = type_name(model);
  const auto has = [&](bool (*is)(const torch::nn::Module&)) {
    return std::any_of(places.begin(), places.end(),
                       [&](const Place& place) { return is(*place.module); });
  };
  if (has(is_prepared)) return "expected a float model, but " + kind + " is prepared already";
  if (has(is_converted)) return "expected a float model, but " + kind + " is converted already";
  return c10::str("expected a model with a Linear, Conv1d, Conv2d, Embedding or another layer to ",
                  verb, ", but ", kind, " has none", reasons(report));
}

namespace {

// The sum of a size of the tensors, each counted once.
template <typename Size>
int64_t total(const std::vector<torch::Tensor>& tensors, const Size& size) {
  int64_t sum = 0;
  std::set<Key> counted;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && counted.insert(key_of(tensor)).second) sum += size(tensor);
  }
  return sum;
}

}  // namespace

int64_t total_bytes(const torch::nn::Module& model) {
  auto tensors = model.parameters();
  const auto buffers = model.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return total(tensors, [](const auto& tensor) { return static_cast<int64_t>(tensor.nbytes()); });
}

int64_t total_elements(const std::vector<torch::Tensor>& tensors) {
  return total(tensors, [](const auto& tensor) {
    return tensor.is_floating_point() ? tensor.numel() : int64_t{0};
  });
}

}  // namespace baraquant::workflow
