// SPDX-License-Identifier: BSD-3-Clause
#include "files/manifest.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "files/header.h"
#include "files/sha256.h"
#include "files/text.h"
#include "frame/checks.h"

namespace baraquant::files {
namespace {

// The classes that Python has and C++ lacks.
constexpr std::array<std::string_view, 6> kOnlyPython = {
    "QuantizedConv1d",          "QuantizedConv3d",          "QuantizedConvTranspose1d",
    "QuantizedConvTranspose2d", "QuantizedConvTranspose3d", "QuantizedExperts"};
constexpr const char* kLoadedByPython = "; baraquant.load_ of Python loads it";

bool holds_texts(const Json& value) {
  if (!value.is<Json::List>()) return false;
  const Json::List& list = value.get<Json::List>();
  return std::all_of(list.begin(), list.end(),
                     [](const Json& entry) { return entry.is<std::string>(); });
}

std::string sorted_keys(const Json& object) { return repr(object.keys()); }

Names names_of(const std::string& what, const Json& value) {
  Names names;
  bool is_valid = value.is<Json::Object>();
  for (const JsonMember& member : is_valid ? value.get<Json::Object>() : Json::Object()) {
    is_valid = is_valid && member.value.is<std::string>();
    if (is_valid) names.insert(member.key, member.value.get<std::string>());
  }
  if (!is_valid) fail("expected ", what, " to hold names, but got ", repr(value, 80));
  for (const auto& item : names) {
    if (names.contains(item.value())) {
      fail(item.key(), ": expected ", what, " to name the first of all, but got ", item.value());
    }
  }
  return names;
}

// The form of a class by its name in a file.
const Form& form_of_class(const std::string& path, const Json& name, int64_t version) {
  std::vector<std::string> known = form_names();
  std::string text = name.is<std::string>() ? name.get<std::string>() : "";
  if (version < 3 && text == "DequantizedLinear") text = "WeightOnlyLinear";
  if (version < 3 && text == "SmoothQuantLinear") text = "StaticQuantizedLinear";
  if (const Form* form = form_named(text)) return *form;
  if (std::find(kOnlyPython.begin(), kOnlyPython.end(), text) != kOnlyPython.end()) {
    fail(path, ": expected a class that C++ has (", join(known, ", "), "), but got ", text,
         kLoadedByPython);
  }
  known.insert(known.end(), kOnlyPython.begin(), kOnlyPython.end());
  std::sort(known.begin(), known.end());
  const std::string got =
      name.is<std::string>() ? first_characters(repr(text), 80) : repr(name, 80);
  fail(path, ": expected a class of ", join(known, ", "), ", but got ", got,
       "; one of your own has to be registered first, by baraquant.register_layer");
}

// The shapes of packed tensors.
std::vector<std::pair<std::string, std::vector<int64_t>>> packed_of(const std::string& path,
                                                                    const Form& form,
                                                                    const Json& value,
                                                                    int64_t version) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> result;
  bool is_valid = value.is<Json::Object>();
  for (const JsonMember& member : is_valid ? value.get<Json::Object>() : Json::Object()) {
    const std::string name = version == 1 && member.key == "weight" ? "qweight" : member.key;
    const auto sizes = sizes_of(member.value);
    const bool is_known = std::any_of(form.tensors.begin(), form.tensors.end(),
                                      [&](const auto& tensor) { return tensor.first == name; });
    is_valid = is_valid && sizes && is_known;
    if (is_valid) result.emplace_back(name, *sizes);
  }
  if (!is_valid) fail(path, ": expected packed to hold shapes, but got ", repr(value, 80));
  return result;
}

// Check that C++ has what a module needs besides its class.
void check_supported(const std::string& path, const Json& further, const Options& options) {
  if (!further.get<Json::List>().empty()) {
    fail(path, ": expected nothing beside the layer's own tensors, but got ", repr(further, 80),
         kLoadedByPython);
  }
  const auto transposed = options.find("transposed");
  if (transposed != options.end() && transposed->second.get<bool>()) {
    fail(path, ": expected a layer in place of a Linear, but got one of a Conv1D of transformers",
         kLoadedByPython);
  }
}

StoredModule module_of(const std::string& path, const Json& value, int64_t version) {
  std::vector<std::string> keys = {"class", "further", "options", "packed"};
  if (version < 3) keys.erase(keys.begin() + 1);
  if (!value.is<Json::Object>() || value.keys() != keys) {
    fail(path, ": expected ", join(keys, ", "), ", but got ", repr(value, 80));
  }
  const Json further = version < 3 ? Json(Json::List()) : value.at("further");
  if (!holds_texts(further)) {
    fail(path, ": expected further to hold names, but got ", repr(further, 80));
  }
  const Form& form = form_of_class(path, value.at("class"), version);
  StoredModule module{&form, {}, packed_of(path, form, value.at("packed"), version)};
  try {
    module.options = parse_options(form, value.at("options"), version);
  } catch (const c10::ValueError& error) {
    fail(path, ": ", error.what_without_backtrace());
  }
  check_supported(path, further, module.options);
  return module;
}

// The format, which is checked.
int64_t version_of(const Json& data) {
  const Json* value = data.find("format");
  const Json version = value != nullptr ? *value : Json();
  const bool is_number = version.is<Json::Integer>();
  const std::string digits = is_number ? version.get<Json::Integer>().digits : "";
  if (!is_number || digits[0] == '-' || digits == "0") {
    fail("expected a format of 1 or more, but got ", repr(version, 80));
  }
  const auto number = version.integer();
  if (!number || *number > kFormat) {
    const Json* writer = data.find("writer");
    fail("expected format ", kFormat, " at most, but got ", digits, ": ",
         repr(writer != nullptr ? *writer : Json(), 40), " has written it; update baraquant");
  }
  return *number;
}

void check_paths(const std::string& what, const Json& paths) {
  if (!holds_texts(paths)) fail("expected ", what, " to hold paths, but got ", repr(paths, 80));
}

// Check the keys, and the values that are no names.
void check_keys(const Json& data, int64_t version) {
  const std::string unpacked = version > 2 ? "unpacked" : "attentions";
  std::vector<std::string> keys = {"format",         "modules", "sha256", "shared_modules",
                                   "shared_tensors", "writer",  unpacked};
  if (version > 1) keys.emplace_back("constants");
  if (version > 3) keys.emplace_back("fused");
  std::sort(keys.begin(), keys.end());
  if (data.keys() != keys) {
    fail("expected its configuration to have ", repr(keys), ", but got ",
         first_characters(sorted_keys(data), 200));
  }
  const Json& modules = data.at("modules");
  if (!modules.is<Json::Object>() || modules.get<Json::Object>().empty()) {
    fail("expected its configuration to name modules, but it names none");
  }
  check_paths(unpacked, data.at(unpacked));
  if (version > 3) check_paths("fused", data.at("fused"));
  const Json& sha256 = data.at("sha256");
  if (!sha256.is<std::string>()) {
    fail("expected sha256 to be a text, but got ", repr(sha256, 80));
  }
}

// Format 1 called the integers "weight".
void rename_weights(Manifest& manifest, const Json& modules) {
  for (const JsonMember& member : modules.get<Json::Object>()) {
    manifest.names.insert(member.key + ".weight", member.key + ".qweight");
  }
  for (const auto& item : manifest.shared_modules) {
    const std::string old = item.key() + ".weight";
    if (!manifest.names.contains(old)) manifest.names.insert(old, item.key() + ".qweight");
  }
  const auto current = [&](const std::string& name) {
    const std::string* found = manifest.names.find(name);
    return found != nullptr ? *found : name;
  };
  Names shared;
  for (const auto& item : manifest.shared_tensors) {
    const std::string alias = current(item.key());
    if (shared.contains(alias)) {
      shared[alias] = current(item.value());
    } else {
      shared.insert(alias, current(item.value()));
    }
  }
  manifest.shared_tensors = shared;
}

Json parse_config(const std::string& text) {
  try {
    return parse_json(text);
  } catch (const c10::ValueError& error) {
    fail("expected its configuration to be JSON, but ", error.what_without_backtrace());
  }
}

}  // namespace

