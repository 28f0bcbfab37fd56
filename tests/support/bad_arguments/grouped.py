# SPDX-License-Identifier: BSD-3-Clause
"""The grouped ops of the integer matrix family with calls that are right, and ways to be wrong."""

from typing import Any

import torch

from tests.support.bad_arguments import affine as wrong
from tests.support.bad_arguments.affine import NEVER, Bad, ProductOp
from tests.support.bad_arguments.int8_mm import wrong_words
from tests.support.family_cases.int8_mm import INPUT_RANGE, WEIGHT_RANGE

E, T, N, K = 3, 7, 5, 8
VECTORS = ("weight_scale", "bias", "weight_sum")  # [E, N]
OF_ROWS = ("input_scale", "input_zero_point")
INTEGERS, TRAINED = "int8_grouped_linear", "qat_grouped_linear"


class Op(ProductOp):
    """One way to call a schema; the integers of an input are uint8."""

    @property
    def given(self) -> dict[str, Any]:
        found = {"input": (T, K), "weight": (E, N, K), "offsets": (E,)}
        found |= dict.fromkeys(VECTORS, (E, N)) | dict.fromkeys(OF_ROWS, (T, 1))
        found |= dict(zip(WEIGHT_RANGE, (-2, 1), strict=True))
        return super().given | found | {"backward": "float", "rounding": "nearest"}


OPS = [
    Op(INTEGERS, input=torch.uint8), Op(INTEGERS, torch.float16, input=torch.uint8),
    Op(INTEGERS, torch.float64, full=False, input=torch.uint8),
]  # fmt: skip
for _name, _low in (("quantized_grouped_linear", torch.bfloat16), (TRAINED, torch.float16)):
    OPS += [Op(_name), Op(_name, _low, full=False), Op(_name, torch.float64)]


def bad_cases() -> wrong.Bads:
    floating = ("input", "weight", "weight_scale", "bias", "input_scale")
    yield from wrong.wrong_dtypes(floating, NEVER[:4])
    other = (torch.int64, torch.uint8, torch.float32)
    yield from wrong.wrong_dtypes(("offsets", "weight_sum"), other, "int32")
    yield from wrong.wrong_dtypes(["input_zero_point"], (torch.float32, torch.bool), "integer")
    yield from wrong.wrong_outputs([torch.int8])
    words = r"\[E, N, K\].*contiguous\(\)"
    yield from wrong.wrong_strides("weight", words, wrong.but(TRAINED))
    shapes: dict[str, list[tuple[int, ...]]] = {
        "input": [(T, K - 1), (T, 1, K), (K,), (), (T, 0)],
        "weight": [(N, K), (1, E, N, K), (K,), ()],
        "offsets": [(E - 1,), (E + 1,), (E, 1), (), (0,)],
        **{key: [(N,), (E,), (N, E), (E, N, 1), (E * N,), (), (E, 0)] for key in VECTORS},
        **{key: [(T - 1,), (E,), (T, 2), (1, 1), (T, 1, 1), (0,)] for key in OF_ROWS},
    }
    for name, shape in [(name, shape) for name, found in shapes.items() for shape in found]:
        words = rf"expected.* ({wrong.got_shape(shape)}|got .*{(shape or (0,))[-1]})"
        yield Bad(name, f"{shape}", wrong.of_shape(name, shape), ValueError, words)
    for names in (INPUT_RANGE, WEIGHT_RANGE):
        yield from wrong.wrong_ranges(((7, 7), (-129, 0), (0, 128)), names=names)
    yield from wrong_words("int4", "INT8", "random")
    for word in ("int8_input", "int8"):
        words = rf"'float' for groups of tokens, but got '{word}'.*use qat_linear for each group"
        yield Bad("backward", word, wrong.constant(word), NotImplementedError, words)
    words = "'nearest' with backward='float'.*but got 'stochastic'"
    yield Bad("rounding", "stochastic", wrong.constant("stochastic"), ValueError, words)


PAIRS = wrong.pairs(OPS, bad_cases())
