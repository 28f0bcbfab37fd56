// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Quantized models as files: safetensors with the configuration as JSON, the files of Python's
/// baraquant.save and baraquant.load_.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <filesystem>

#include "export.h"

namespace baraquant {

/// Write a quantized model to one safetensors file, which appears whole or not at all.
///
/// Integers of fewer than eight bits take their true width. A tensor that several modules share is
/// written once. The file has the permissions of the one that it replaces, or those that open()
/// would give it. Python's save() writes the same bytes for the same model.
///
/// @throws c10::ValueError The model has no quantized module, has prepared modules, or has a tensor
///     that cannot be stored. The message has its path.
/// @throws c10::Error The file cannot be written.
BARAQUANT_API void save(const torch::nn::Module& model, const std::filesystem::path& path);

/// Load a file of save(), of C++ or Python, into a float model, which becomes a quantized one.
///
/// The file need not be trusted: everything is checked before the model changes. Each tensor goes to
/// the device of the one that it replaces. Tensors outside of the quantized layers stay the same
/// objects and get other values, since members of your modules hold them: two that are one in the
/// file alone stay two.
///
/// Python's buffers that are in no state dict are ordinary buffers in C++. They get the values of
/// the file if the model has them with that shape and dtype. C++ lacks some classes of Python, such
/// as QuantizedConv1d; the error for a file with one names it.
///
/// @param model A float model of the same architecture as the quantized one.
/// @param path The file.
/// @throws c10::ValueError The file is damaged, of another kind, of another format, or does not fit
///     the model, or a typed member holds a layer to be swapped. The message has the path of the
///     module or the tensor. The model is unchanged.
/// @throws c10::Error The file cannot be read.
BARAQUANT_API void load_(torch::nn::Module& model, const std::filesystem::path& path);

template <typename M>
void save(const torch::nn::ModuleHolder<M>& model, const std::filesystem::path& path) {
  save(*model, path);
}
template <typename M>
void load_(torch::nn::ModuleHolder<M>& model, const std::filesystem::path& path) {
  load_(*model, path);
}

}  // namespace baraquant
