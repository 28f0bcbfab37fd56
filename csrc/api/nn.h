// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// Modules in the manner of torch::nn, for training and for inference.
///
///     #include <baraquant/nn.h>
///     torch::nn::Sequential model(
///         baraquant::nn::FakeQuantizedLinear(64, 32), torch::nn::ReLU(),
///         baraquant::nn::FakeQuantizedLinear(32, 10));
///
/// They have the arithmetic, the parameters and buffers, their names, and the errors of Python's
/// baraquant.nn: a state dict of one is one of the other.
#pragma once

#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/quantizers.h"
#include "nn/training.h"
