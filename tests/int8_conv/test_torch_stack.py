# SPDX-License-Identifier: BSD-3-Clause
"""The convolution of integers under the tools of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops
from tests.support.bits import assert_same_bits
from tests.support.family_cases.int8_conv import Case

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")

CASES = (
    Case(6, 8, 2, padding=(1,), shift=True, bias="compute", dtype=torch.float32),
    Case(6, 6, 6, stride=(2, 1), channels_last=True, dtype=torch.bfloat16),
    Case(4, 5, space=(12,), kernel=(3,), images=None, sums=True, shift=True, dtype=torch.float16),
    Case(4, 5, space=(3, 4, 5), kernel=(2, 2, 2), input=torch.uint8, channels_last=True),
)
by_case = pytest.mark.parametrize("case", CASES, ids=("groups", "depthwise", "line", "space"))


def split(arguments: dict[str, Any]) -> tuple[list[Tensor], dict[str, Any]]:
    tensors = [v for v in arguments.values() if isinstance(v, Tensor)]
    return tensors, {k: v for k, v in arguments.items() if not isinstance(v, Tensor)}


def function(case: Case) -> tuple[Any, tuple[Tensor, ...]]:
    """A function of the tensors alone."""
    arguments = case.arguments()
    names = [k for k, v in arguments.items() if isinstance(v, Tensor)]
    tensors, rest = split(arguments)

    def of(*given: Tensor) -> Tensor:
        return ops.int8_conv(**dict(zip(names, given, strict=True)), **rest)

    return of, tuple(tensors)


@by_case
def test_opcheck(case: Case) -> None:
    arguments = case.arguments()
    if case.bias:
        arguments["bias"].requires_grad_()
    positional = [arguments.pop(k) for k in ("input", "weight", "input_scale", "weight_scale")]
    positional += [arguments.pop("bias")] if case.bias else []
    torch.library.opcheck(torch.ops.baraquant.int8_conv.default, positional, arguments)


@by_case
def test_compiled_and_exported(case: Case) -> None:
    of, tensors = function(case)
    wanted = of(*tensors)
    assert_same_bits(torch.compile(of, backend="aot_eager", fullgraph=True)(*tensors), wanted)

    class Module(torch.nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return of(*given)

    assert_same_bits(torch.export.export(Module(), tensors).module()(*tensors), wanted)


def test_exported_with_any_number_and_size_of_images() -> None:
    w, scale = torch.ones(4, 3, 3, 3, dtype=torch.int8), torch.full((4,), 0.5)

    class Module(torch.nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return ops.int8_conv(q, w, scale[0], scale, stride=2, padding=1)

    dims = {n: torch.export.Dim(f"d{n}", min=3, max=100) for n in (0, 2, 3)}
    q = torch.ones(4, 3, 8, 9, dtype=torch.int8)
    exported = torch.export.export(Module(), (q,), dynamic_shapes={"q": dims}).module()
    for shape in ((4, 3, 8, 9), (5, 3, 12, 31), (3, 3, 3, 4)):
        q = torch.randint(-128, 128, shape).to(torch.int8)
        assert_same_bits(exported(q), Module()(q))


@by_case
def test_inputs_batched_by_vmap(case: Case) -> None:
    arguments = case.arguments()
    x = arguments.pop("input")
    batch = torch.stack([x, x.flip(-1), torch.zeros_like(x)], 1)
    got = torch.vmap(lambda q: ops.int8_conv(q, **arguments), in_dims=1)(batch)
    wanted = torch.stack([ops.int8_conv(q, **arguments) for q in batch.unbind(1)])
    assert_same_bits(got, wanted)
    with pytest.raises(NotImplementedError, match=r"int8_conv: torch\.vmap over weight_scale"):
        torch.vmap(lambda s: ops.int8_conv(x, **arguments | {"weight_scale": s}))(
            torch.stack([arguments["weight_scale"]] * 2)
        )


def test_scripted() -> None:
    def padded(q: Tensor, w: Tensor, s: Tensor, sw: Tensor) -> Tensor:
        return ops.int8_conv(q, w, s, sw, stride=[2, 1], padding=1, groups=2)

    case = Case(6, 8, 2, dtype=torch.float32)
    tensors = [case.arguments()[k] for k in ("input", "weight", "input_scale", "weight_scale")]
    assert_same_bits(torch.jit.script(padded)(*tensors), padded(*tensors))


@pytest.mark.inductor
def test_by_inductor() -> None:
    of, tensors = function(CASES[0])
    assert_same_bits(torch.compile(of, fullgraph=True)(*tensors), of(*tensors))


def test_spellings_of_the_numbers() -> None:
    """Ints, lists and tuples, as a function and as an op."""
    case = Case(6, 8, 2, stride=(2, 2), padding=(1, 1), dtype=torch.float32)
    a = case.arguments()
    wanted = ops.int8_conv(**a)
    for stride, padding in ((2, 1), ([2, 2], [1, 1]), ((2, 2), (1,)), ([2], (1, 1))):
        given = a | {"stride": stride, "padding": padding}
        assert_same_bits(ops.int8_conv(**given), wanted)
        assert_same_bits(torch.ops.baraquant.int8_conv(**given), wanted)
