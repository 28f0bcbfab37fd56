// SPDX-License-Identifier: BSD-3-Clause
// What the state of a fake quantizer has, so that a training can be resumed from it.
#include <torch/serialize/input-archive.h>

#include <algorithm>
#include <array>

#include "api/nn/quantizers.h"
#include "nn/by_granularity.h"

namespace baraquant::nn {

namespace {

constexpr std::array kinds = {"fixed", "dynamic", "observed",    "ternary",
                              "int4",  "learned", "learned int4"};
constexpr std::array granularities = {"per_tensor", "per_channel", "per_token", "per_group"};

template <size_t n>
int64_t index_of(const std::array<const char*, n>& names, std::string_view name) {
  return std::ranges::find(names, name) - names.begin();
}

// Inference tensors do not count their changes.
int64_t version_of(const torch::Tensor& buffer) {
  return buffer.is_inference() ? 0 : buffer._version();
}

const char* of(const auto& names, int64_t i) { return names[static_cast<size_t>(i)]; }

std::string described(const std::vector<int64_t>& scheme) {
  const auto is_of = [](const auto& names, int64_t i) { return i >= 0 && i < std::ssize(names); };
  if (scheme.size() != 7 || !is_of(kinds, scheme[0]) || !is_of(granularities, scheme[1])) {
    return c10::str(at::IntArrayRef(scheme));
  }
  auto text = c10::str(of(kinds, scheme[0]), " ", of(granularities, scheme[1]),
                       scheme[4] != 0 ? " symmetric" : " asymmetric", " in [", scheme[2], ", ",
                       scheme[3], "]");
  if (scheme[5] > 0) text += c10::str(" in groups of ", scheme[5]);
  if (scheme[6] > 0) text += c10::str(" with ", scheme[6], " scales");
  return text;
}

}  // namespace

bool Quantizer::Flag::read(const torch::Tensor& buffer) {
  if (!buffer.defined() || buffer.is_meta() || version == version_of(buffer)) return is_on;
  is_on = buffer.item<int64_t>() != 0;
  version = version_of(buffer);
  return is_on;
}

void Quantizer::Flag::write(const torch::Tensor& buffer, bool value) {
  is_on = value;
  if (!buffer.defined()) return;
  buffer.fill_(value ? 1 : 0);
  version = version_of(buffer);
}

void Quantizer::keep_state(const std::string& kind, const ByGranularity& how, bool symmetric,
                           int64_t scales) {
  scheme_ = {index_of(kinds, kind),
             index_of(granularities, how.granularity),
             how.low,
             how.high,
             symmetric ? 1 : 0,
             how.group_size,
             scales};
  scheme = register_buffer("scheme", torch::tensor(scheme_, torch::kInt32));
  if (kind == "observed") return;  // it has its own switch
  fake_quant_enabled = register_buffer("fake_quant_enabled", torch::ones({1}, torch::kUInt8));
}

void Quantizer::check_scheme(const torch::Tensor& given, const std::string& prefix) const {
  if (given.is_meta()) return;
  const auto values = given.to(torch::kCPU, torch::kInt64).contiguous();
  const std::vector<int64_t> found(values.const_data_ptr<int64_t>(),
                                   values.const_data_ptr<int64_t>() + values.numel());
  TORCH_CHECK_VALUE(found == scheme_, prefix,
                    "scheme: expected the state of a fake quantizer that is ", described(scheme_),
                    ", but got that of one that is ", described(found),
                    "; prepare the model with the configuration that the state comes from, then "
                    "load it");
}

torch::Tensor Quantizer::implied(const std::string& name) const {
  if (name == "scheme") return scheme;
  if (name == "saw_zeros") return torch::zeros({1}, torch::kUInt8);
  // If the module is switched off, the state has to say whether it is.
  const bool is_observed = of(kinds, scheme_[0]) == std::string_view("observed");
  const bool is_on = name == "fake_quant_enabled" && !is_observed && rounds();
  return is_on ? fake_quant_enabled : torch::Tensor();
}

void Quantizer::complete(std::map<std::string, torch::Tensor>& state,
                         const std::string& path) const {
  if (!scheme.defined()) return;
  const auto prefix = path.empty() ? path : path + ".";
  const auto given = state.find(prefix + "scheme");
  if (given != state.end()) check_scheme(given->second, prefix);
  for (const auto& item : named_buffers(/*recurse=*/false)) {
    const auto value = implied(item.key());
    if (value.defined()) state.emplace(prefix + item.key(), value);
  }
}

void Quantizer::load(torch::serialize::InputArchive& archive) {
  torch::Tensor given;
  if (!scheme.defined()) return Layer::load(archive);
  if (archive.try_read("scheme", given, /*is_buffer=*/true)) check_scheme(given, "");
  for (auto& item : named_parameters(/*recurse=*/false)) archive.read(item.key(), item.value());
  for (auto& item : named_buffers(/*recurse=*/false)) {
    if (archive.try_read(item.key(), item.value(), /*is_buffer=*/true)) continue;
    const auto value = implied(item.key());
    TORCH_CHECK(value.defined(), "expected a tensor ", item.key(), ", but there is none");
    const torch::NoGradGuard no_grad;
    item.value().copy_(value);
  }
  loaded();
}

}  // namespace baraquant::nn
