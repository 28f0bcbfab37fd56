# SPDX-License-Identifier: BSD-3-Clause
"""The scales of products are constants: one that requires grad, or has a tangent, is refused.

So is every floating argument of rescale_product, whose sums have no gradient.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.support import bad_arguments

LEARNED = ("input", "weight", "bias")
OPS = [
    op
    for module in bad_arguments.modules()
    for op in module.OPS
    if op.name.endswith(("_linear", "_conv", "_product"))
]
by_op = pytest.mark.parametrize("op", OPS, ids=str)


def constants(op: Any, arguments: dict[str, Any]) -> list[str]:
    learned = () if op.name == "rescale_product" else LEARNED
    floating = (k for k, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point())
    return [name for name in floating if name not in learned]


@by_op
def test_what_requires_grad_is_refused(op: Any, device: str) -> None:
    """Whether something else is learned or not; without grad mode nothing is lost."""
    right = op.arguments(device)
    for name in constants(op, right):
        words = rf"^baraquant::{op.name}(\.number)?: expected {name} to be a constant, but got one "
        words += rf"that requires .*{name}\.detach\(\)"
        scale = right[name].clone().requires_grad_()
        recorded = {k: right[k].clone().requires_grad_() for k in ("bias",) if k in right}
        for given in (right, right | recorded):
            with pytest.raises(NotImplementedError, match=words):
                op(given | {name: scale})
        with torch.no_grad():
            assert torch.equal(op(right | {name: scale}), op(right))


@by_op
def test_tangents_are_refused_not_dropped(op: Any, device: str) -> None:
    right = op.arguments(device)
    for name in constants(op, right):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(right[name], torch.ones_like(right[name]))
            with pytest.raises(NotImplementedError, match=rf"{op.name}: expected {name}.* tangent"):
                op(right | {name: dual})


def test_every_product_has_constants() -> None:
    without = {op.name for op in OPS if not constants(op, op.arguments("meta"))}
    assert without == {"int8_product", "qat_linear", "qat_grouped_linear"}
