# SPDX-License-Identifier: BSD-3-Clause
"""Any strides in: the bits of contiguous copies, in strides that a rule gives, on Meta the same."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.cases import Shape
from tests.support.marks import by_dtype

Tensors = tuple[Tensor, ...]
LENGTHS = (*range(1, 20), 31, 33, 63, 64, 65, 127, 129)


def assert_meta_agrees(call: Any, tensors: Tensors, got: Tensors) -> None:
    there = (
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors
    )
    for meta, here in zip(outputs(call(*there)), got, strict=True):
        assert meta.device.type == "meta"
        assert (meta.shape, meta.stride(), meta.dtype) == (here.shape, here.stride(), here.dtype)


class AnyLayout:
    """The tests of a family's calls; each has a subclass that names them."""

    CALLS: ClassVar[Sequence[Any]]
    KEEPS = False  # whether results have the strides of a dense input
    PLANTS = 0.0  # the share of special values among the input's
    SHAPE = (4, 6, 5, 7)
    MATRICES: ClassVar[Sequence[tuple[int, int]]] = ((70, 1030), (1025, 65), (5, 20_000))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        exact = [c for c in self.CALLS if c.differentiable and c.exact_gradients]
        axis = {c: getattr(c, "granularity", cases.PER_TENSOR).axis for c in self.CALLS}
        of_two = [c for c in self.CALLS if -2 <= axis[c] < 2]
        for name, calls in (("call", self.CALLS), ("exact_call", exact), ("matrix_call", of_two)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, calls, ids=str)

    def tensors(self, call: Any, shape: Shape, dtype: torch.dtype, device: str) -> Tensors:
        if dtype == torch.float64 and not getattr(call, "takes_float64", True):
            dtype = torch.float32
        found = [t.detach() for t in call.tensors(shape, dtype, device)]
        if self.PLANTS:
            random = cases.generator(1)
            special = cases.special_values(dtype).to(device)
            for i in self.large(found):
                if found[i].dtype == dtype:
                    where = torch.rand(shape, generator=random).to(device) < self.PLANTS
                    pick = torch.randint(0, len(special), shape, generator=random)
                    found[i] = torch.where(where, special[pick.to(device)], found[i])
        return tuple(found)

    def large(self, tensors: Sequence[Tensor]) -> list[int]:
        """Which have the shape of the input."""
        return [i for i, t in enumerate(tensors) if t.shape == tensors[0].shape and t.dim() > 0]

    def check(self, call: Any, tensors: Tensors, note: str = "") -> None:
        before = [t.clone() for t in tensors]
        got = outputs(call(*tensors))
        wanted = outputs(call(*(t.clone(memory_format=torch.contiguous_format) for t in tensors)))
        like = tensors[self.large(tensors)[-1]]  # of a gradient the input
        for result, right in zip(got, wanted, strict=True):
            assert_same_bits(result, right, note)
            keeps = self.KEEPS and result.shape == like.shape and cases.is_dense(like)
            strides = like.stride() if keeps else torch.empty(result.shape, device="meta").stride()
            assert result.stride() == strides, note
        assert_meta_agrees(call, tensors, got)
        for tensor, value in zip(tensors, before, strict=True):
            assert_same_bits(tensor, value, "functional: the input is as it was")

    @pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
    @pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=cases.name_of)
    def test_every_layout(self, call: Any, dtype: torch.dtype, layout: str, device: str) -> None:
        """Of each tensor of the input's shape alone, and of all."""
        tensors = self.tensors(call, self.SHAPE, dtype, device)
        large = self.large(tensors)
        make = cases.LAYOUTS_4D[layout]
        for chosen in (*([i] for i in large if len(large) > 1), large):
            laid = [make(t) if i in chosen else t for i, t in enumerate(tensors)]
            self.check(call, tuple(laid), f"{chosen}")

    @pytest.mark.parametrize("layout", ("stepped", "padded", "transposed", "misaligned"))
    def test_layouts_of_the_rest(self, call: Any, layout: str, device: str) -> None:
        """Scales, zero points, biases; one value that is expanded, too."""
        tensors = self.tensors(call, self.SHAPE, torch.float32, device)
        for make in (cases.LAYOUTS[layout], lambda t: t.reshape(-1)[0].expand(t.shape)):
            small = set(range(len(tensors))) - set(self.large(tensors))
            may = [i for i in small if tensors[i].dim() > 0 and not self.is_dense(call, tensors, i)]
            laid = [make(t) if i in may else t for i, t in enumerate(tensors)]
            self.check(call, tuple(laid))

    def is_dense(self, call: Any, tensors: Tensors, index: int) -> bool:
        """Whether the op wants this one contiguous."""
        return False

    @pytest.mark.parametrize("layout", cases.OTHER_LAYOUTS)
    def test_matrices(self, matrix_call: Any, layout: str, device: str) -> None:
        """Large enough for every kind of loop, of copy and of tile."""
        turn = list(cases.OTHER_LAYOUTS).index(layout) % 2
        for index, shape in enumerate(self.MATRICES):
            dtype = cases.FLOAT_DTYPES[3 - index if turn else index]
            tensors = self.tensors(matrix_call, shape, dtype, device)
            large = self.large(tensors)
            laid = [cases.LAYOUTS[layout](t) if i in large else t for i, t in enumerate(tensors)]
            self.check(matrix_call, tuple(laid), f"{shape} {dtype}")

    @by_dtype
    def test_every_tail_and_misalignment(
        self, matrix_call: Any, dtype: torch.dtype, device: str
    ) -> None:
        """Lengths around any vector width, from any element of a 16-byte line."""
        for number, length in enumerate(LENGTHS):
            tensors = self.tensors(matrix_call, (2, length), dtype, device)
            wanted = outputs(matrix_call(*tensors))
            for start in (0, 1) if number % 3 else (0, 1, 3, 6, 8, 15):
                laid = list(tensors)
                for i in self.large(tensors):
                    wide = laid[i].new_full((2, 180), 100)
                    wide[:, start : start + length] = laid[i]
                    laid[i] = wide[:, start : start + length]
                for mine, right in zip(outputs(matrix_call(*laid)), wanted, strict=True):
                    assert_same_bits(mine, right, f"{start} {length}")

    @pytest.mark.parametrize("layout", cases.LAYOUTS_4D)
    def test_gradients_of_another_layout(self, exact_call: Any, layout: str, device: str) -> None:
        """What is kept follows the output's memory order, the incoming gradient may not."""
        x, *rest = self.tensors(exact_call, self.SHAPE, torch.float32, device)
        dy = cases.gradients(self.SHAPE, torch.float32).to(device)
        laid = cases.LAYOUTS_4D[layout](x).requires_grad_()
        copy = laid.detach().contiguous().requires_grad_()
        y, other = (outputs(exact_call(t.view_as(t), *rest))[0] for t in (laid, copy))
        for of_dy in ("contiguous", layout, "transposed", "channels_last", "expanded"):
            given = cases.LAYOUTS_4D[of_dy](dy).to(y.dtype)
            (dx,) = torch.autograd.grad(y, laid, given, retain_graph=True)
            (right,) = torch.autograd.grad(other, copy, given.contiguous(), retain_graph=True)
            assert_same_bits(dx, right, of_dy)

    @pytest.mark.parametrize("shape", (*cases.SHAPES[1:], (1, 5, 1, 3), (1, 0, 3)), ids=str)
    def test_meta_agrees_on_every_shape(self, shape: Shape, device: str) -> None:
        """Sizes 0 and 1, whose strides say nothing, too."""
        for call in {c.verb: c for c in self.CALLS}.values():
            calls = [call]
            if "granularity" in {f.name for f in dataclasses.fields(call)}:
                kinds = cases.granularities(shape)
                calls = [dataclasses.replace(call, granularity=g) for g in kinds]
            for one in calls:
                tensors = self.tensors(one, shape, torch.float32, device)
                many = len(shape) > 1 and 0 not in shape
                for make in cases.LAYOUTS.values() if many else (lambda t: t,):
                    laid = (make(tensors[0]), *tensors[1:])
                    assert_meta_agrees(one, laid, outputs(one(*laid)))
