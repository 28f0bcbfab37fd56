# SPDX-License-Identifier: BSD-3-Clause
"""The comparison with the oracle that the tests of the integer matrix family share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.bits import assert_same_bits
from tests.support.family_cases.int8_mm import Case
from tests.support.oracle import int8_mm as int8_oracle

Arguments = dict[str, Any]
Layout = Callable[[Tensor], Tensor]
OPS = ("int8_linear", "smoothquant_linear")
OPS += ("quantized_linear", "static_quantized_linear", "qat_linear")


def moved(arguments: Arguments, device: str) -> dict[str, Any]:
    """The tensors among them on a device; on Meta with the same strides."""
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}


def call(name: str, arguments: Arguments, device: str = "cpu") -> Tensor:
    return getattr(torch.ops.baraquant, name)(**moved(arguments, device))


def check(
    name: str, arguments: Arguments, device: str, note: object = "", layout: Layout | None = None
) -> Tensor:
    """Compare one call with the oracle; the input gets its layout on the device."""
    expected = getattr(int8_oracle, name)(**arguments)
    given = moved(arguments, device)
    if layout is not None:
        given["input"] = layout(given["input"])
    before = given["input"].clone()
    got = getattr(torch.ops.baraquant, name)(**given)
    dtype = arguments.get("dtype") or arguments["input"].dtype
    dtype = torch.float32 if not dtype.is_floating_point else dtype
    dtype = torch.int32 if name == "int8_product" else dtype
    assert got.dtype == dtype and got.is_contiguous()
    assert_same_bits(got, expected, f"{name} {note or summary(arguments)}")
    assert torch.equal(given["input"].nan_to_num(), before.nan_to_num())
    return got


def check_case(case: Case, device: str) -> Tensor:
    return check(case.op, case.arguments(), device, case)


def summary(arguments: Arguments) -> str:
    """What a failure says of its call."""

    def of(value: Any) -> str:
        return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else f"{value}"

    return ", ".join(f"{name}={of(value)}" for name, value in arguments.items())
