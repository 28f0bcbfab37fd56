# SPDX-License-Identifier: BSD-3-Clause
# Written by scripts/ops.py out of the schemas and csrc/*/ops.txt: do not edit.
"""What torch.vmap may batch.

The other ops call core ops, which have rules.
"""

# The arguments that may be batched, for each op of a family.
BATCHED: dict[str, dict[str, tuple[str, ...]]] = {
    "int8_mm": {
        "int8_linear": ("input", "input_scale", "input_zero_point"),
        "smoothquant_linear": ("input", "act_scale", "act_zero_point"),
        "quantized_linear": ("input",),
        "static_quantized_linear": ("input",),
        "qat_linear": ("input",),
        "int8_grouped_linear": (),
        "quantized_grouped_linear": (),
        "qat_grouped_linear": (),
        "int8_product": ("input", "input_zero_point"),
        "rescale_product": ("input", "input_scale"),
    },
    "int8_conv": {"int8_conv": ("input",)},
    "int4": {
        "int4_linear": ("input", "input_scale", "input_zero_point"),
        "quantized_int4_linear": ("input",),
        "static_quantized_int4_linear": ("input",),
    },
    "weight_only": {"weight_only_linear": ("input",)},
}

# Ops of one tensor that take each element by itself: a batch is only more of them.
ELEMENTWISE: tuple[str, ...] = ()

# Ops that refuse any batch.
REFUSED = (
    "choose_int4_qparams",
    "quantize_int4",
    "expand_int4",
    "pack_int4",
    "scaled_quantize_per_token",
    "scaled_quantize_transposed",
    "transpose_int8",
    "draw_random",
)
