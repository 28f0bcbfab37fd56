// SPDX-License-Identifier: BSD-3-Clause
#include "files/forms.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "api/nn/inference.h"
#include "api/nn/int4.h"
#include "files/layers.h"
#include "files/text.h"
#include "frame/checks.h"
#include "nn/layer_arguments.h"

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

// The rule of a tensor; null for one that the table does not know.
const TensorRule* rule_of(std::string_view name) {
  for (const TensorRule& rule : tensor_rules()) {
    if (name.ends_with(rule.end)) return &rule;
  }
  return nullptr;
}

// The dtypes that a tensor of a layer may have.
std::vector<c10::ScalarType> dtypes_of(const TensorRule& rule, c10::ScalarType layer) {
  const auto scale = layer == at::kDouble ? at::kDouble : at::kFloat;
  if (rule.dtype == "int8") return {at::kChar};
  if (rule.dtype == "uint8") return {at::kByte};
  if (rule.dtype == "integer") return {at::kInt};  // constructors make it that
  if (rule.dtype == "bias" && layer != scale) return {layer, scale};
  return {scale};
}

const nn::FakeQuantizeImpl* rounder_in(const torch::nn::Module& module) {
  const auto* layer = dynamic_cast<const nn::DequantizedLayer*>(&module);
  return layer != nullptr ? layer->input_fake_quant.get() : nullptr;
}

// Check that what rounds an input has a scale for each of its features, groups or tokens.
void check_rounder(const Form& form, const torch::nn::Module& module) {
  const nn::FakeQuantizeImpl* rounder = rounder_in(module);
  if (rounder == nullptr || rounder->options.mode() != "fixed") return;
  const std::string& granularity = rounder->options.granularity();
  if (granularity == "per_tensor") return;
  if (granularity != "per_token" && form.layer != "Linear") {
    fail("expected input_fake_quant to have one scale in a ", form.layer, ", but got ",
         granularity);
  }
  const int64_t features = dynamic_cast<const nn::QuantizedLayer&>(module).weight_sizes()[1];
  const int64_t size = granularity == "per_token" ? 1
                       : granularity == "per_group"
                           ? nn::groups_of(features, *rounder->options.group_size())
                           : features;
  const auto shape = rounder->scale.sizes();
  if (!shape.empty() && shape.back() == size) return;
  fail("expected input_fake_quant.scale to have ", size, " in its last dimension, but got ", shape);
}

// Check what a module's own constructor leaves open; the module may be on the meta device.
void check_kinds(const Form& form, const torch::nn::Module& module) {
  const auto dtype = dynamic_cast<const nn::QuantizedLayer&>(module).dtype();
  for (const auto& [name, tensor] : state_of(module)) {
    const TensorRule* rule = rule_of(name);
    if (rule == nullptr) continue;
    const auto wanted = dtypes_of(*rule, dtype);
    if (std::ranges::find(wanted, tensor.scalar_type()) != wanted.end()) continue;
    fail("expected ", name, " to be ", dtype_name(wanted.front()), " in a layer of ",
         dtype_name(dtype), ", but got ", dtype_name(tensor.scalar_type()));
  }
  check_rounder(form, module);
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
  const auto module = form.make(options, tensors);
  check_kinds(form, *module);
  return module;
}

void check_values(const Form& form, const torch::nn::Module& module) {
  check_kinds(form, module);
  const auto& layer = dynamic_cast<const nn::QuantizedLayer&>(module);
  const auto own = state_of(module);
  for (const auto& [name, is_required] : form.tensors) {
    const auto has_name = [&, &name = name](const auto& one) { return one.first == name; };
    if (!is_required || std::ranges::any_of(own, has_name)) continue;
    fail("expected ", form.name, " to have a tensor ", name, ", but it has none");
  }
  const Options options = form.read(module);
  const int64_t bits = options.contains("bits") ? value_of<int64_t>(options, "bits") : 8;
  const int64_t weight = int64_t{1} << (layer.weight_bits() - 1), input = int64_t{1} << (bits - 1);
  const nn::FakeQuantizeImpl* rounder = rounder_in(module);
  for (const auto& [name, tensor] : own) {
    const TensorRule* rule = rule_of(name);
    const std::string_view values = rule != nullptr ? rule->values : "any";
    if (values == "positive") check_positive(name, tensor);
    if (values == "weight") check_within(name, tensor, -weight, weight - 1);
    if (values == "input") check_within(name, tensor, -input, input - 1);
    if (values == "factor") check_within(name, tensor, 1, 16);
    if (values == "four_bits") check_within(name, tensor, 0, 15);
    if (values == "levels") check_within(name, tensor, rounder->quant_min(), rounder->quant_max());
    if (values == "packed" && layer.weight_bits() < 4) {  // four bits hold no other numbers
      check_within(name, layer.int8_weight(), -weight, weight - 1);
    }
  }
  if (const auto* int4 = dynamic_cast<const nn::Int4Linear*>(&module)) int4->check_products();
}

}  // namespace baraquant::files
