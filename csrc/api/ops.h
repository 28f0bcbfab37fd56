// SPDX-License-Identifier: BSD-3-Clause
/// @file
/// The ops of baraquant as typed C++ functions.
///
///     #include <baraquant/ops.h>
///     at::Tensor y = baraquant::fake_quantize_per_channel(x, scale, zero_point, /*axis=*/0);
///
/// A call goes through PyTorch's dispatcher: autograd, autocast, tracing and all devices work as for
/// PyTorch's own ops. The gradients are in namespace baraquant::backward; a program that trains does
/// not call them. Errors are exceptions of c10 (ValueError, TypeError, IndexError,
/// NotImplementedError, all of them c10::Error) with the text that Python shows.
///
/// Link with libbaraquant.so, which registers the ops.
#pragma once

// Written by scripts/ops.py:
#include "ops/affine.h"
#include "ops/backward.h"
#include "ops/fused.h"
#include "ops/int4.h"
#include "ops/int8_conv.h"
#include "ops/int8_mm.h"
#include "ops/range.h"
#include "ops/scaled.h"
#include "ops/weight_only.h"
