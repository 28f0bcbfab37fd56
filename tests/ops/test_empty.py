# SPDX-License-Identifier: BSD-3-Clause
"""Ops of no rows, no columns, no outputs: results and gradients are those of the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import ops, reference
from baraquant.granularity import GRANULARITIES

ROWS, COLUMNS, OUTPUTS = 3, 8, 4
SIZES = {
    "no rows": (0, COLUMNS, OUTPUTS),
    "no columns": (ROWS, 0, OUTPUTS),
    "no outputs": (ROWS, COLUMNS, 0),
    "outputs alone": (0, 0, OUTPUTS),
    "nothing": (0, 0, 0),
}
# Of sizes: the arguments, and the keywords.
Arguments = Callable[[int, int, int], tuple[tuple[Any, ...], dict[str, Any]]]


def floats(*sizes: int) -> Tensor:
    return torch.linspace(-3, 2, torch.Size(sizes).numel()).reshape(sizes)


def scales(*sizes: int) -> Tensor:
    return floats(*sizes).abs() + 0.5


def integers(*sizes: int, dtype: torch.dtype = torch.int8) -> Tensor:
    return (floats(*sizes) + 3).to(dtype)


def groups(k: int) -> int:
    return -(-k // 2)


def of_granularity(verb: str, granularity: str) -> tuple[str, Arguments]:
    """Per channel: of the columns."""
    own = {"per_channel": (1,), "per_group": (2,)}.get(granularity, ())

    def arguments(t: int, k: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = integers(t, k) if verb == "dequantize" else floats(t, k)
        if verb.startswith(("choose", "dynamic")):
            return (x, *own), {"symmetric": False}
        shape = {"per_tensor": (), "per_channel": (k,), "per_token": (t, 1)}
        sizes = shape.get(granularity, (t, groups(k)))
        return (x, scales(*sizes), integers(*sizes, dtype=torch.int32), *own), {}

    return f"{verb}_{granularity}", arguments


VERBS = ("quantize", "dequantize", "fake_quantize", "choose_qparams", "dynamic_range_quantize")
CALLS: list[tuple[str, Arguments]] = [
    *(of_granularity(verb, g) for verb in (*VERBS, "dynamic_fake_quantize") for g in GRANULARITIES),
    ("rms_norm", lambda t, k, n: ((floats(t, k), scales(k), 1e-5), {})),
    ("layer_norm", lambda t, k, n: ((floats(t, k), scales(k), floats(k), 1e-5), {})),
    ("silu_mul", lambda t, k, n: ((floats(t, k), scales(t, k)), {})),
    ("gelu", lambda t, k, n: ((floats(t, k),), {})),
    ("hadamard", lambda t, k, n: ((floats(t, k), 4), {})),
    ("rms_norm_quantize_per_token", lambda t, k, n: ((floats(t, k), None, 1e-5), {})),
    ("layer_norm_quantize_per_token", lambda t, k, n: ((floats(t, k), None, None, 1e-5), {})),
    ("hadamard_quantize_per_token", lambda t, k, n: ((floats(t, k), 4), {})),
    (
        "int8_linear",
        lambda t, k, n: (
            (integers(t, k), integers(n, k), scales(t), scales(n), floats(n)),
            {"input_zero_point": integers(t, dtype=torch.int32)},
        ),
    ),
    (
        "int8_product",
        lambda t, k, n: (
            (integers(t, k), integers(n, k)),
            {"input_zero_point": integers(t, dtype=torch.int32)},
        ),
    ),
    (
        "rescale_product",
        lambda t, k, n: (
            (integers(t, n, dtype=torch.int32), scales(t), scales(n), floats(n)),
            {},
        ),
    ),
    (
        "int8_conv",
        lambda t, k, n: (
            (integers(t, k, 4), integers(n, k, 3), scales(), scales(n), floats(n)),
            {"padding": 1, "input_zero_point": torch.tensor(2)},
        ),
    ),
    (
        "smoothquant_linear",
        lambda t, k, n: (
            (integers(t, k), integers(n, k), scales(n), 0.5, floats(n)),
            {"act_zero_point": 3},
        ),
    ),
    (
        "static_quantized_linear",
        lambda t, k, n: (
            (floats(t, k), integers(n, k), scales(n), scales(), floats(n)),
            {"act_zero_point": torch.tensor(2), "smooth_scale": scales(k)},
        ),
    ),
    *(
        (
            "qat_linear",
            lambda t, k, n, backward=backward: (
                (floats(t, k), floats(n, k), floats(n)),
                {"symmetric": False, "backward": backward},
            ),
        )
        for backward in ("float", "int8_input", "int8")
    ),
    (
        "quantized_linear",
        lambda t, k, n: (
            (floats(t, k), integers(n, k), scales(n), floats(n)),
            {"symmetric": False},
        ),
    ),
    (
        "quantized_grouped_linear",
        lambda t, k, n: (
            (floats(t, k), integers(2, n, k), torch.tensor([0, t]).int(), scales(2, n)),
            {"symmetric": False},
        ),
    ),
    (
        "quantized_int4_linear",
        lambda t, k, n: (
            (
                *(floats(t, k), integers(n, groups(k), dtype=torch.uint8), scales(n)),
                *(torch.ones(n, groups(k), dtype=torch.uint8), 2, floats(n)),
            ),
            {"symmetric": False},
        ),
    ),
    ("choose_int4_qparams", lambda t, k, n: ((floats(n, k), 2), {"symmetric": False})),
    ("pack_int4", lambda t, k, n: ((integers(n, k),), {})),
    (
        "weight_only_linear",
        lambda t, k, n: (
            (floats(t, k), integers(n, k), scales(n, groups(k)), floats(n)),
            {"weight_zero_point": integers(n, groups(k)), "group_size": 2},
        ),
    ),
    ("scaled_quantize_per_token", lambda t, k, n: ((floats(t, k), scales(k)), {})),
    ("scaled_quantize_transposed", lambda t, k, n: ((floats(t, k), scales(t, 1)), {})),
    ("transpose_int8", lambda t, k, n: ((integers(t, k),), {})),
]
# Their integers have no gradient, and they refuse what requires one.
NOT_DIFFERENTIABLE = ("_quantize_per_token", "choose", "dynamic_range", "scaled", "int4_qparams")


def results(module: Any, name: str, call: tuple[Any, Any], device: str) -> list[Tensor]:
    """The outputs; then the gradients of the first and of every floating argument of `qat_`."""
    args, kwargs = call
    args = tuple(a.to(device) if isinstance(a, Tensor) else a for a in args)
    kwargs = {k: a.to(device) if isinstance(a, Tensor) else a for k, a in kwargs.items()}
    learned = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    if any(part in name for part in NOT_DIFFERENTIABLE) and not name.startswith("fake"):
        learned = []
    if not name.startswith(("qat", "rms", "layer", "silu")):
        learned = [a for a in learned if a is args[0]]
    for a in learned:
        a.requires_grad_()
    found = getattr(module, name)(*args, **kwargs)
    outputs = list(found) if isinstance(found, tuple) else [found]
    if learned and outputs[0].requires_grad:
        outputs += torch.autograd.grad(outputs[0], learned, torch.ones_like(outputs[0]))
    return [t.detach() for t in outputs]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_what_is_empty(name: str, arguments: Arguments, sizes: str, device: str) -> None:
    if all(a.numel() for a in arguments(*SIZES[sizes])[0] if isinstance(a, Tensor)):
        return  # the op has no argument of outputs
    actual = results(ops, name, arguments(*SIZES[sizes]), device)
    expected = results(reference, name, arguments(*SIZES[sizes]), "cpu")
    assert len(actual) == len(expected)
    for found, wanted in zip(actual, expected, strict=True):
        assert found.dtype == wanted.dtype and torch.equal(found.cpu(), wanted)
