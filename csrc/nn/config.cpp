// SPDX-License-Identifier: BSD-3-Clause
#include "api/config.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "nn/text.h"

namespace baraquant {

namespace {

using text::check_choice;
using Names = std::initializer_list<const char*>;

constexpr Names granularities = {"per_tensor", "per_channel", "per_token", "per_group"};
constexpr Names observers = {"min_max", "moving_average", "percentile", "mse"};
constexpr Names backwards = {"float", "int8_input", "int8"};
constexpr int64_t max_rotation = 32768;  // the largest block of hadamard()

void check(bool fits, const std::string& wanted, const std::string& got) {
  text::check("QuantConfig", fits, wanted, got);
}

TensorConfig few_bits(int64_t bits, std::optional<int64_t> group_size, bool symmetric) {
  const auto granularity = group_size.has_value() ? PerGroup(*group_size) : PerChannel();
  return TensorConfig(bits).granularity(granularity).symmetric(symmetric);
}

QuantConfig weight_only(const TensorConfig& weight, std::string_view scale_rule) {
  return QuantConfig(weight).scale_rule(scale_rule);
}

QuantConfig int8_inputs(TensorConfig weight, std::string_view scale_rule,
                        std::optional<bool> group_factors, bool learned) {
  const bool has_groups = weight.group_size().has_value();
  const bool factors = group_factors.value_or(has_groups);
  TORCH_CHECK_VALUE(!factors || has_groups, "W", weight.bits(),
                    "A8: expected a group_size with group_factors=True, but got None");
  weight.group_factors(factors).learned(learned);
  return QuantConfig(weight, TensorConfig(8).granularity(PerToken())).scale_rule(scale_rule);
}

}  // namespace

void TensorConfig::check() const {
  const auto expect = [](bool fits, const std::string& wanted, const std::string& got) {
    text::check("TensorConfig", fits, wanted, got);
  };
  expect(bits_ >= 2 && bits_ <= 8, "bits to lie in [2, 8]", text::of(bits_));
  check_choice("TensorConfig", "granularity", granularity_.name, granularities);
  TORCH_CHECK_VALUE(!(learned_ && dynamic()),
                    "TensorConfig: expected dynamic=False (or none given) for a learned scale: a "
                    "dynamic one comes from the values");
  TORCH_CHECK_VALUE(granularity_.name != "per_token" || dynamic(),
                    "TensorConfig: expected dynamic=True for per_token: the tokens to come are not "
                    "known");
  const auto size = granularity_.group_size;
  if (granularity_.name == "per_group") {
    TORCH_CHECK_TYPE(size.has_value(),
                     "TensorConfig: expected group_size to be an int, but got NoneType");
    expect(*size > 0, "group_size > 0", text::of(size));
  } else {
    expect(!size, "no group_size for " + granularity_.name, text::of(size));
  }
  const bool takes_factors = bits_ <= 4 && size.value_or(1) % 2 == 0 && (dynamic() || learned_);
  expect(!group_factors_ || takes_factors,
         "2 to 4 bits, granularity=PerGroup of an even size, and dynamic=True or learned=True with "
         "group_factors=True",
         str());
  expect(!ternary_ || (bits_ == 2 && symmetric_ && dynamic() && !group_factors_),
         "2 bits, symmetric=True, dynamic=True and group_factors=False with ternary=True", str());
}

std::string TensorConfig::str() const {
  const std::string group =
      group_size().has_value() ? "(" + std::to_string(*group_size()) + ")" : "";
  const char* how = learned_ ? "learned" : dynamic() ? "dynamic" : "static";
  return "int" + std::to_string(bits_) + " " + granularity() + group +
         (symmetric_ ? " symmetric " : " asymmetric ") + how + (group_factors_ ? " factors" : "") +
         (ternary_ ? " ternary" : "");
}

bool TensorConfig::operator==(const TensorConfig& other) const {
  return bits_ == other.bits_ && granularity() == other.granularity() &&
         group_size() == other.group_size() && symmetric_ == other.symmetric_ &&
         dynamic() == other.dynamic() && learned_ == other.learned_ &&
         group_factors_ == other.group_factors_ && ternary_ == other.ternary_;
}

QuantConfig::QuantConfig(TensorConfig weight, std::optional<TensorConfig> activation)
    : weight_(std::move(weight)), activation_(std::move(activation)) {
  weight_.check();
  check(weight_.granularity() != "per_token",
        "weight.granularity to be per_tensor, per_channel or per_group", "'per_token'");
  check_group_factors();
  if (!activation_.has_value()) return;
  activation_->check();
  check(!activation_->ternary(), "ternary=True for the weight alone", activation_->str());
  check(activation_->granularity() != "per_channel",
        "activation.granularity to be per_tensor, per_token or per_group", "'per_channel'");
  TORCH_CHECK_VALUE(activation_->granularity() != "per_group" || activation_->dynamic(),
                    "QuantConfig: expected a dynamic activation for per_group: a static one has "
                    "one scale (per_tensor)");
}

QuantConfig& QuantConfig::observer(std::string_view name) {
  check_choice("QuantConfig", "observer", name, observers);
  observer_ = name;
  return *this;
}

QuantConfig& QuantConfig::scale_rule(std::string_view name) {
  check_choice("QuantConfig", "scale_rule", name, text::scale_rules);
  scale_rule_ = name;
  return *this;
}

QuantConfig& QuantConfig::scale_dtype(std::string_view name) {
  check_choice("QuantConfig", "scale_dtype", name, text::scale_dtypes);
  scale_dtype_ = name;
  check_group_factors();
  check_backward();
  return *this;
}

void QuantConfig::check_group_factors() const {
  if (!weight_.group_factors()) return;
  const std::string granularity = activation_.has_value() ? activation_->granularity() : "";
  check(granularity == "per_token" || granularity == "per_tensor",
        "a per_token or per_tensor activation with group_factors, which make a product of integers "
        "exact",
        (activation_.has_value() ? activation_->str() : "floating inputs") + "; use W4A8()");
  check(scale_dtype_ == "float32", "scale_dtype='float32' with group_factors",
        text::quoted(scale_dtype_) + "; use W" + std::to_string(weight_.bits()) +
            "A8(group_factors=False)");
}

QuantConfig& QuantConfig::backward(std::string_view name, std::string_view rounding) {
  check_choice("QuantConfig", "backward", name, backwards);
  check_choice("QuantConfig", "rounding", rounding, {"nearest", "stochastic"});
  backward_ = name;
  rounding_ = rounding;
  check_backward();
  return *this;
}

void QuantConfig::check_backward() const {
  if (backward_ == "float") {
    return check(rounding_ == "nearest",
                 "rounding='nearest' with backward='float', which rounds no gradient to integers",
                 text::quoted(rounding_) + "; choose backward='int8_input' or 'int8'");
  }
  const std::string got = text::quoted(backward_);
  check(trains_on_integers(), "backward='float' for layers that train on floating products",
        c10::str(got, " with ", scheme_str(), "; use W8A8(backward=", got,
                 ") or W4A8(None, backward=", got, ")"));
}

QuantConfig& QuantConfig::rotate(std::optional<int64_t> rotate) {
  const int64_t block = rotate.value_or(2);
  check(block >= 2 && block <= max_rotation && (block & (block - 1)) == 0,
        c10::str("rotate to be a power of two in [2, ", max_rotation, "]"),
        c10::str(block, "; 128 and 256 are good choices, and None rotates nothing"));
  rotate_ = rotate;
  return *this;
}

QuantConfig& QuantConfig::master(std::optional<std::string_view> name) {
  if (name.has_value()) check_choice("QuantConfig", "master", *name, text::masters);
  master_ = name;
  return *this;
}

QuantConfig QuantConfig::with_rotation(int64_t features) const {
  auto result = *this;
  // The largest power of two that divides the features.
  const int64_t block = std::min(features & -features, rotate_.value_or(0));
  result.rotate_ = block > 1 ? std::optional(block) : std::nullopt;
  return result;
}

bool QuantConfig::trains_on_integers() const {
  return activation_.has_value() &&
         (weight_.gives_integers() || weight_ == TensorConfig(weight_.bits())) &&
         scale_dtype_ == "float32" &&
         *activation_ == TensorConfig(activation_->bits())
                             .granularity(PerToken())
                             .symmetric(activation_->symmetric());
}

QuantConfig& QuantConfig::conv_inputs(std::optional<bool> conv_inputs) {
  const auto got = activation_.has_value() ? text::quoted(activation_->granularity()) : "None";
  check(!conv_inputs.value_or(false) || got == "'per_tensor'",
        "a per_tensor activation with conv_inputs=True",
        got +
            "; the input of a convolution has one scale: use W8A8Static(conv_inputs=True), or "
            "another configuration for the convolutions");
  conv_inputs_ = conv_inputs;
  return *this;
}

QuantConfig QuantConfig::with_float_scales() const {
  auto result = *this;
  if (!weight_.group_factors()) return result;
  result.weight_.group_factors(false);
  result.backward_ = "float";
  result.rounding_ = "nearest";
  return result;
}

QuantConfig QuantConfig::with_floating_input() const {
  auto result = with_float_scales();
  result.activation_ = std::nullopt;
  result.conv_inputs_ = std::nullopt;
  result.backward_ = "float";
  result.rounding_ = "nearest";
  return result;
}

std::string QuantConfig::weight_str() const {
  return weight_.str() + (scale_dtype_ == "float32" ? "" : " scale_dtype=" + scale_dtype_) +
         (master_.has_value() ? " master=" + *master_ : "");
}

std::string QuantConfig::scheme_str() const {
  return "weight=" + weight_str() +
         ", input=" + (activation_.has_value() ? activation_->str() : "float");
}

std::string QuantConfig::str() const {
  const auto rotate = rotate_.has_value() ? ", rotate=" + std::to_string(*rotate_) : "";
  if (backward_ == "float") return scheme_str() + rotate;
  return scheme_str() + ", backward=" + backward_ + " " + rounding_ + rotate;
}

QuantConfig W8A8(bool symmetric) {
  return QuantConfig(TensorConfig(8), TensorConfig(8).granularity(PerToken()).symmetric(symmetric));
}

QuantConfig W8A8Static(std::string_view observer, bool symmetric) {
  const auto activation =
      TensorConfig(8).granularity(PerTensor()).symmetric(symmetric).dynamic(false);
  return QuantConfig(TensorConfig(8), activation).observer(observer);
}

QuantConfig W8A16() { return QuantConfig(TensorConfig(8)); }

QuantConfig W4A16(std::optional<int64_t> group_size, bool symmetric, std::string_view scale_rule) {
  return weight_only(few_bits(4, group_size, symmetric), scale_rule);
}

QuantConfig W3A16(std::optional<int64_t> group_size, bool symmetric, std::string_view scale_rule) {
  return weight_only(few_bits(3, group_size, symmetric), scale_rule);
}

QuantConfig W2A16(std::optional<int64_t> group_size, bool symmetric, std::string_view scale_rule) {
  return weight_only(few_bits(2, group_size, symmetric), scale_rule);
}

QuantConfig W4A8(std::optional<int64_t> group_size, bool symmetric, std::string_view scale_rule,
                 std::optional<bool> group_factors, bool learned) {
  return int8_inputs(few_bits(4, group_size, symmetric), scale_rule, group_factors, learned);
}

QuantConfig W3A8(std::optional<int64_t> group_size, bool symmetric, std::string_view scale_rule,
                 std::optional<bool> group_factors, bool learned) {
  return int8_inputs(few_bits(3, group_size, symmetric), scale_rule, group_factors, learned);
}

QuantConfig W2A8(std::optional<int64_t> group_size, bool symmetric, std::string_view scale_rule,
                 std::optional<bool> group_factors, bool learned) {
  return int8_inputs(few_bits(2, group_size, symmetric), scale_rule, group_factors, learned);
}

}  // namespace baraquant
