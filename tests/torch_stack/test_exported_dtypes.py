# SPDX-License-Identifier: BSD-3-Clause
"""Exported layers called with another dtype: an error, or the dtype that the graph fixed.

AOTInductor allocates what follows an op for the dtype in the graph. A product whose output followed
its input would be read beyond its end.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from baraquant.nn.shared import product as _product
from tests.support.aot_inductor import packaged
from tests.torch_stack.test_graph_gradients import made

LAYERS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "linear": (lambda: nn.Linear(64, 32), (5, 64)),
    "linear without bias": (lambda: nn.Linear(64, 32, bias=False), (2, 3, 64)),
    "conv": (lambda: nn.Conv2d(16, 8, 3), (2, 16, 5, 5)),
    "conv without bias": (lambda: nn.Conv1d(16, 8, 3, bias=False), (2, 16, 5)),
    "transposed conv": (lambda: nn.ConvTranspose1d(16, 8, 3), (2, 16, 5)),
    "LSTM": (lambda: nn.LSTM(16, 8), (3, 2, 16)),
}
SCHEMES = (
    *("W8A8", "asymmetric", "rotated", "static"),
    *("per tensor", "W8A16", "W4A16", "W4A8"),
)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
by_layer = pytest.mark.parametrize("layer", LAYERS)
by_scheme = pytest.mark.parametrize("scheme", SCHEMES)
fixes_dtypes = pytest.mark.skipif(
    not _product._TAKES_DTYPE,
    reason="AOTInductor of torch 2.11 hands a dtype argument to an op as another dtype",
)


def served(scheme: str, layer: str, dtype: torch.dtype, form: str) -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[layer]
    torch.manual_seed(0)
    model, x = nn.Sequential(make()).to(dtype), torch.randn(*shape, dtype=dtype)
    return made(model, x, scheme, form).requires_grad_(False), x


def output(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        y = model(x)
    return y if isinstance(y, Tensor) else y[0]


def check(graph: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> None:
    expected = output(model, x)
    assert torch.equal(output(graph, x), expected)
    for dtype in DTYPES:
        try:
            y = output(graph, x.to(dtype))
        except (RuntimeError, TypeError):
            assert dtype != x.dtype
            continue
        assert y.dtype == x.dtype
        torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1)


@fixes_dtypes
@pytest.mark.pairs
@by_layer
@by_scheme
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *(("converted", dtype) for dtype in DTYPES),
        *(("prepared", dtype) for dtype in (torch.float32, torch.bfloat16)),
    ],
    ids=str,
)
def test_an_exported_program(layer: str, scheme: str, form: str, dtype: torch.dtype) -> None:
    model, x = served(scheme, layer, dtype, form)
    check(torch.export.export(model, (x,)).module(), model, x)


class Beside(nn.Module):
    """Layers that each have an input of their own, and a ReLU, which Inductor makes."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x).relu() for layer, x in zip(self.layers, inputs, strict=True))


# Each scheme, with a bias or without, and the convolutions that multiply integers.
LINEAR = ("linear", "linear without bias")
PACKAGED = [
    *((scheme, LINEAR[i // 2 % 2]) for i, scheme in enumerate(SCHEMES)),
    *(("static", "conv"), ("per tensor", "conv")),
]


@fixes_dtypes
@pytest.mark.inductor
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.smoke), torch.bfloat16], ids=str
)
def test_a_package(dtype: torch.dtype, tmp_path: Path) -> None:
    """One program of all layers, since each takes seconds to compile; one input is wrong then."""
    layers, inputs = zip(*(served(*names, dtype, "converted") for names in PACKAGED), strict=True)
    model = Beside([layer[0] for layer in layers])
    package = packaged(torch.export.export(model, inputs), tmp_path / "model.pt2")
    assert all(map(torch.equal, package(*inputs), model(*inputs)))
    for i, (layer, x) in enumerate(zip(model.layers, inputs, strict=True)):

        def with_another(given: Tensor, i: int = i) -> Tensor:
            return package(*inputs[:i], given, *inputs[i + 1 :])[i]

        check(with_another, nn.Sequential(layer, nn.ReLU()), x)


@pytest.mark.inductor
def test_a_package_of_floating_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's code reads its input without a look at the dtype, unless it is told to look."""
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    quantized, x = served("W8A16", "conv", torch.float32, "converted")
    model = Beside([quantized[0], LAYERS["conv"][0]().requires_grad_(False)])
    package = packaged(torch.export.export(model, (x, x)), tmp_path / "model.pt2")
    torch.testing.assert_close(package(x, x), list(model(x, x)))
    for dtype in DTYPES[1:]:
        for inputs in ((x.to(dtype), x), (x, x.to(dtype))):
            with pytest.raises(RuntimeError):
                package(*inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_bias_is_a_bias_of_minus_zero(dtype: torch.dtype) -> None:
    """Which changes no bit of a sum, also not that of -0.0."""
    model, x = served("W8A16", "linear without bias", dtype, "converted")
    x[0] = -0.0
    exported = torch.export.export(model, (x,)).module()
    own, other = output(exported, x), output(model, x)
    assert torch.equal(own, other) and torch.equal(own.signbit(), other.signbit())
