// SPDX-License-Identifier: BSD-3-Clause
#include "nn/freeze.h"

namespace baraquant::nn {

namespace {

// What the message of a learned scale adds: the cause that a reader does not see.
constexpr const char* copied =
    "; a copy of the model that averages its parameters (EMA) has to be made after that first "
    "batch";

bool is_empty_range(const FakeQuantizeImpl& quantizer) {
  return (quantizer.min_val > quantizer.max_val).any().item<bool>();
}

// Whether a quantizer has a range that no batch has set; none was skipped either.
bool is_unseen(const Quantizer& quantizer) {
  if (const auto* learned = dynamic_cast<const LearnedFakeQuantizeImpl*>(&quantizer)) {
    if (learned->scale.is_meta() || learned->skipped_batches.item<int64_t>() > 0) return false;
    return !learned->is_initialized();
  }
  const auto* one = dynamic_cast<const FakeQuantizeImpl*>(&quantizer);
  if (one == nullptr || !one->is_observed() || one->scale.is_meta()) return false;
  return one->skipped_batches.item<int64_t>() == 0 && is_empty_range(*one);
}

}  // namespace

std::string skipped(const Quantizer* quantizer) {
  const auto* one = dynamic_cast<const FakeQuantizeImpl*>(quantizer);
  const auto* learned = dynamic_cast<const LearnedFakeQuantizeImpl*>(quantizer);
  const bool counts = learned != nullptr || (one != nullptr && one->is_observed());
  if (!counts) return "";
  const auto& skipped = learned != nullptr ? learned->skipped_batches : one->skipped_batches;
  if (skipped.is_meta()) return "";
  const auto count = skipped.item<int64_t>();
  if (count == 0) return "";
  const auto batches = count == 1 ? "1 batch" : std::to_string(count) + " batches";
  return "; " + batches + " with a NaN or infinity took no part in its input's range";
}

void check_finite(const char* what, const torch::Tensor& scale, const std::string& scale_dtype) {
  if (scale.is_meta() || scale.isfinite().all().item<bool>()) return;
  TORCH_CHECK_VALUE(scale_dtype != "float32", "expected the scale of ", what,
                    " to be finite, but got NaN or infinity, as a value was");
  TORCH_CHECK_VALUE(false, "expected the scale of ", what, " to be a finite ", scale_dtype,
                    ", but got NaN or infinity: a value was, or the scale is larger than ",
                    scale_dtype == "float16" ? "65504" : "3.39e+38",
                    "; then take another scale_dtype");
}

std::shared_ptr<FakeQuantizeImpl> FakeQuantizedLayer::frozen_input() const {
  if (const auto learned = std::dynamic_pointer_cast<LearnedFakeQuantizeImpl>(input_fake_quant)) {
    const auto [scale, zero_point] = learned->calculate_qparams();
    TORCH_CHECK_VALUE(learned->is_initialized() || scale.is_meta(), kUnseen, skipped(learned.get()),
                      copied);
    check_finite("the input", scale);
    return std::make_shared<FakeQuantizeImpl>(FakeQuantizeOptions()
                                                  .scale(scale)
                                                  .zero_point(zero_point)
                                                  .quant_min(learned->quant_min())
                                                  .quant_max(learned->quant_max())
                                                  .keeps_state(false));
  }
  const auto one = std::dynamic_pointer_cast<FakeQuantizeImpl>(input_fake_quant);
  if (one == nullptr) return nullptr;
  if (one->is_dynamic()) {
    auto dynamic = one->without_state();
    dynamic->enable_fake_quant();
    return dynamic;
  }
  const bool is_unset = one->is_observed() && !one->scale.is_meta() && is_empty_range(*one);
  TORCH_CHECK_VALUE(!is_unset, kUnseen, skipped(one.get()));
  check_finite("the input", one->scale);
  return one->freeze();
}

bool FakeQuantizedLayer::has_unseen_input() const {
  return input_fake_quant != nullptr && is_unseen(*input_fake_quant);
}

}  // namespace baraquant::nn
