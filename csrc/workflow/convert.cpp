// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/convert.h"

#include "api/ops.h"
#include "nn/freeze.h"
#include "workflow/select.h"

namespace baraquant {

namespace workflow {

namespace {

// Whether a prepared layer becomes a linear layer that takes packed integers.
bool can_pack(const nn::FakeQuantizedLayer& prepared, bool floating_input) {
  const auto* linear = dynamic_cast<const nn::FakeQuantizedLinearImpl*>(&prepared);
  const auto& how = prepared.config().weight();
  return linear != nullptr && (floating_input || !linear->is_integer()) && how.bits() <= 4 &&
         !how.group_factors();
}

}  // namespace

Converter::Converter(const std::vector<ToConvert>& layers) {
  for (const auto& [prepared, floating_input] : layers) {
    if (!can_pack(*prepared, floating_input)) held_.insert(tie_of(*prepared));
  }
}

std::shared_ptr<nn::QuantizedLayer> Converter::convert(nn::FakeQuantizedLayer& prepared,
                                                       bool floating_input) {
  if (floating_input && prepared.config().weight().group_factors()) {  // those of linear layers
    nn::FakeQuantizedLinearImpl copy(dynamic_cast<nn::FakeQuantizedLinearImpl&>(prepared));
    copy.set_input_quantizer(nullptr);  // it shares the weight, which is an int8 one for it
    return convert(copy, floating_input);
  }
  auto layer = workflow::convert(prepared, integers_of(prepared, floating_input), floating_input);
  layer->train(prepared.is_training());
  return layer;
}

Converter::Tie Converter::tie_of(nn::FakeQuantizedLayer& prepared) {
  // The parameter, which lives on; the weight may be a rotated copy of it.
  const auto* owner = prepared.named_parameters(/*recurse=*/false)["weight"].unsafeGetTensorImpl();
  return {owner, prepared.config().weight_str()};
}

const nn::Given& Converter::integers_of(nn::FakeQuantizedLayer& prepared, bool floating_input) {
  const auto& how = prepared.config().weight();
  const auto* one = dynamic_cast<const nn::FakeQuantizeImpl*>(prepared.weight_fake_quant.get());
  const auto* int4 =
      dynamic_cast<const nn::FakeQuantizeInt4Impl*>(prepared.weight_fake_quant.get());
  const bool is_own = (how.dynamic() && one != nullptr && one->is_dynamic()) ||
                      (int4 != nullptr && int4->is_dynamic());
  const void* quantizer = is_own ? nullptr : prepared.weight_fake_quant.get();
  const Key key{tie_of(prepared), quantizer};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  nn::Given given;
  if (how.group_factors()) {
    auto& rounder = dynamic_cast<nn::RoundsToInt4&>(*prepared.weight_fake_quant);
    const auto [packed, scale, factor, zero_point] = rounder.pack(prepared.rows_of_weight());
    given.packed = packed;
    given.weight_scale = scale;
    given.group_factor = factor;
    if (!how.symmetric()) given.group_zero_point = zero_point;
  } else {
    std::tie(given.qweight, given.weight_scale, given.weight_zero_point) =
        prepared.quantized_weight();
    if (how.symmetric()) given.weight_zero_point.reset();
  }
  nn::check_finite("the weight", given.weight_scale, prepared.config().scale_dtype());
  if (given.qweight.defined() && can_pack(prepared, floating_input) && !held_.contains(key.first)) {
    given.packed = pack_int4(given.qweight);
    given.qweight.reset();
  }
  return known_.emplace(key, given).first->second;
}

}  // namespace workflow

namespace {

using namespace workflow;

constexpr const char* convert_name = "baraquant.qat.convert_";

// The layers that no batch has reached, where others have been reached. Where none has, training was
// forgotten: then the first of them is an error.
std::set<const torch::nn::Module*> unseen_of(const std::vector<Place>& places) {
  std::set<const torch::nn::Module*> unseen, all;
  for (const auto& place : places) {
    const auto* layer = dynamic_cast<const nn::FakeQuantizedLayer*>(place.module);
    if (layer == nullptr || !layer->config().is_static()) continue;
    all.insert(layer);
    if (layer->has_unseen_input()) unseen.insert(layer);
  }
  return unseen.size() < all.size() ? unseen : std::set<const torch::nn::Module*>();
}

std::string why_not(const torch::nn::Module& module) {
  if (is_converted(module)) return "it is converted already";
  return kind_of(module) != nullptr || !weights_of(module).empty() ? "it was not prepared" : "";
}

}  // namespace

Report convert_(torch::nn::Module& model) {
  Transaction change;
  Report report;
  const auto places = places_of(model);
  report.total_parameters = total_elements(model.parameters());
  report.bytes_before = total_bytes(model);
  TORCH_CHECK_VALUE(!is_prepared(model), convert_name,
                    ": expected a model that contains the layers to swap, but got a ",
                    type_name(model), " itself; wrap it in nn.Sequential");
  const auto unseen = unseen_of(places);
  std::vector<ToConvert> layers;
  std::vector<std::string> paths;  // of the layers
  Swaps olds;
  std::vector<torch::Tensor> weights;
  bool is_converted_already = false;
  for (const auto& place : first_places(places)) {
    auto* prepared = dynamic_cast<nn::FakeQuantizedLayer*>(place.module);
    is_converted_already |= is_converted(*place.module);
    if (prepared == nullptr) {
      const auto reason = why_not(*place.module);
      if (!reason.empty()) report.left_out.emplace_back(place.path, reason);
      continue;
    }
    paths.push_back(place.path);
    layers.emplace_back(prepared, unseen.contains(prepared));
    olds[prepared] = nullptr;
    weights.push_back(prepared->weight);
  }
  report.quantized_parameters = total_elements(weights);
  TORCH_CHECK_VALUE(!olds.empty() || !is_converted_already, convert_name,
                    ": expected a prepared model, but ", type_name(model), " is converted already");
  TORCH_CHECK_VALUE(!olds.empty(), convert_name,
                    ": expected a model prepared by baraquant.qat.prepare_, but ", type_name(model),
                    " has no prepared layer");
  check_owners(convert_name, places, olds);
  Converter converter(layers);
  const auto converted = [&](size_t i) {
    std::shared_ptr<nn::QuantizedLayer> layer;
    with_path(convert_name, paths[i],
              [&] { layer = converter.convert(*layers[i].first, layers[i].second); });
    return layer;
  };
  if (report.quantized_parameters > kKept) {
    for (size_t i = 0; i < layers.size(); ++i) {
      converted(i);
      converter.forget();
    }
    weights.clear();
    change.finish();  // from here on nothing fails, and each layer is freed before the next is made
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto [prepared, is_unseen] = layers[i];
    const auto layer = converted(i);
    auto text = about(*layer, *prepared, is_unseen);
    text += is_unseen ? "; its input stays floating, as training never called it"
                      : nn::skipped(prepared->input_fake_quant.get());
    report.changed.emplace_back(paths[i], text);
    swap(change, places, {{prepared, layer}});
  }
  report.bytes_after = total_bytes(model);
  change.finish();
  return report;
}

}  // namespace baraquant
