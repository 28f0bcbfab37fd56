# SPDX-License-Identifier: BSD-3-Clause
"""The integer matrix family in PyTorch, beyond what all ops share: autocast, vmap, compilers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import toolchain
from baraquant import ops
from tests.support import cases
from tests.support.aot_inductor import skip_where_it_crashes
from tests.support.bits import assert_same_bits
from tests.support.calls.affine import value_and_gradients
from tests.support.calls.int8_mm import INT8_CALLS, QAT_CALLS, Int8Call
from tests.support.family_cases.int8_mm import INPUT_RANGE, WEIGHT_RANGE, Case, integers
from tests.support.oracle import int8_mm as int8_oracle

SHAPE = (3, 4, 20)
by_call = pytest.mark.parametrize("call", INT8_CALLS, ids=str)
by_qat_call = pytest.mark.parametrize("call", QAT_CALLS, ids=str)
by_low = pytest.mark.parametrize("low", (torch.bfloat16, torch.float16), ids=cases.name_of)
jit = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


@pytest.fixture
def compiler() -> Iterator[None]:
    """A fresh one, and for AOTInductor's packages, which load torch, one that can link them."""
    torch._dynamo.reset()
    with torch._inductor.config.patch({"cpp.cxx": (None, toolchain.program_compiler())}):
        yield


# --- autocast ------------------------------------------------------------------------------------


@by_low
@pytest.mark.parametrize("call", [call for call in QAT_CALLS if not call.given], ids=str)
def test_qat_linear_runs_in_the_autocast_dtype(
    call: Int8Call, low: torch.dtype, device: str
) -> None:
    """The input is cast, as linear's is, and the weight is not: its integers are those of the leaf.

    A float32 bias stays, too. Gradients come back in the leaves' dtypes.
    """
    for dtypes in (
        (torch.float32,) * 3,
        (low, torch.float32, torch.float32),
        (torch.float32, low, low),
    ):
        made = call.tensors(SHAPE, device=device)
        leaves = [t.detach().to(d).requires_grad_() for t, d in zip(made, dtypes, strict=False)]
        with torch.autocast(device, dtype=low):
            results = value_and_gradients(call, tuple(leaves))
        x, *others = (t.detach() for t in leaves)
        cast = tuple(t.requires_grad_() for t in (x.to(low), *others))
        expected = value_and_gradients(call, cast)
        for got, right in zip(results, expected, strict=True):
            torch.testing.assert_close(got.to(right.dtype), right)
        assert_same_bits(results[0], expected[0])
        assert [t.dtype for t in results] == [low, *(t.dtype for t in leaves)]


def test_autocast_does_as_for_linear(device: str) -> None:
    """float64 is left alone, and so is everything where autocast is off."""
    for dtype in cases.FLOAT_DTYPES:
        x, w = (torch.randn(s, device=device, dtype=dtype) for s in ((5, 20), (7, 20)))
        for enabled in (True, False):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
                assert ops.qat_linear(x, w).dtype == nn.functional.linear(x, w).dtype


