// SPDX-License-Identifier: BSD-3-Clause
#include "int8_mm/cuda/instance.cuh"

BARAQUANT_OUTPUT_TYPE(BFloat16)
