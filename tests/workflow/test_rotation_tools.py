# SPDX-License-Identifier: BSD-3-Clause
"""Rotated models in files, scripted, exported, compiled, and in the formats of other programs."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import baraquant
import toolchain
from baraquant.qat import convert_, prepare_
from tests.export.tiny_decoders import tiny
from tests.support.aot_inductor import skip_where_it_crashes
from tests.support.optional_packages import package
from tests.workflow.rotated_models import SCHEMES, W8, Block, block, inputs, quantized


@pytest.mark.parametrize("scheme", SCHEMES)
def test_saved_and_loaded(scheme: str, tmp_path: Path) -> None:
    model = quantized(scheme)
    baraquant.save(model, tmp_path / "file")
    with torch.device("meta"):
        meta = Block()
    for like in (block(3), Block, meta):
        loaded = baraquant.load_(like, tmp_path / "file").eval()
        assert str(loaded) == str(model)
        assert torch.equal(loaded(inputs()), model(inputs()))
    baraquant.save(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scripted(scheme: str) -> None:
    model = block()
    prepare_(model, SCHEMES[scheme], calibration=[inputs()], progress=False)
    scripted = torch.jit.script(copy.deepcopy(model))
    x, y = inputs().requires_grad_(), inputs().requires_grad_()
    scripted(x).sum().backward(), model(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    assert torch.equal(torch.jit.script(model.eval())(inputs()), model(inputs()))
    convert_(model)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    x, y = inputs().requires_grad_(), inputs().requires_grad_()
    first, second = loaded(x), model(y)
    first.sum().backward(), second.sum().backward()
    assert torch.equal(first, second) and torch.equal(x.grad, y.grad)
    assert torch.equal(loaded(inputs()), second)
    graph = str(torch.jit.script(model.up).inlined_graph)
    fused = scheme in ("w8a8", "w8a8_asymmetric", "w4a8")
    assert ("hadamard_quantize_per_token" in graph) is fused


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", SCHEMES)
def test_exported(scheme: str) -> None:
    model = quantized(scheme)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (inputs(),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for x in (inputs(), inputs()[:3]):
        assert torch.equal(loaded(x), model(x))
    nodes = {str(node.target) for node in program.graph.nodes}
    assert "baraquant.hadamard.default" in nodes
    assert "baraquant.int8_linear.default" not in nodes  # see test_aot_inductor


@pytest.mark.exhaustive
@pytest.mark.inductor
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_aot_inductor(dtype: torch.dtype, tmp_path: Path) -> None:
    """It hands the dtype argument of an op on as a number, so the program has no such op."""
    skip_where_it_crashes("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(dtype)
    baraquant.quantize_(model, W8)
    x = inputs().to(dtype)
    compiler = {"cpp.cxx": (None, toolchain.program_compiler())}
    with torch.no_grad(), torch._inductor.config.patch(compiler):
        program = torch.export.export(model, (x,))
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
        assert torch.equal(torch._inductor.aoti_load_package(path)(x), model(x))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["w8a8", "static", "w4a16"])
def test_compiled_once(scheme: str) -> None:
    """One graph for training, one for what is served; no recompilation in between."""
    torch._dynamo.reset()
    model = block()
    prepare_(model, SCHEMES[scheme], calibration=[inputs()], progress=False)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(3):
        optimizer.zero_grad()
        compiled(inputs(step)).square().mean().backward()
        optimizer.step()
    assert counter.frame_count == 1
    convert_(model.eval())
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        for step in range(3):
            assert torch.equal(compiled(inputs(step)), model(inputs(step)))
    assert counter.frame_count == 1


@pytest.mark.exhaustive
@pytest.mark.inductor
def test_compiled_by_inductor() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))  # no norm of floats
    baraquant.quantize_(model, W8)
    with torch.no_grad():
        assert torch.equal(torch.compile(model, fullgraph=True)(inputs()), model(inputs()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["w8a8", "w8a8_asymmetric", "static", "w8a16", "per_tensor"])
def test_onnx(scheme: str, tmp_path: Path) -> None:
    """The rotation is written out in sums and differences, with the bits of the op."""
    package("onnxscript")
    runtime = package("onnxruntime")
    model = quantized(scheme)
    baraquant.export.to_onnx(model, (inputs(),), tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (got,) = session.run(None, {session.get_inputs()[0].name: inputs().numpy()})
    wanted = model(inputs())
    near = 1e-2 if scheme == "w8a16" else 1e-5  # onnxruntime has a fast product of its own
    assert (torch.from_numpy(got) - wanted).norm() < near * wanted.norm()


@pytest.mark.exhaustive
def test_pt2e_ops() -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    baraquant.quantize_(model, baraquant.W8A8(symmetric=False, rotate=16))
    model[0].qweight.clamp_(min=-127)
    copied = baraquant.export.to_pt2e_ops(model)
    program = torch.export.export(copied, (inputs(),))
    assert not any("baraquant" in str(node.target) for node in program.graph.nodes)
    wanted = model(inputs())
    assert (program.module()(inputs()) - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.exhaustive
def test_formats_without_a_rotation_refuse(tmp_path: Path) -> None:
    package("gguf"), package("transformers"), package("compressed_tensors")
    writers = {
        "to_compressed_tensors": (
            baraquant.W8A8(rotate=16),
            r"its input is rotated \(rotate=16\).*without rotate",
        ),
        "to_gguf": (
            baraquant.W8A16(rotate=16),
            "expected no rotation of the input, which GGUF cannot hold.*without rotate",
        ),
    }
    for name, (scheme, text) in writers.items():
        model, file = tiny("llama"), tmp_path / f"{name}.gguf"
        baraquant.quantize_(model, {nn.Linear: scheme})
        with pytest.raises(ValueError, match=rf"{name}: model\.layers\.0\..*{text}"):
            getattr(baraquant.export, name)(model, file)
        assert not file.exists()
