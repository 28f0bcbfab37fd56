# SPDX-License-Identifier: BSD-3-Clause
"""Exported layers called with another dtype: an error, or the dtype that the graph fixed.

AOTInductor allocates what follows an op for the dtype in the graph. A product whose output followed
its input would be read beyond its end.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn

import baraquant
import toolchain
from baraquant.nn.shared import product as _product
from tests.support.aot_inductor import skip_where_it_crashes
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


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    with torch._inductor.config.patch({"cpp.cxx": (None, toolchain.program_compiler())}):
        yield


def served(layer: str, scheme: str, dtype: torch.dtype, form: str) -> tuple[nn.Module, Tensor]:
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
    model, x = served(layer, scheme, dtype, form)
    check(torch.export.export(model, (x,)).module(), model, x)


def packaged(model: nn.Module, x: Tensor, folder: Path) -> Callable[[Tensor], Tensor]:
    program = torch.export.export(model, (x,))
    path = str(folder / "model.pt2")
    with torch.no_grad():
        package = torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(package)


# Each scheme, with a bias or without, in one dtype or the other, and the convolutions that multiply
# integers. Each takes seconds to compile.
LINEAR = ("linear", "linear without bias")
PACKAGES = [
    *((scheme, LINEAR[i // 2 % 2], DTYPES[2 * (i % 2)]) for i, scheme in enumerate(SCHEMES)),
    ("static", "conv", torch.float32),
    ("per tensor", "conv", torch.bfloat16),
]


@fixes_dtypes
@pytest.mark.inductor
@pytest.mark.parametrize(("scheme", "layer", "dtype"), PACKAGES, ids=str)
def test_a_package(scheme: str, layer: str, dtype: torch.dtype, tmp_path: Path) -> None:
    skip_where_it_crashes("cpu")
    model, x = served(layer, scheme, dtype, "converted")
    model = nn.Sequential(model[0], nn.ReLU())  # which Inductor makes, and which reads the output
    check(packaged(model, x, tmp_path), model, x)


@pytest.mark.inductor
@pytest.mark.parametrize("scheme", [None, "W8A16"])
def test_a_package_of_a_floating_convolution(
    scheme: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's code reads its input without a look at the dtype, unless it is told to look."""
    skip_where_it_crashes("cpu")
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    model, x = served("conv", scheme or "W8A16", torch.float32, "converted")
    if scheme is None:
        model = nn.Sequential(LAYERS["conv"][0]()).requires_grad_(False)
    package = packaged(nn.Sequential(model[0], nn.ReLU()), x, tmp_path)
    torch.testing.assert_close(output(package, x), output(model, x).relu())
    for dtype in DTYPES[1:]:
        with pytest.raises(RuntimeError):
            output(package, x.to(dtype))


@fixes_dtypes
@pytest.mark.inductor
@pytest.mark.smoke
def test_a_package_of_several_layers(tmp_path: Path) -> None:
    skip_where_it_crashes("cpu")
    torch.manual_seed(0)
    products = nn.Linear(64, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 8)
    model = nn.Sequential(*(nn.Sequential(product, nn.ReLU()) for product in products))
    x, schemes = torch.randn(4, 64), (baraquant.W8A8(), baraquant.W8A8Static(), baraquant.W8A16())
    by_name = {f"{index}.0": scheme for index, scheme in enumerate(schemes)}
    baraquant.quantize_(model, by_name, calibration=[x], progress=False)
    check(packaged(model, x, tmp_path), model, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_bias_is_a_bias_of_minus_zero(dtype: torch.dtype) -> None:
    """Which changes no bit of a sum, also not that of -0.0."""
    model, x = served("linear without bias", "W8A16", dtype, "converted")
    x[0] = -0.0
    exported = torch.export.export(model, (x,)).module()
    own, other = output(exported, x), output(model, x)
    assert torch.equal(own, other) and torch.equal(own.signbit(), other.signbit())
