// SPDX-License-Identifier: BSD-3-Clause
#include "files/forms.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "api/nn/inference.h"
#include "api/nn/int4.h"
#include "files/layers.h"
#include "files/text.h"

namespace baraquant::files {
namespace {

void check_value(const Option& option, const Json& value) {
  if (option.kind.is_valid(value)) return;
  fail("expected ", option.name, " to be ", option.kind.expected, ", but got ", shown(value));
}

void check_within(const std::string& name, const at::Tensor& tensor, int64_t low, int64_t high) {
  if (tensor.numel() == 0) return;
  const auto [min, max] = at::aminmax(tensor);
  const int64_t smallest = min.item<int64_t>(), largest = max.item<int64_t>();
  if (smallest >= low && largest <= high) return;
  fail(name, ": expected integers in [", low, ", ", high, "], but got ", smallest, " to ", largest);
}

void check_positive(const std::string& name, const at::Tensor& tensor) {
  if (at::isfinite(tensor).logical_and(tensor > 0).all().item<bool>()) return;
  fail(name, ": expected finite numbers > 0, but it holds others");
}

void check_rounder(const torch::nn::Module& module) {
  const auto* layer = dynamic_cast<const nn::DequantizedLayer*>(&module);
  const auto rounder = layer != nullptr ? layer->input_fake_quant : nullptr;
  if (rounder == nullptr || !rounder->scale.defined()) return;
  check_within("input_fake_quant.zero_point", rounder->zero_point, rounder->quant_min(),
               rounder->quant_max());
  check_positive("input_fake_quant.scale", rounder->scale);
}

}  // namespace

const Form* form_of(const torch::nn::Module& module) {
  for (const Form& form : form_table()) {
    if (form.matches(module)) return &form;
  }
  return nullptr;
}

const Form* form_named(const std::string& name) {
  for (const Form& form : form_table()) {
    if (form.name == name) return &form;
  }
  return nullptr;
}

std::vector<std::string> form_names() {
  std::vector<std::string> names;
  for (const Form& form : form_table()) names.push_back(form.name);
  std::sort(names.begin(), names.end());
  return names;
}

Json read_options(const Form& form, const torch::nn::Module& module) {
  const Options values = form.read(module);
  Json::Object object;
  for (const Option& option : form.options) {
    check_value(option, values.at(option.name));
    object.push_back({option.name, values.at(option.name)});
  }
  return object;
}

Options parse_options(const Form& form, const Json& options) {
  std::vector<std::string> known;
  known.reserve(form.options.size());
  for (const Option& option : form.options) known.push_back(option.name);
  std::sort(known.begin(), known.end());
  if (options.keys() != known) {
    fail("expected the options ", c10::Join(", ", known), ", but got ", shown(options));
  }
  Options parsed;
  for (const Option& option : form.options) {
    const Json& value = parsed[option.name] = options.at(option.name);
    check_value(option, value);
  }
  return parsed;
}

std::shared_ptr<torch::nn::Module> build(const Form& form, const Options& options,
                                         const Tensors& tensors) {
  std::map<std::string, bool> known(form.tensors.begin(), form.tensors.end());
  for (const auto& [name, is_required] : known) {
    if (is_required && !tensors.contains(name)) {
      fail("expected a tensor ", name, ", but there is none");
    }
  }
  const auto rounder = options.find("input_fake_quant");
  if (rounder != options.end() && !rounder->second.is_null()) {
    for (const char* name : {"scale", "zero_point"}) known[c10::str("input_fake_quant.", name)];
  }
  for (const auto& [name, _] : tensors) {
    if (!known.contains(name)) fail("expected no tensor ", name, ", but there is one");
  }
  return form.make(options, tensors);
}

void check_values(const Form& form, const torch::nn::Module& module) {
  Tensors own;
  for (const auto& [name, tensor] : state_of(module)) own[name] = tensor;
  const auto& layer = dynamic_cast<const nn::QuantizedLayer&>(module);
  const int64_t weight = int64_t{1} << (layer.weight_bits() - 1);
  const Options options = form.read(module);
  const int64_t bits = options.contains("bits") ? value_of<int64_t>(options, "bits") : 8;
  const int64_t input = int64_t{1} << (bits - 1);
  for (const auto& [name, is_required] : form.tensors) {
    const auto found = own.find(name);
    if (found == own.end()) {
      if (!is_required) continue;
      fail("expected ", form.name, " to have a tensor ", name, ", but it has none");
    }
    if (name == "packed") {
      if (layer.weight_bits() < 4) {  // four bits hold no other numbers
        check_within(name, layer.int8_weight(), -weight, weight - 1);
      }
    } else if (name == "group_factor") {
      check_within(name, found->second, 1, 16);
    } else if (name == "group_zero_point") {
      check_within(name, found->second, 0, 15);
    } else if (name == "qweight" || name == "weight_zero_point") {
      check_within(name, found->second, -weight, weight - 1);
    } else if (name.ends_with("zero_point")) {
      check_within(name, found->second, -input, input - 1);
    } else if (name.ends_with("scale") || name.ends_with("smooth")) {
      check_positive(name, found->second);
    }
  }
  if (const auto* int4 = dynamic_cast<const nn::Int4Linear*>(&module)) int4->check_products();
  check_rounder(module);
}

}  // namespace baraquant::files
