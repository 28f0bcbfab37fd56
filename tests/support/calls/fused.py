# SPDX-License-Identifier: BSD-3-Clause
"""The fused family as functions of tensors alone, as those in `affine.py` are."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support import cases
from tests.support.calls.call import Arguments, OpCall, Tensors
from tests.support.cases import Shape

NORMS = ("rms_norm", "layer_norm")
VERBS = (*NORMS, "silu_mul", "gelu", "hadamard")
EPS, BLOCK, QUANTIZE = 1e-3, 4, "_quantize_per_token"


@dataclass(frozen=True)
class FusedCall(OpCall):
    """One op with its options; the attributes that are not fields are those of `Call`.

    Attributes:
        base: The float op's name.
        quantize: Whether the call is that of the op that quantizes.
        residual: Whether a norm is given one; `affine`: a weight, and a bias if it takes one.
        approximate: Whether gelu is.
        symmetric: Whether the scheme is.
        dtype: Of the integers.
    """

    base: str
    quantize: bool = False
    residual: bool = False
    affine: bool = True
    approximate: bool = False
    symmetric: bool = True
    dtype: torch.dtype | None = None

    granularity = cases.PER_TOKEN
    exact_gradients = False  # those of weights are sums
    FACETS = ("verb", "residual", "affine", "approximate", "symmetric")
    OF = " of fused"

    @property
    def verb(self) -> str:
        return self.base + (QUANTIZE if self.quantize else "")

    @property
    def takes_float64(self) -> bool:
        return self.base in (*NORMS, "hadamard")

    @property
    def differentiable(self) -> bool:
        return not self.quantize

    def made(self, shape: Shape, dtype: torch.dtype) -> Tensors:
        """The input; the residual or `up`; the weight and the bias."""
        random = cases.generator(sum(shape))
        shapes = [shape]
        if self.residual or self.base == "silu_mul":
            shapes.append(shape)
        if self.affine and self.base in NORMS:
            shapes += [shape[-1:]] * (1 + (self.base == "layer_norm"))
        made = [torch.randn(s, generator=random, dtype=torch.float64) for s in shapes]
        return tuple(t.to(dtype).requires_grad_(self.differentiable) for t in made)

    def arguments(self, *tensors: Tensor) -> Arguments:
        # NB: no list that is changed: torch.compile of PyTorch 2.11 takes it for a tuple.
        first, others = tensors[0], tensors[1:]
        args: tuple[Any, ...] = (first,)
        kwargs: dict[str, Any] = {}
        if self.residual:
            kwargs["residual"], others = others[0], others[1:]
        if self.base in NORMS:
            count = 1 + (self.base == "layer_norm")
            args += (*(others or (None,) * count), EPS)
        elif self.base == "silu_mul":
            args += others
        elif self.base == "hadamard":
            # A test of vmap has rows that no block divides; one of TorchScript passes names.
            divides = not isinstance(first, Tensor) or first.shape[-1] % BLOCK == 0
            args += (BLOCK if divides else 1,)
        elif self.approximate:
            kwargs["approximate"] = "tanh"
        if self.quantize:
            kwargs["symmetric"] = self.symmetric
            if self.dtype is not None:
                kwargs |= {"dtype": self.dtype, "quant_min": 0, "quant_max": 255}
        return args, kwargs


def of(quantize: bool) -> tuple[FusedCall, ...]:
    """Each float op, or each that quantizes, with its options."""
    norms = [
        FusedCall(base, quantize, residual, affine)
        for base in NORMS
        for residual, affine in ((False, True), (True, True), (False, False))
    ]
    others = [FusedCall(base, quantize) for base in VERBS[2:]]
    return (*norms, *others, FusedCall("gelu", quantize, approximate=True, symmetric=False))


FLOAT_CALLS = of(quantize=False)
# For the tools' tests, of which many take one result: the others go among the calls of all kinds.
SINGLE_CALLS = tuple(c for c in FLOAT_CALLS if not c.residual)
RESIDUAL_CALLS = tuple(c for c in FLOAT_CALLS if c.residual)
QUANTIZE_CALLS = (
    *of(quantize=True),
    FusedCall("rms_norm", True, True, symmetric=False, dtype=torch.uint8),
)
