// SPDX-License-Identifier: BSD-3-Clause
#include "files/fits.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>

#include "api/nn/fused.h"
#include "files/layers.h"
#include "files/text.h"
#include "frame/checks.h"
#include "workflow/layers.h"
#include "workflow/replace.h"

namespace baraquant::files {
namespace {

using Aliases = std::map<std::string, std::vector<std::string>>;

at::Tensor meta(const std::string& name, c10::IntArrayRef shape, c10::ScalarType dtype) {
  try {
    return at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
  } catch (const c10::Error&) {  // a dimension of 0 beside others whose product is too large
    fail(name, ": expected a shape that a tensor can have, but got ", shape);
  }
}

void check_packed(const std::string& name, const Entry* entry, c10::IntArrayRef shape,
                  const StoredModule& stored) {
  const int64_t bits = stored.weight_bits();
  if (bits < 2 || bits > 7) {
    fail(name, ": expected a width of 2 to 7 bits for packed integers, not ", bits);
  }
  if (entry == nullptr) return;  // another module's tensor, or missing: that is noticed later
  const auto total = product(shape, bits);
  const Layout& got = entry->layout;
  if (total && got == Layout{at::kByte, {*total / 8 + (*total % 8 != 0)}}) return;
  fail(name, ": expected the bytes of packed integers of ", bits, " bits of shape ", shape,
       ", but got ", dtype_name(got.dtype), " ", got.shape);
}

// What a string of bits becomes: int8, or two integers in a byte for "packed".
at::Tensor unpacked(const std::string& full, const std::string& name, c10::IntArrayRef shape) {
  if (name != "packed") return meta(full, shape, at::kChar);
  if (shape.size() != 2) {
    fail(full, ": expected a shape of two dimensions, but got ", shape);
  }
  return meta(full, {shape[0], shape[1] / 2 + shape[1] % 2}, at::kByte);
}

std::string begin_of_place(const std::string& path, const StoredModule& stored) {
  return c10::str(path, ": expected a ", stored.form->layer, " for the ", stored.form->name,
                  " of the file");
}

// Check that the module of a path is of a kind that can become the stored one.
void check_kind(const std::string& path, const torch::nn::Module* module,
                const StoredModule& stored) {
  if (module == nullptr) {
    fail(begin_of_place(path, stored), ", but the model has no such module");
  }
  const auto* kind = workflow::kind_of(*module);  // null for a subclass, for example
  if (form_of(*module) == stored.form || (kind && stored.form->layer == kind->name)) return;
  fail(begin_of_place(path, stored), ", but the model has a ", workflow::type_name(*module));
}

// Check that the module of a path computes with fused ops.
void check_fused(const std::string& path, const torch::nn::Module* module) {
  if (dynamic_cast<const nn::FusedLayer*>(module) != nullptr) return;
  const std::string got =
      module != nullptr ? "a " + workflow::type_name(*module) : std::string("no such module");
  fail(path,
       ": expected an RMSNorm, LayerNorm, GELU or GatedMLP of baraquant::nn, as in the file, "
       "but the model has ",
       got);
}

void check_sizes(const std::string& path, const torch::nn::Module& module,
                 const torch::nn::Module& quantized) {
  const auto wanted = sizes_of_layer(quantized), got = sizes_of_layer(module);
  for (size_t i = 0; i < wanted.size() && i < got.size(); ++i) {
    const std::string of_file = dump(wanted[i].second), of_model = dump(got[i].second);
    if (of_file == of_model) continue;
    fail(path, ": expected ", wanted[i].first, " to be ", of_file,
         ", as in the file, but the model has ", of_model);
  }
}

void check_place(const std::string& path, const torch::nn::Module& module,
                 const StoredModule& stored, const torch::nn::Module& quantized) {
  check_sizes(path, module, quantized);
  const at::Tensor bias = tensor_of(quantized, "bias");
  if (bias.defined() != tensor_of(module, "bias").defined()) {
    fail(path, ": expected ", bias.defined() ? "a bias" : "no bias",
         ", as in the file, but the model has ", bias.defined() ? "none" : "one");
  }
  if (form_of(module) == stored.form) return;
  const auto dtype = value_of<at::ScalarType>(stored.options, "dtype"),
             got = tensor_of(module, "weight").scalar_type();
  if (dtype != got) {
    fail(path, ": expected a model of ", dtype_name(dtype), ", as in the file, but it is ",
         dtype_name(got), "; convert it first: model.to(", dtype_name(dtype), ")");
  }
}

void check_shared(const std::string& path, std::vector<std::string> stored,
                  std::vector<std::string> model) {
  stored.push_back(path);
  std::sort(stored.begin(), stored.end());
  std::sort(model.begin(), model.end());
  if (stored == model) return;
  fail(path, ": expected a module shared by ", c10::Join(", ", stored),
       ", but the model's is shared by ", c10::Join(", ", model));
}

std::string few(const std::vector<std::string>& names) {
  if (names.empty()) return "none are";
  std::string text =
      c10::Join(", ", c10::ArrayRef(names).slice(0, std::min<size_t>(3, names.size())));
  if (names.size() > 3) text += c10::str(" and ", names.size() - 3, " more");
  return text + (names.size() == 1 ? " is" : " are");
}

void check_same_names(const std::set<std::string>& wanted, const std::set<std::string>& given) {
  if (wanted == given) return;
  std::vector<std::string> missing, unknown;
  std::set_difference(wanted.begin(), wanted.end(), given.begin(), given.end(),
                      std::back_inserter(missing));
  std::set_difference(given.begin(), given.end(), wanted.begin(), wanted.end(),
                      std::back_inserter(unknown));
  fail("expected the tensors of the model, but ", few(missing), " missing in the file, and ",
       few(unknown), " unknown to the model");
}

using State = std::vector<std::pair<std::string, at::Tensor>>;

// Check the tensors outside of quantized layers.
void check_rest(const State& wanted, const Manifest& manifest, const Tensors& metas,
                const Inside& is_inside) {
  std::set<std::string> wanted_names, constants, given_names;
  for (const auto& [name, _] : wanted) {
    // What is a constant in Python is an ordinary buffer in C++.
    if (metas.contains(name) || !manifest.constants.contains(name)) wanted_names.insert(name);
  }
  for (const auto& [_, stored] : manifest.constants) constants.insert(stored);
  for (const auto& [name, _] : metas) {
    const bool is_constant = constants.contains(name) && !wanted_names.contains(name);
    if (!is_constant && !is_inside(name)) given_names.insert(name);
  }
  check_same_names(wanted_names, given_names);
  for (const auto& [name, tensor] : wanted) {
    if (tensor.is_meta()) {
      fail(name, ": expected a tensor with data, but it is on the meta device");
    }
    if (!wanted_names.contains(name)) continue;
    const at::Tensor& stored = metas.at(name);
    if (stored.sizes() == tensor.sizes() && stored.scalar_type() == tensor.scalar_type()) continue;
    fail(name, ": expected ", dtype_name(tensor.scalar_type()), " ", tensor.sizes(),
         " as in the model, but the file has ", dtype_name(stored.scalar_type()), " ",
         stored.sizes());
  }
  for (const auto& [name, stored] : manifest.constants) {
    if (metas.contains(stored)) continue;
    fail(name, ": expected a tensor ", stored, " in the file, but it has none");
  }
}

std::string place_of(const at::Tensor& tensor) {
  const void* place = tensor.numel() > 0 && !tensor.is_meta() ? tensor.const_data_ptr()
                                                              : tensor.unsafeGetTensorImpl();
  return c10::str(place, " ", dtype_name(tensor.scalar_type()), " ", tensor.sizes(), " ",
                  tensor.strides());
}

// Check that the file shares, besides what the model shares, only tensors of one kind: parameters
// of the same name in their modules, or tensors of quantized layers.
void check_shared_tensors(const State& state, const Paths& paths, const Manifest& manifest,
                          const Inside& is_inside) {
  std::map<std::string, std::string> places;
  for (const auto& [name, tensor] : state) places[name] = place_of(tensor);
  const auto leaf_of = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const auto is_parameter = [&](const std::string& name) {
    const size_t dot = name.rfind('.');
    const auto* owner = paths.find(name.substr(0, dot == std::string::npos ? 0 : dot));
    return owner != nullptr && !is_inside(name) &&
           owner->named_parameters(false).contains(leaf_of(name));
  };
  for (const auto& [alias, name] : manifest.shared_tensors) {
    const bool are_alike =
        leaf_of(alias) == leaf_of(name) &&
        ((is_inside(alias) && is_inside(name)) || (is_parameter(alias) && is_parameter(name)));
    const auto own = places.find(alias), first = places.find(name);
    const bool are_one =
        own != places.end() && first != places.end() && own->second == first->second;
    if (are_alike || are_one) continue;
    fail(alias, ": expected a tensor of its own, as in the model, but the file has that of ", name);
  }
}

// Check that the tensors that the model shares are one tensor of the file. The values are copied
// into the model's tensors, so this holds for buffers too, which Python replaces.
void check_ties(const State& wanted, const Manifest& manifest, const Tensors& metas) {
  std::map<std::string, std::vector<std::string>> groups;  // by the place in memory
  std::vector<const std::vector<std::string>*> ordered;
  for (const auto& [name, tensor] : wanted) {
    const auto [group, is_new] = groups.try_emplace(place_of(tensor));
    if (is_new) ordered.push_back(&group->second);
    group->second.push_back(name);
  }
  for (const auto* names : ordered) {
    std::set<std::string> firsts;
    for (const std::string& name : *names) {
      const Names& names = manifest.shared_tensors.contains(name) || metas.contains(name)
                               ? manifest.shared_tensors
                               : manifest.constants;
      const auto first = names.find(name);
      firsts.insert(first != names.end() ? first->second : name);
    }
    if (firsts.size() == 1) continue;
    fail(names->front(), ": expected one tensor for ", c10::Join(", ", *names),
         ", which the model shares, but the file has ", firsts.size());
  }
}

}  // namespace

Paths::Paths(torch::nn::Module& model) {
  at_[""] = &model;
  paths_[&model].emplace_back("");
  for (const workflow::Place& place : workflow::places_of(model)) {
    at_[place.path] = place.module;
    paths_[place.module].push_back(place.path);
  }
}

torch::nn::Module* Paths::find(const std::string& path) const {
  const auto found = at_.find(path);
  return found == at_.end() ? nullptr : found->second;
}

const std::vector<std::string>& Paths::of(const torch::nn::Module* module) const {
  return paths_.at(module);
}

Inside::Inside(const Manifest& manifest) {
  for (const auto& [path, _] : manifest.modules) paths_.insert(path);
  for (const auto& [path, _] : manifest.shared_modules) paths_.insert(path);
  for (const std::string& path : paths_) longest_ = std::max(longest_, path.size());
}

std::vector<std::string> Inside::layers_of(std::string_view name) const {
  std::vector<std::string> result;
  for (size_t dot = name.find('.'); dot != std::string_view::npos && dot <= longest_;
       dot = name.find('.', dot + 1)) {
    const std::string_view path = name.substr(0, dot);
    if (paths_.contains(path)) result.emplace_back(path);
  }
  return result;
}

Tensors meta_tensors(const std::map<std::string, Entry>& entries, const Manifest& manifest) {
  Tensors tensors;
  for (const auto& [name, entry] : entries) {
    tensors[name] = meta(name, entry.layout.shape, entry.layout.dtype);
  }
  for (const auto& [path, stored] : manifest.modules) {
    for (const auto& [name, shape] : stored.packed) {
      const std::string full = c10::str(path, ".", name);
      const auto entry = entries.find(full);
      const bool is_stored = entry != entries.end();
      check_packed(full, is_stored ? &entry->second : nullptr, shape, stored);
      if (is_stored) tensors[full] = unpacked(full, name, shape);
    }
  }
  Tensors shared;
  for (const auto& [alias, name] : manifest.shared_tensors) {
    const bool has_both = tensors.contains(alias);
    if (has_both || !tensors.contains(name)) {
      fail(alias, ": expected to be the same tensor as ", name, ", but the file has ",
           has_both ? "both" : "none");
    }
    shared[alias] = tensors.at(name);
  }
  tensors.merge(shared);
  for (const auto& [path, stored] : manifest.modules) {
    for (const auto& [name, _] : stored.packed) {
      if (tensors.contains(c10::str(path, ".", name))) continue;
      fail(path, ": expected a tensor ", name, ", but there is none");
    }
  }
  return tensors;
}

std::shared_ptr<torch::nn::Module> build_module(const std::string& path, const StoredModule& stored,
                                                const Tensors& tensors) {
  const std::string prefix = path + ".";
  Tensors own;
  for (auto it = tensors.lower_bound(prefix); it != tensors.end(); ++it) {
    if (!it->first.starts_with(prefix)) break;
    own[it->first.substr(prefix.size())] = it->second;
  }
  try {
    return build(*stored.form, stored.options, own);
  } catch (const c10::Error& error) {
    fail(path, ": ", error.what_without_backtrace());
  }
}

void check_fits(const torch::nn::Module& model, const Paths& paths, const Manifest& manifest,
                const Tensors& metas) {
  for (const std::string& path : manifest.fused) check_fused(path, paths.find(path));
  Aliases aliases;
  for (const auto& [alias, path] : manifest.shared_modules) aliases[path].push_back(alias);
  Aliases keys;  // the names of the tensors of each module
  for (const auto& [path, stored] : manifest.modules) {
    torch::nn::Module* module = paths.find(path);
    check_kind(path, module, stored);
    const auto built = build_module(path, stored, metas);
    check_place(path, *module, stored, *built);
    check_shared(path, aliases[path], paths.of(module));
    for (const auto& [name, _] : state_of(*built)) keys[path].push_back(name);
  }
  for (const auto& [name, _] : aliases) {
    if (!manifest.modules.contains(name)) {
      fail(name, ": expected a module of the file, but there is none");
    }
  }
  for (const auto& [alias, path] : manifest.shared_modules) {
    for (const std::string& key : keys[path]) {
      const std::string name = c10::str(alias, ".", key);
      if (manifest.shared_tensors.contains(name)) continue;
      fail(name, ": expected to be the tensor of ", path);
    }
  }
  const Inside is_inside(manifest);
  const State state = state_of(model);
  State wanted;
  for (const auto& [name, tensor] : state) {
    if (!is_inside(name)) wanted.emplace_back(name, tensor);
  }
  check_rest(wanted, manifest, metas, is_inside);
  check_shared_tensors(state, paths, manifest, is_inside);
  check_ties(wanted, manifest, metas);
}

}  // namespace baraquant::files
