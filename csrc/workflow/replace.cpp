// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/replace.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <iterator>
#include <set>
#include <utility>

#include "workflow/layers.h"

namespace baraquant::workflow {

namespace {

void visit(torch::nn::Module& parent, const std::string& prefix, std::vector<Place>& places) {
  for (const auto& child : parent.named_children()) {
    const auto path = prefix + child.key();
    places.push_back({path, child.key(), &parent, child.value().get()});
    visit(*child.value(), path + ".", places);
  }
}

// Whether a container owns its children a second time.
bool is_container(const torch::nn::Module& parent) {
  return dynamic_cast<const torch::nn::SequentialImpl*>(&parent) != nullptr ||
         dynamic_cast<const torch::nn::ModuleListImpl*>(&parent) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&parent) != nullptr;
}

// Puts one module into the place of another one; a second call takes that back. A call exchanges
// pointers alone, so it cannot fail.
struct Exchange {
  torch::nn::Module& parent;
  std::string name;
  std::shared_ptr<torch::nn::Module> inside, outside;
  torch::nn::AnyModule any;  // `outside`, as torch::nn::Sequential holds it
  size_t position;           // of the entry in a Sequential or ModuleList

  void operator()() {
    parent.replace_module(name, outside);
    const auto at = static_cast<std::ptrdiff_t>(position);
    if (auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent)) {
      if (position < sequential->size()) std::swap(*std::next(sequential->begin(), at), any);
    } else if (auto* list = dynamic_cast<torch::nn::ModuleListImpl*>(&parent)) {
      if (position < list->size()) *std::next(list->begin(), at) = outside;
    } else if (auto* dictionary = dynamic_cast<torch::nn::ModuleDictImpl*>(&parent)) {
      for (auto& entry : *dictionary) {
        if (entry.key() == name) entry.value() = outside;
      }
    }
    std::swap(inside, outside);
  }
};

}  // namespace

std::vector<Place> places_of(torch::nn::Module& model) {
  std::vector<Place> places;
  visit(model, "", places);
  return places;
}

std::vector<Place> first_places(const std::vector<Place>& places) {
  std::vector<Place> result;
  std::set<const torch::nn::Module*> seen;
  std::string inside;  // the path of the last layer of ours
  for (const auto& place : places) {
    if (!inside.empty() && place.path.starts_with(inside)) continue;
    inside.clear();
    if (is_prepared(*place.module) || is_converted(*place.module)) inside = place.path + ".";
    if (seen.insert(place.module).second) result.push_back(place);
  }
  return result;
}

void check_owner(const std::string& caller, const std::vector<Place>& places,
                 torch::nn::Module& module) {
  std::set<std::pair<torch::nn::Module*, std::string>> counted;  // a parent may have several paths
  int64_t owners = 0;
  const Place* first = nullptr;
  for (const auto& place : places) {
    if (place.module != &module || !counted.emplace(place.parent, place.name).second) continue;
    owners += is_container(*place.parent) ? 2 : 1;
    first = first == nullptr ? &place : first;
  }
  const auto found = module.shared_from_this().use_count() - 1;  // without the one here
  TORCH_CHECK_VALUE(
      first == nullptr || found <= owners, caller, ": ", first->path,
      ": expected the model alone to hold this ", type_name(module),
      ", but something else holds it too, such as a typed member, and would go on with the old "
      "layer. Register the layer without a member and call it with baraquant::call(*this, \"",
      first->name, "\", x), or release the variable that holds it");
}

void check_owners(const std::string& caller, const std::vector<Place>& places, const Swaps& swaps) {
  std::set<const torch::nn::Module*> checked;
  for (const auto& place : places) {
    if (!swaps.contains(place.module) || !checked.insert(place.module).second) continue;
    check_owner(caller, places, *place.module);
  }
}

void put(Transaction& change, torch::nn::Module& parent, const std::string& name,
         const std::shared_ptr<torch::nn::Module>& module, const torch::nn::AnyModule& any) {
  const auto old = parent.named_children()[name];
  const auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent);
  const auto* list = dynamic_cast<torch::nn::ModuleListImpl*>(&parent);
  const auto entry = [&](size_t i) { return sequential ? sequential->ptr(i) : list->ptr(i); };
  const size_t entries = sequential ? sequential->size() : list ? list->size() : 0;
  size_t position = 0;
  for (const auto& child : parent.named_children()) {
    if (child.key() == name) break;
    // A child that was registered without an entry is passed by.
    if (position < entries && entry(position) == child.value()) ++position;
  }
  const auto exchange =
      std::make_shared<Exchange>(Exchange{parent, name, old, module, any, position});
  change.undo_by([exchange] { (*exchange)(); });
  (*exchange)();
}

void swap(Transaction& change, const std::vector<Place>& places, const Swaps& swaps) {
  for (const auto& place : places) {
    const auto found = swaps.find(place.module);
    if (found == swaps.end()) continue;
    // A parent that is registered twice has been changed already.
    if (place.parent->named_children()[place.name].get() != place.module) continue;
    put(change, *place.parent, place.name, found->second, any_module(found->second));
  }
}

}  // namespace baraquant::workflow
