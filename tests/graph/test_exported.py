# SPDX-License-Identifier: BSD-3-Clause
"""fuse_ on exported programs: the same bits, one quantization where there were several."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import baraquant
from tests.graph.blocks import BLOCKS, SCHEMES, WIDTH, RMSNorm, assert_values_fit, counts, quantized
from tests.nn.test_quantizer_modules import saved

Program = torch.export.ExportedProgram
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def dynamic(x: Tensor) -> tuple[Any, ...]:
    return (dict.fromkeys(range(x.dim() - 1), torch.export.Dim.AUTO),)


def exported(model: nn.Module, *args: Any, **kwargs: Any) -> Program:
    with torch.no_grad():
        return torch.export.export(model, args, **kwargs)


@torch.no_grad()
def outputs(program: Any, *args: Any) -> list[Tensor]:
    result = (program.module() if isinstance(program, Program) else program)(*args)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def assert_fused(model: nn.Module, *args: Tensor, **kwargs: Any) -> tuple[Program, Any]:
    """Fuse a model's program; it gives the bits of the program as it was."""
    program = exported(model, *args, **kwargs)
    before = outputs(program, *args)
    report = baraquant.graph.fuse_(program)
    program.graph.lint()
    assert_values_fit(program.graph)
    for found, expected in zip(outputs(program, *args), before, strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    return program, report


def test_of_a_block() -> None:
    """One quantization for q, k, v, one for gate and up, none that is not in another op."""
    program, report = assert_fused(quantized(BLOCKS["llama"]()), torch.randn(2, 3, WIDTH))
    found = counts(program.graph)
    assert found["rms_norm_quantize_per_token"] == 2 and found["rms_norm"] == 0
    assert found["silu_mul_quantize_per_token"] == 1 and found["silu_mul"] == 0
    assert found["int8_linear"] == 6 and found["quantized_linear"] == 1
    assert (report.before, report.after) == (7, 4)
    assert str(report).splitlines() == [
        "input_norm  -> attention.q_proj, attention.k_proj, attention.v_proj "
        "(rms_norm_quantize_per_token)",
        "post_norm   -> gate_proj, up_proj (rms_norm_quantize_per_token)",
        "silu_mul    -> down (silu_mul_quantize_per_token)",
        "3 fused, 0 left out; 7 quantizations before, 4 now",
    ]


@pytest.mark.exhaustive
@pytest.mark.pairs
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ("exported", torch.float32), ("strict", torch.bfloat16),
        ("decomposed", torch.float64), ("decomposed", torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("block", BLOCKS)
def test_bits(block: str, scheme: str, how: str, dtype: torch.dtype, device: str) -> None:
    """With symbolic shapes: for one row and for many."""
    if dtype == torch.float64:  # the activations do not take it
        model: nn.Module = nn.Sequential(RMSNorm(WIDTH), BLOCKS[block]().attention)
    else:
        model = BLOCKS[block](bias=True)
    model = quantized(model, scheme, dtype, device)
    x = torch.randn(2, 3, WIDTH, dtype=dtype, device=device)
    program = exported(model, x, dynamic_shapes=dynamic(x), strict=how == "strict")
    if how == "decomposed":
        program = program.run_decompositions()
    shapes = [(1, 4), (5, 2), (2, 64)]
    if not (device == "cuda" and dtype == torch.bfloat16):  # PyTorch's attention returns None there
        shapes.append((0, 3))
    inputs = [torch.randn(*shape, WIDTH, dtype=dtype, device=device) for shape in shapes]
    before = [outputs(program, x)[0] for x in inputs]
    report = baraquant.graph.fuse_(program)
    assert report.after < report.before
    assert_values_fit(program.graph)
    assert all(map(torch.equal, [outputs(program, x)[0] for x in inputs], before))


@pytest.mark.exhaustive
def test_post_norm_keeps_what_the_residual_reads() -> None:
    """q, k, v share; the norm before `up` is left out, and the report says what reads it."""
    model = quantized(nn.Sequential(BLOCKS["bert"](), BLOCKS["bert"]()))
    program, report = assert_fused(model, torch.randn(2, 3, WIDTH))
    found = counts(program.graph)
    assert found["layer_norm"] == 4 and found["dynamic_range_quantize_per_token"] == 2
    assert found["gelu_quantize_per_token"] == 2 and found["gelu"] == 0
    assert found["int8_linear"] == 8 and found["quantized_linear"] == 4
    reason = "its output is also read by add"
    assert report.left_out == dict.fromkeys(("0.norm", "0.last_norm", "1.norm"), reason)
    assert "*.norm (2)" in str(report)


@pytest.mark.exhaustive
def test_saved_loaded_and_compiled(tmp_path: Any) -> None:
    model = quantized(BLOCKS["llama"](bias=True), "W8A8 asymmetric")
    x = torch.randn(2, 3, WIDTH)
    program = exported(model, x, dynamic_shapes=dynamic(x))
    expected = outputs(program, x)[0]
    baraquant.graph.fuse_(program)
    loaded = torch.export.load(saved(torch.export.save, program))
    assert counts(loaded.graph) == counts(program.graph)
    assert torch.equal(outputs(loaded, x)[0], expected)
    again = baraquant.graph.fuse_(loaded)
    assert again.fusions == () and again.before == again.after == 1
    assert torch.equal(outputs(torch.export.unflatten(program), x)[0], expected)


@pytest.mark.exhaustive
def test_parameters_are_frozen() -> None:
    """Those of the program, so that it runs in grad mode; not those of the model."""
    model = quantized(BLOCKS["llama"]())
    model.post_norm.weight = model.input_norm.weight
    x = torch.randn(2, 3, WIDTH)
    program = torch.export.export(model, (x,))
    baraquant.graph.fuse_(program)
    assert torch.equal(program.module()(x), model(x))
    assert not any(p.requires_grad for p in program.module().parameters())
    integers = {id(p) for m in model.modules() if hasattr(m, "qweight") for p in m.parameters()}
    assert all(p.requires_grad for p in model.parameters() if id(p) not in integers)
    model.input_norm.weight.data.mul_(2)
    assert torch.equal(program.module()(x), model(x))  # they share memory
    with pytest.raises(NotImplementedError, match="integers carry no gradient"):
        program.module()(x.requires_grad_())


@pytest.mark.exhaustive
def test_gradients_are_refused_and_not_dropped() -> None:
    """Where a gradient would be lost there is an error, whatever precedes the layers."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(x)
            return self.a(x) + self.b(x)

    full, half = torch.float32, torch.bfloat16
    for scheme, dtype, decompose in (
        ("W8A8", full, False), ("W8A8", half, True),
        ("W8A8 asymmetric", full, True), ("W8A8 asymmetric", half, False),
    ):  # fmt: skip
        model = quantized(Branches(), scheme, dtype)
        x = torch.randn(3, WIDTH, dtype=dtype)
        program = exported(model, x)
        program = program.run_decompositions() if decompose else program
        baraquant.graph.fuse_(program)
        assert counts(program.graph)["dynamic_range_quantize_per_token"] == 1
        with pytest.raises(NotImplementedError, match="requires grad"):
            program.module()(x.clone().requires_grad_())
        with torch.no_grad():
            program.module()(x.clone().requires_grad_())
        assert torch.equal(program.module()(x), model(x))
        with pytest.raises(NotImplementedError, match="requires grad"):
            program.run_decompositions().module()(x.clone().requires_grad_())


@pytest.mark.exhaustive
def test_parts_of_higher_order_ops() -> None:
    """The branches of a condition are graphs of their own, and so is a region of autocast."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = BLOCKS["llama"](), BLOCKS["llama"]()
            self.norm, self.a, self.b = RMSNorm(WIDTH), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cond(x.sum() > 0, self.one, self.two, (x,))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.norm(x)
                return self.a(h) + self.b(h)

    model = quantized(Model()).requires_grad_(False)
    x = torch.randn(2, 3, WIDTH)
    program, inputs = exported(model, x), (-x.abs(), x.abs())
    before = [outputs(program, given)[0] for given in inputs]
    report = baraquant.graph.fuse_(program)
    assert len(report.fusions) == 7 and (report.before, report.after) == (16, 9)
    assert all(map(torch.equal, [outputs(program, given)[0] for given in inputs], before))


@pytest.mark.parametrize("has_dtype", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_without_fake_values(dtype: torch.dtype, has_dtype: bool) -> None:
    """A product is fused where its dtype is an argument; else nothing says what it returns."""
    model = quantized(BLOCKS["llama"](), dtype=dtype)
    x = torch.randn(2, 3, WIDTH, dtype=dtype)
    module = exported(model, x).module()
    for node in module.graph.nodes:
        node.meta.clear()
        if "quantized_linear" in str(node.target):
            kwargs = {name: value for name, value in node.kwargs.items() if name != "dtype"}
            node.kwargs = {**kwargs, "dtype": dtype} if has_dtype else kwargs
    module.recompile()
    report = baraquant.graph.fuse_(module)
    assert (len(report.fusions), report.after) == ((3, 4) if has_dtype else (0, 7))
    result = outputs(module, x)[0]
    assert result.dtype == dtype and torch.equal(result, outputs(model, x)[0])


def test_refuses_what_has_no_graph() -> None:
    with pytest.raises(TypeError, match=r"fuse_: expected program to be an ExportedProgram .* Lin"):
        baraquant.graph.fuse_(nn.Linear(2, 2))  # type: ignore[arg-type]
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"calls none; make it with torch\.export\.export"):
        baraquant.graph.fuse_(traced)
