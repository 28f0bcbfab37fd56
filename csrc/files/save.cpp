// SPDX-License-Identifier: BSD-3-Clause
// save: a quantized model as one safetensors file.
#include <map>
#include <tuple>

#include "api/files.h"
#include "api/nn/fused.h"
#include "api/nn/inference.h"
#include "files/disk.h"
#include "files/header.h"
#include "files/layers.h"
#include "files/manifest.h"
#include "files/packing.h"
#include "files/text.h"
#include "frame/build_info.h"
#include "frame/checks.h"
#include "workflow/layers.h"
#include "workflow/replace.h"

namespace baraquant {
namespace files {
namespace {

constexpr const char* kSave = "baraquant.save: ";

using Layer = std::pair<std::string, const nn::QuantizedLayer*>;

// The quantized modules of a model, and what else a file says of its modules.
struct Quantized {
  std::vector<Layer> modules;  // by their first paths
  Json::Object shared;         // the other paths of shared ones, and their first path
  std::vector<Layer> places;   // by all of their paths
  Json::List fused;            // the paths of the modules that compute with fused ops
  Json::List channels_last;    // of the convolutions whose floating weight has that format
};

void check_name(const std::string& name) {
  if (!is_utf8(name)) fail(kSave, name, ": expected a name in UTF-8");
}

Quantized quantized_modules(const torch::nn::Module& model) {
  if (form_of(model) != nullptr) {
    fail(kSave, "expected a model that contains ", workflow::type_name(model),
         ", but got one itself; wrap it in nn.Sequential");
  }
  Quantized result;
  std::map<const nn::QuantizedLayer*, std::string> first;
  // The walk is for those who swap modules; nothing changes here.
  for (const auto& place : workflow::places_of(const_cast<torch::nn::Module&>(model))) {
    const torch::nn::Module& module = *place.module;
    if (dynamic_cast<const nn::FusedLayer*>(&module) != nullptr) {
      result.fused.emplace_back(place.path);
    }
    if (form_of(module) == nullptr) {
      if (workflow::is_prepared(module)) {
        fail(kSave, place.path, ": expected a converted model, but ", workflow::type_name(module),
             " is prepared for training; call baraquant.qat.convert_ first");
      }
      continue;
    }
    check_name(place.path);
    const auto* layer = dynamic_cast<const nn::QuantizedLayer*>(&module);
    const auto [known, is_new] = first.try_emplace(layer, place.path);
    if (is_new) {
      result.modules.emplace_back(place.path, layer);
      const auto* conv = dynamic_cast<const nn::QuantizedConv2dImpl*>(layer);
      if (conv != nullptr && conv->channels_last) result.channels_last.emplace_back(place.path);
    } else {
      result.shared.push_back({place.path, known->second});
    }
    result.places.emplace_back(place.path, layer);
  }
  if (result.modules.empty()) {
    fail(kSave, "expected a quantized model, but got a ", workflow::type_name(model),
         " without a quantized module");
  }
  return result;
}

// The name of the tensor of integers that is wider in memory than in a file; nullptr without one.
const char* narrow_name(const nn::QuantizedLayer& layer) {
  const bool is_packed = layer.packed.defined();  // then four bits are stored as they are
  if (layer.weight_bits() >= (is_packed ? 4 : 8)) return nullptr;
  return is_packed ? "packed" : "qweight";
}

// The configuration's entry for a module, whose values are checked first.
Json entry_of(const std::string& path, const nn::QuantizedLayer& layer) {
  const Form& form = *form_of(layer);
  Json options = within(c10::str(kSave, path, ": "), [&] {
    check_values(form, layer);
    return read_options(form, layer);
  });
  Json::Object packed;
  if (const char* name = narrow_name(layer)) {
    packed.push_back({name, json_of(c10::IntArrayRef(layer.weight_sizes()))});
  }
  return Json::Object{{"class", form.name},
                      {"options", std::move(options)},
                      {"packed", std::move(packed)},
                      {"further", Json::List()}};
}

void check_storable(const std::string& name, const at::Tensor& tensor) {
  check_name(name);
  const bool is_dense = tensor.layout() == c10::kStrided && !tensor.is_nested();
  if (is_dense && !stored_name(tensor.scalar_type()).empty() && !tensor.is_meta()) return;
  fail(kSave, name, ": expected a dense tensor of a common dtype, with data, but got ",
       dtype_name(tensor.scalar_type()), ", ", tensor.layout(), ", on ", tensor.device().str());
}

// Where a tensor has its values, and how they are stored: equal for tensors that are stored once.
using Storage = std::tuple<const void*, std::string, std::vector<int64_t>, std::vector<int64_t>,
                           c10::ScalarType, int64_t>;

// The tensors as they are stored, each once, and the names that share a tensor.
//
// If modules share a weight but not its width, each width has its own copy, because packing differs.
std::pair<Tensors, Json::Object> stored_tensors(
    const torch::nn::Module& model,
    const std::map<std::string, const nn::QuantizedLayer*>& narrow) {
  Tensors stored;
  Json::Object shared;
  std::map<Storage, std::string> first;
  for (const auto& [name, tensor] : state_of(model)) {
    check_storable(name, tensor);
    const auto layer = narrow.find(name);
    const int64_t bits = layer != narrow.end() ? layer->second->weight_bits() : 0;
    if (tensor.numel() > 0) {
      const Storage storage(tensor.const_data_ptr(), tensor.device().str(), tensor.sizes().vec(),
                            tensor.strides().vec(), tensor.scalar_type(), bits);
      const auto [known, is_new] = first.try_emplace(storage, name);
      if (!is_new) {
        shared.push_back({name, known->second});
        continue;
      }
    }
    stored[name] = bits > 0 ? pack(layer->second->int8_weight(), bits)
                            : tensor.detach().cpu().resolve_neg().contiguous();
  }
  return {std::move(stored), std::move(shared)};
}

}  // namespace
}  // namespace files

void save(const torch::nn::Module& model, const std::filesystem::path& path) {
  using namespace files;
  Quantized quantized = quantized_modules(model);
  Json::Object modules;
  for (const auto& [name, layer] : quantized.modules) {
    modules.push_back({name, entry_of(name, *layer)});
  }
  std::map<std::string, const nn::QuantizedLayer*> narrow;
  for (const auto& [name, layer] : quantized.places) {
    if (const char* tensor = narrow_name(*layer)) narrow[c10::str(name, ".", tensor)] = layer;
  }
  auto [stored, shared] = stored_tensors(model, narrow);
  const std::string text = write_manifest({{"format", kFormat},
                                           {"writer", c10::str("baraquant ", build_info().version)},
                                           {"modules", std::move(modules)},
                                           {"shared_modules", std::move(quantized.shared)},
                                           {"shared_tensors", std::move(shared)},
                                           {"constants", Json::Object()},
                                           {"unpacked", Json::List()},
                                           {"fused", std::move(quantized.fused)},
                                           {"channels_last", std::move(quantized.channels_last)}},
                                          stored);
  const auto [header, ordered] = write_header(stored, text);
  replace_file(path, [&](OutputFile& file) {
    file.write(header.data(), header.size());
    for (const at::Tensor& tensor : ordered) {
      if (tensor.numel() > 0) file.write(tensor.const_data_ptr(), tensor.nbytes());
    }
  });
}

}  // namespace baraquant
