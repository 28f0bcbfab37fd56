// SPDX-License-Identifier: BSD-3-Clause
#include "files/options.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "files/forms.h"
#include "files/text.h"
#include "nn/product.h"

namespace baraquant::files {
namespace {

using NamedFloat = std::pair<std::string_view, c10::ScalarType>;
constexpr std::array<NamedFloat, 4> kFloats = {{{"float32", c10::kFloat},
                                                {"float64", c10::kDouble},
                                                {"float16", c10::kHalf},
                                                {"bfloat16", c10::kBFloat16}}};

bool is_index(const Json& value) { return value.is_null() || value.integer().has_value(); }
bool is_bool(const Json& value) { return value.is<bool>(); }
bool is_text(const Json& value) { return value.is<std::string>(); }

bool is_dtype(const Json& value) {
  return is_text(value) &&
         std::ranges::find(kFloats, value.get<std::string>(), &NamedFloat::first) != kFloats.end();
}

bool is_tuple(const Json& value) {
  if (!value.is<Json::List>()) return false;
  const Json::List& list = value.get<Json::List>();
  return !list.empty() && list.size() <= 3 && std::ranges::all_of(list, kCount.is_valid);
}

bool is_padding(const Json& value) { return is_text(value) || is_tuple(value); }

bool is_mode(const Json& value) {
  return is_text(value) &&
         (value.get<std::string>() == "fixed" || value.get<std::string>() == "dynamic");
}

bool is_rounder(const Json& value) {
  const auto& table = rounder_table();
  return value.is_null() || (value.keys().size() == table.size() &&
                             std::all_of(table.begin(), table.end(), [&](const Option& option) {
                               const Json* entry = value.find(option.name);
                               return entry != nullptr && option.kind.is_valid(*entry);
                             }));
}

}  // namespace

constinit const Kind kBool = {is_bool, "true or false"};
constinit const Kind kIndex = {is_index, "a whole number or null"};
constinit const Kind kName = {is_text, "a name"};
constinit const Kind kMode = {is_mode, "fixed or dynamic"};
constinit const Kind kDtype = {is_dtype, "one of float32, float64, float16, bfloat16"};
constinit const Kind kSizes = {is_tuple, "one to three whole numbers"};
constinit const Kind kPadding = {is_padding, "one to three whole numbers"};
constinit const Kind kRounder = {is_rounder, "how the input is rounded, or null"};

torch::nn::detail::conv_padding_mode_t padding_mode_of(const Json& value) {
  const std::string& name = value.get<std::string>();
  if (name == "zeros") return torch::kZeros;
  if (name == "reflect") return torch::kReflect;
  if (name == "replicate") return torch::kReplicate;
  if (name == "circular") return torch::kCircular;
  fail("expected padding_mode to be zeros, reflect, replicate or circular, but got ", name);
}

torch::ExpandingArray<2> image_sizes(const Json& value) {
  std::vector<int64_t> sizes;
  for (const Json& entry : value.get<Json::List>()) sizes.push_back(*entry.integer());
  if (sizes.size() != 2) fail("expected two numbers, one for each side, but got ", shown(value));
  return sizes;
}

torch::nn::detail::conv_padding_t<2> padding_of(const Json& value) {
  if (!is_text(value)) return image_sizes(value);
  if (value.get<std::string>() == "valid") return torch::kValid;
  if (value.get<std::string>() == "same") return torch::kSame;
  fail("expected padding to be sizes, same or valid, but got ", shown(value));
}

c10::ScalarType dtype_of(const Json& value) {
  return std::ranges::find(kFloats, value.get<std::string>(), &NamedFloat::first)->second;
}

at::Tensor tensor_of(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? at::Tensor() : found->second;
}

std::shared_ptr<nn::FakeQuantizeImpl> rounder_of(const Options& options, const Tensors& tensors) {
  const Json& value = options.at("input_fake_quant");
  if (value.is_null()) return nullptr;
  const auto& members = value.get<Json::Object>();
  nn::FakeQuantizeOptions result = rounder_options(Options(members.begin(), members.end()));
  result.keeps_state(false);
  const at::Tensor scale = tensor_of(tensors, "input_fake_quant.scale");
  if (scale.defined()) result.scale(scale);
  const at::Tensor zero_point = tensor_of(tensors, "input_fake_quant.zero_point");
  if (zero_point.defined()) result.zero_point(zero_point);
  return std::make_shared<nn::FakeQuantizeImpl>(result);
}

Json json_of(const torch::nn::detail::conv_padding_mode_t& mode) {
  return nn::padding_mode_of(mode);
}

Json json_of(const torch::nn::detail::conv_padding_t<2>& padding) {
  if (std::holds_alternative<torch::enumtype::kSame>(padding)) return "same";
  if (std::holds_alternative<torch::enumtype::kValid>(padding)) return "valid";
  return json_of(std::get<torch::ExpandingArray<2>>(padding));
}

Json json_of(const std::shared_ptr<nn::FakeQuantizeImpl>& rounder) {
  if (rounder == nullptr) return {};
  Options options = read_rounder(*rounder);
  const std::string& granularity = rounder->options.granularity();
  const bool has_axis = granularity == "per_channel" || granularity == "per_group";
  options["axis"] = has_axis ? json_of(rounder->options.axis().value_or(-1)) : Json();
  return Json::Object(options.begin(), options.end());
}

Json above_zero(std::optional<int64_t> size) { return json_of(size == 0 ? std::nullopt : size); }

}  // namespace baraquant::files