Manifest parse_manifest(const std::string& text) {
  const Json data = parse_config(text);
  const int64_t version = version_of(data);
  check_keys(data, version);
  Manifest manifest;
  manifest.shared_modules = names_of("shared_modules", data.at("shared_modules"));
  manifest.shared_tensors = names_of("shared_tensors", data.at("shared_tensors"));
  if (version == 1) rename_weights(manifest, data.at("modules"));
  for (const JsonMember& member : data.at("modules").get<Json::Object>()) {
    manifest.modules.insert(member.key, module_of(member.key, member.value, version));
  }
  if (version > 1) manifest.constants = names_of("constants", data.at("constants"));
  const Json& unpacked = data.at(version > 2 ? "unpacked" : "attentions");
  if (!unpacked.get<Json::List>().empty()) {
    fail(unpacked.get<Json::List>().front().get<std::string>(),
         ": expected a model without attentions and recurrent modules of PyTorch that are "
         "quantized, but it is one",
         kLoadedByPython);
  }
  if (version > 3) {
    for (const Json& path : data.at("fused").get<Json::List>()) {
      manifest.fused.push_back(path.get<std::string>());
    }
  }
  manifest.sha256 = data.at("sha256").get<std::string>();
  Json::Object plain;
  for (const JsonMember& member : data.get<Json::Object>()) {
    if (member.key != "sha256") plain.push_back(member);
  }
  manifest.plain = std::move(plain);
  return manifest;
}

std::string write_manifest(const Json::Object& plain, const Tensors& tensors) {
  Json::Object whole = plain;
  whole.push_back({"sha256", digest(plain, tensors)});
  return dump(whole);
}

std::string digest(const Json& plain, const Tensors& tensors) {
  Sha256 total;
  total.update(dump(plain));
  for (const auto& [name, tensor] : tensors) {
    Json::List shape;
    for (const int64_t size : tensor.sizes()) shape.emplace_back(size);
    total.update(dump(Json::List{name, dtype_name(tensor.scalar_type()), std::move(shape)}));
    if (tensor.numel() > 0) total.update(tensor.const_data_ptr(), tensor.nbytes());
  }
  return total.hexdigest();
}

}  // namespace baraquant::files
