// SPDX-License-Identifier: BSD-3-Clause
#include "files/manifest.h"

#include <algorithm>
#include <string_view>

#include "files/header.h"
#include "files/sha256.h"
#include "files/text.h"

namespace baraquant::files {
namespace {

constexpr std::string_view kChecksumKey = ", \"sha256\": \"";
constexpr size_t kChecksumLength = kChecksumKey.size() + 64 + 2;
constexpr const char* kLoadedByPython = "; baraquant.load_ of Python loads it";

Names names_of(const Json& data, const std::string& what) {
  const Json& value = data.at(what);
  Names names;
  bool is_valid = value.is<Json::Object>();
  for (const std::string& alias : value.keys()) {
    const Json& name = value.at(alias);
    is_valid = is_valid && name.is<std::string>();
    if (is_valid) names[alias] = name.get<std::string>();
  }
  if (!is_valid) fail("expected ", what, " to hold names, but got ", shown(value));
  for (const auto& [alias, name] : names) {
    if (names.contains(name)) {
      fail(alias, ": expected ", what, " to name the first of all, but got ", name);
    }
  }
  return names;
}

std::vector<std::string> paths_of(const Json& data, const std::string& what) {
  const Json& value = data.at(what);
  if (!value.holds_texts()) fail("expected ", what, " to hold paths, but got ", shown(value));
  std::vector<std::string> paths;
  for (const Json& path : value.get<Json::List>()) paths.push_back(path.get<std::string>());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The shapes of packed tensors.
std::map<std::string, std::vector<int64_t>> packed_of(const Form& form, const Json& value) {
  std::map<std::string, std::vector<int64_t>> result;
  bool is_valid = value.is<Json::Object>();
  for (const std::string& name : value.keys()) {
    const auto sizes = sizes_of(value.at(name));
    const bool is_known =
        std::ranges::find(form.tensors, name, &decltype(form.tensors)::value_type::first) !=
        form.tensors.end();
    is_valid = is_valid && sizes && is_known;
    if (is_valid) result[name] = *sizes;
  }
  if (!is_valid) fail("expected packed to hold shapes, but got ", shown(value));
  return result;
}

StoredModule module_of(const Json& value) {
  const std::vector<std::string> keys = {"class", "further", "options", "packed"};
  if (value.keys() != keys) fail("expected ", c10::Join(", ", keys), ", but got ", shown(value));
  const Json &name = value.at("class"), &further = value.at("further");
  if (!further.holds_texts()) fail("expected further to hold names, but got ", shown(further));
  const Form* form = name.is<std::string>() ? form_named(name.get<std::string>()) : nullptr;
  if (form == nullptr) {
    fail("expected a class that C++ has (", c10::Join(", ", form_names()), "), but got ",
         shown(name), "; baraquant.load_ of Python may have it");
  }
  StoredModule module{form, parse_options(*form, value.at("options")),
                      packed_of(*form, value.at("packed"))};
  if (!further.get<Json::List>().empty()) {
    fail("expected nothing beside the layer's own tensors, but got ", shown(further),
         kLoadedByPython);
  }
  if (module.options.contains("transposed") && value_of<bool>(module.options, "transposed")) {
    fail("expected a layer in place of a Linear, but got one of a Conv1D of transformers",
         kLoadedByPython);
  }
  return module;
}

void check_channels_last(const Manifest& manifest) {
  for (const std::string& path : manifest.channels_last) {
    const auto found = manifest.modules.find(path);
    if (found == manifest.modules.end() || found->second.form->layer != "Conv2d") {
      fail(path, ": expected a convolution, as it is in channels_last");
    }
  }
}

// The checksum of the text before it and of all tensors, in the order of their names.
std::string checksum(std::string_view text, const Tensors& tensors) {
  using namespace std::string_literals;
  Sha256 total;
  total.update(text);
  for (const auto& [name, tensor] : tensors) {
    total.update(c10::str(name, "\0"s, stored_name(tensor.scalar_type()), "\0"s));
    for (const int64_t size : tensor.sizes()) total.update(c10::str(size, "\0"s));
    if (tensor.numel() > 0) total.update(tensor.const_data_ptr(), tensor.nbytes());
  }
  return c10::str(kChecksumKey, total.hexdigest(), "\"}");
}

}  // namespace

Manifest parse_manifest(const std::string& text) {
  const Json data =
      within("expected its configuration to be JSON, but ", [&] { return parse_json(text); });
  const auto find = [&](const char* key) {
    const Json* value = data.find(key);
    return value != nullptr ? *value : Json();
  };
  if (find("format").integer() != kFormat) {
    fail("expected format ", kFormat, ", but got ", shown(find("format")), ", which ",
         shown(find("writer")), " has written");
  }
  const std::vector<std::string> keys = {
      "channels_last", "constants",      "format",         "fused",    "modules",
      "sha256",        "shared_modules", "shared_tensors", "unpacked", "writer"};
  if (data.keys() != keys) {
    const std::vector<std::string> got = data.keys();
    fail("expected its configuration to have ", c10::Join(", ", keys), ", but got ",
         shown(Json::List(got.begin(), got.end())));
  }
  if (data.at("modules").keys().empty()) {
    fail("expected its configuration to name modules, but it names none");
  }
  if (!data.at("writer").is<std::string>()) {
    fail("expected writer to be a text, but got ", shown(data.at("writer")));
  }
  Manifest manifest{{},
                    names_of(data, "shared_modules"),
                    names_of(data, "shared_tensors"),
                    names_of(data, "constants"),
                    paths_of(data, "fused"),
                    paths_of(data, "channels_last"),
                    text};
  for (const auto& [path, value] : data.at("modules").get<Json::Object>()) {
    manifest.modules[path] = within(path + ": ", [&, &value = value] { return module_of(value); });
  }
  for (const std::string& path : paths_of(data, "unpacked")) {
    fail(path,
         ": expected a model without attentions and recurrent modules of PyTorch that are "
         "quantized, but it is one",
         kLoadedByPython);
  }
  check_channels_last(manifest);
  return manifest;
}

std::string write_manifest(Json::Object plain, const Tensors& tensors) {
  std::string text = dump(std::move(plain));
  text.pop_back();  // the checksum brings the end
  return text + checksum(text, tensors);
}

bool is_whole(const std::string& text, const Tensors& tensors) {
  const size_t size = text.size() - std::min(text.size(), kChecksumLength);
  const std::string_view plain = std::string_view(text).substr(0, size);
  return std::string_view(text).substr(size) == checksum(plain, tensors);
}

}  // namespace baraquant::files