def test_autocast_of_a_network(device: str) -> None:
    """Two layers whose master weights are float32, trained one step under autocast."""
    torch.manual_seed(0)
    first, second = (nn.Linear(20, 20).to(device) for _ in range(2))
    x = torch.randn(6, 20, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        hidden = torch.relu(ops.qat_linear(x, first.weight, first.bias))
        y = ops.qat_linear(hidden, second.weight, second.bias, symmetric=False)
        loss = y.square().mean()
    assert hidden.dtype == y.dtype == torch.bfloat16
    loss.backward()
    for parameter in (*first.parameters(), *second.parameters()):
        assert parameter.grad.dtype == torch.float32 and parameter.grad.any()


# --- checkpoints, hooks --------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", (True, False))
def test_checkpoint_of_layers(reentrant: bool, device: str) -> None:
    tensors = QAT_CALLS[0].tensors(SHAPE, device=device)

    def layers(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x = torch.tanh(ops.qat_linear(x, weight, bias))
        return ops.qat_linear(x, weight, None, symmetric=False)

    def recomputed(*given: Tensor) -> Tensor:
        return checkpoint(layers, *given, use_reentrant=reentrant)

    def gradients(function: Callable[..., Tensor]) -> list[Tensor]:
        for t in tensors:
            t.grad = None
        function(*tensors).square().sum().backward()
        return [t.grad for t in tensors]

    assert all(map(torch.equal, gradients(recomputed), gradients(layers)))


# --- vmap ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", (*INT8_CALLS, *QAT_CALLS), ids=str)
def test_vmap_over_anything_else_is_refused(call: Int8Call, device: str) -> None:
    """A batch of weights, of their scales or of biases has no rule, and says so."""
    tensors = [t.detach() for t in call.tensors(SHAPE, device=device)]
    for index, name in enumerate(call.names):
        if name not in ("weight", "weight_scale", "bias", "weight_sum"):
            continue
        for with_input in (True, False):
            batched = [t.detach() for t in tensors]
            batched[index] = torch.stack([tensors[index]] * 2)
            dims = [0 if i == index else None for i in range(len(tensors))]
            if with_input:
                batched[0], dims[0] = torch.stack([tensors[0]] * 2), 0
            with pytest.raises(NotImplementedError, match=rf"baraquant::{call.verb}.*{name}"):
                torch.vmap(call.__call__, tuple(dims))(*batched)


def test_vmap_with_scales_of_each_sample(device: str) -> None:
    """Scales and zero points belong to the input's rows, so they may be batched with it."""
    for kind in ("token", "token_1", "one", "one_1"):
        case = Case((4, 5), 9, 21, torch.uint8, scale=kind, zero_point=kind)
        samples = [Case(**case.__dict__ | {"seed": seed}).arguments() for seed in range(3)]
        names = ("input", "input_scale", "input_zero_point")
        own = [torch.stack([s[name] for s in samples]).to(device) for name in names]
        weight, scale = (samples[0][name].to(device) for name in ("weight", "weight_scale"))

        def run(
            a: Tensor, sa: Tensor, za: Tensor, w: Tensor = weight, sw: Tensor = scale
        ) -> Tensor:
            return torch.ops.baraquant.int8_linear(a, w, sa, sw, input_zero_point=za)

        for dims in ((0, 0, 0), (0, 0, None), (0, None, 0), (0, None, None)):
            given = [t if d == 0 else t[0] for t, d in zip(own, dims, strict=True)]
            actual = torch.vmap(run, dims)(*given)
            for i in range(3):
                sample = [t[i] if d == 0 else t for t, d in zip(given, dims, strict=True)]
                assert torch.equal(actual[i], run(*sample)), f"{kind} {dims}"


@pytest.mark.parametrize("sample", ((0, 6), (4, 0), (6,)), ids=str)
def test_vmap_of_empty_and_flat_samples(sample: tuple[int, ...], device: str) -> None:
    x = torch.randn(3, *sample, device=device)
    w = integers((5, sample[-1]), torch.int8, "random").to(device)
    scale = torch.ones(5, device=device)
    for function in (
        lambda x: ops.quantized_linear(x, w, scale, symmetric=False),
        lambda x: ops.qat_linear(x, w.float()),
    ):
        actual = torch.vmap(function)(x)
        assert torch.equal(actual, torch.stack([function(row) for row in x]))


# --- core ops ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("symmetric", "with_mask"), ((True, False), (False, False), (False, True)))
@pytest.mark.parametrize("ends", ((-128, 127, -128, 127), (-2, 1, -8, 7)), ids=("int8", "narrow"))
def test_core_op(
    ends: tuple[int, int, int, int], symmetric: bool, with_mask: bool, device: str
) -> None:
    """The forward with what is kept for backward: the integers and scales of both quantizations."""
    x, w, bias = (t.detach() for t in QAT_CALLS[0].tensors(SHAPE, device=device))
    op = torch.ops.baraquant._qat_linear_kept.default
    rest = (symmetric, *ends, with_mask)
    for given in (x, x[:, ::2], x.transpose(0, 1)):
        torch.library.opcheck(op, (given, w, bias, *rest))
    y, q, scale, point, mask, qw, weight_scale = op(x, w, bias, *rest)
    ranges = dict(zip((*WEIGHT_RANGE, *INPUT_RANGE), ends, strict=True))
    assert_same_bits(y, ops.qat_linear(x, w, bias, symmetric=symmetric, **ranges))
    expected = ops.dynamic_range_quantize_per_token(x, *ends[2:], symmetric=symmetric)
    assert torch.equal(q.view(SHAPE), expected[0])
    assert torch.equal(scale.view(-1), expected[1].view(-1))
    assert symmetric or torch.equal(point.view(-1), expected[2].view(-1))
    expected = ops.dynamic_range_quantize_per_channel(w, 0, *ends[:2])
    assert torch.equal(qw, expected[0]) and torch.equal(weight_scale, expected[1])
    assert (mask.numel() == x.numel() // 8) if with_mask else (mask.numel() == 0)


# --- compilers -----------------------------------------------------------------------------------


class Network(nn.Module):
    """A trained layer, two deployed ones and what lies between them, as a user would write it."""

    def __init__(self, *, dtypes: bool = False) -> None:
        super().__init__()
        self.dtypes = dtypes
        self.first, last = nn.Linear(32, 24), nn.Linear(24, 16)
        weight, scale, _ = ops.dynamic_range_quantize_per_channel(last.weight.detach(), 0)
        for name, tensor in {"weight": weight, "scale": scale, "bias": last.bias.detach()}.items():
            self.register_buffer(name, tensor.clone())
        self.register_buffer("sums", weight.sum(1, dtype=torch.int32))
        self.register_buffer("square", self.first.weight.detach()[:, :24].clone())

    def forward(self, x: Tensor) -> Tensor:
        x = ops.qat_linear(x, self.first.weight, self.first.bias, symmetric=False)
        narrow = ops.qat_linear(
            x, self.square, weight_quant_min=-2, weight_quant_max=1, quant_min=-7, quant_max=7
        )
        x = torch.relu(x + narrow)
        y = ops.quantized_linear(
            x, self.weight, self.scale, self.bias, symmetric=False, weight_sum=self.sums
        )
        y = y + ops.quantized_linear(x, self.weight, self.scale, quant_min=-8, quant_max=7)
        if not self.dtypes:
            return y
        q = ops.quantize_per_tensor(x, 0.05, 3, 0, 255, dtype=torch.uint8)
        static = ops.smoothquant_linear(
            q, self.weight, self.scale, 0.05, act_zero_point=3, dtype=torch.float16
        )
        q, sa, za = ops.dynamic_range_quantize_per_token(x, symmetric=False)
        dynamic = ops.int8_linear(
            q, self.weight, sa, self.scale, input_zero_point=za, dtype=torch.bfloat16
        )
        return y + static + dynamic


def network(device: str, **options: bool) -> Network:
    torch.manual_seed(0)
    return Network(**options).to(device).eval()


def assert_like_eager(run: Callable[[Tensor], Any], eager: nn.Module, device: str) -> None:
    for rows in (6, 2, 37):
        x = torch.randn(rows, 32, device=device)
        torch.testing.assert_close(run(x), eager(x))


def trained(module: nn.Module, run: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    """The output of one step and the gradients of all parameters."""
    module.zero_grad()
    y = run(x)
    y.square().sum().backward()
    return [y.detach(), *(p.grad.clone() for p in module.parameters())]


class Layers(nn.Module):
    """Two layers that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(ops.qat_linear(x, self.first.weight, self.first.bias, symmetric=False))
        four_bits = {"weight_quant_min": -8, "weight_quant_max": 7}
        return ops.qat_linear(x, self.second.weight, self.second.bias, **four_bits)


@pytest.mark.inductor
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("backend", ("inductor", "aot_eager"))
def test_training_compiles(backend: str, device: str) -> None:
    """Forward and backward for any number of rows; with aot_eager also under autocast."""
    torch.manual_seed(0)
    layers, autocast = Layers().to(device), backend == "aot_eager"
    compiled = torch.compile(copy.deepcopy(layers), fullgraph=True, dynamic=True, backend=backend)
    for rows in (6, 2, 37):
        x = torch.randn(rows, 32, device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=autocast):
            actual, expected = trained(compiled, compiled, x), trained(layers, layers, x)
        for got, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(got, right)


@pytest.mark.inductor
@pytest.mark.usefixtures("compiler")
def test_network_compiles(device: str) -> None:
    eager = network(device, dtypes=True)
    run = torch.compile(copy.deepcopy(eager), fullgraph=True, dynamic=True)
    assert_like_eager(run, eager, device)


def exported(eager: nn.Module, device: str) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4096)
    example = (torch.randn(6, 32, device=device),)
    return torch.export.export(copy.deepcopy(eager), example, dynamic_shapes=({0: rows},))


def test_network_exports(device: str) -> None:
    eager = network(device, dtypes=True)
    assert_like_eager(exported(eager, device).module(), eager, device)


@pytest.mark.inductor
@pytest.mark.usefixtures("compiler")
def test_package(tmp_path: Path, device: str) -> None:
    """AOTInductor: compiled once for any number of rows.

    That of torch 2.11 hands a dtype argument to a custom op as another dtype.
    """
    skip_where_it_crashes(device)
    eager = network(device, dtypes=not torch.__version__.startswith("2.11."))
    path = torch._inductor.aoti_compile_and_package(
        exported(eager.requires_grad_(False), device), package_path=str(tmp_path / "network.pt2")
    )
    assert_like_eager(torch._inductor.aoti_load_package(path), eager, device)


@jit
@pytest.mark.parametrize("how", ("script", "trace"))
def test_torchscript(how: str, device: str) -> None:
    """Scripted or traced, saved, loaded and frozen, with weights that are constants then."""
    eager = network(device, dtypes=True)
    x = torch.randn(6, 32, device=device)
    module = torch.jit.script(eager) if how == "script" else torch.jit.trace(eager, x)
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    for other in (module, torch.jit.load(file), torch.jit.freeze(module)):
        for _ in range(2):  # the profiling executor
            assert_like_eager(other, eager, device)


def test_deployment_by_state_dict(device: str) -> None:
    """The integers and scales of a trained layer, saved and loaded, give its very outputs."""
    layer, x = nn.Linear(40, 24).to(device), torch.randn(5, 40, device=device)
    y = ops.qat_linear(x, layer.weight, layer.bias)
    weight, scale, _ = ops.dynamic_range_quantize_per_channel(layer.weight.detach(), 0)
    file = io.BytesIO()
    torch.save({"weight": weight, "scale": scale, "bias": layer.bias.detach()}, file)
    file.seek(0)
    state = torch.load(file, map_location=device)
    deployed = ops.quantized_linear(x, state["weight"], state["scale"], state["bias"])
    assert_same_bits(deployed, y.detach())
    expected = int8_oracle.qat_linear(*(t.detach().cpu() for t in (x, layer.weight, layer.bias)))
    assert_same_bits(deployed, expected)
