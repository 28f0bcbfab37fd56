// SPDX-License-Identifier: BSD-3-Clause
// From each class of quantized layers to options, and from options and tensors to a layer.
#pragma once

#include <memory>

#include "api/nn/quantizers.h"
#include "files/forms.h"

namespace baraquant::files {

Options read_quantized_linear(const torch::nn::Module& module);
Options read_static_linear(const torch::nn::Module& module);
Options read_weight_only_linear(const torch::nn::Module& module);
Options read_weight_only_int4_linear(const torch::nn::Module& module);
Options read_int4_linear(const torch::nn::Module& module);
Options read_static_int4_linear(const torch::nn::Module& module);
Options read_conv(const torch::nn::Module& module);
Options read_embedding(const torch::nn::Module& module);

using Made = std::shared_ptr<torch::nn::Module>;

Made make_quantized_linear(const Options& options, const Tensors& tensors,
                           const torch::nn::Module& like);
Made make_static_linear(const Options& options, const Tensors& tensors,
                        const torch::nn::Module& like);
Made make_weight_only_linear(const Options& options, const Tensors& tensors,
                             const torch::nn::Module& like);
Made make_weight_only_int4_linear(const Options& options, const Tensors& tensors,
                                  const torch::nn::Module& like);
Made make_int4_linear(const Options& options, const Tensors& tensors,
                      const torch::nn::Module& like);
Made make_static_int4_linear(const Options& options, const Tensors& tensors,
                             const torch::nn::Module& like);
Made make_conv(const Options& options, const Tensors& tensors, const torch::nn::Module& like);
Made make_embedding(const Options& options, const Tensors& tensors, const torch::nn::Module& like);

// The module that rounds the input.
std::shared_ptr<nn::FakeQuantizeImpl> make_rounder(const Json& options, const Tensors& tensors);

}  // namespace baraquant::files
