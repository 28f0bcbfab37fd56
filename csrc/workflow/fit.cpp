// SPDX-License-Identifier: BSD-3-Clause
#include "workflow/fit.h"

#include "api/nn/int4.h"
#include "search/weights.h"

namespace baraquant::workflow {

namespace {

std::shared_ptr<nn::FakeQuantizeInt4Impl> fit_factors(const torch::Tensor& rows,
                                                      const nn::FakeQuantizeInt4Impl& quantizer) {
  auto options = quantizer.options;
  const auto [scale, factor, zero_point] =
      search::search_int4_factors(rows, options.group_size(), options.symmetric());
  options.scale(scale).group_factor(factor).group_zero_point(zero_point);
  return std::make_shared<nn::FakeQuantizeInt4Impl>(options);
}

std::shared_ptr<nn::FakeQuantizeImpl> fit_scale(const torch::Tensor& rows,
                                                const nn::FakeQuantizeImpl& quantizer) {
  auto options = quantizer.options;
  const auto size = options.group_size().value_or(0);
  std::vector<int64_t> shape = {rows.size(0)};
  if (options.granularity() == "per_tensor") shape = {};
  if (options.granularity() == "per_group") shape = {rows.size(0), -1};
  const auto segments =
      size > 0 ? rows.reshape({-1, size}) : rows.reshape({shape.empty() ? 1 : rows.size(0), -1});
  const auto [scale, zero_point] =
      search::search_scale(segments, options.quant_min(), options.quant_max(), options.symmetric(),
                           options.scale_dtype());
  options.mode("fixed").symmetric(true);
  options.scale(scale.reshape(shape)).zero_point(zero_point.reshape(shape));
  return std::make_shared<nn::FakeQuantizeImpl>(options);
}

}  // namespace

std::shared_ptr<nn::Quantizer> fit(const torch::Tensor& rows, const nn::Quantizer& quantizer) {
  if (const auto* int4 = dynamic_cast<const nn::FakeQuantizeInt4Impl*>(&quantizer)) {
    return fit_factors(rows, *int4);
  }
  return fit_scale(rows, dynamic_cast<const nn::FakeQuantizeImpl&>(quantizer));
}

}  // namespace baraquant::workflow
