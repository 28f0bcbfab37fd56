# SPDX-License-Identifier: BSD-3-Clause
"""Models in quantized_decomposed ops: the same numbers, and XNNPACK takes them whole."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from baraquant import nn as bnn
from tests.export import onnx_runs
from tests.export.onnx_runs import error_of, rows
from tests.support.models.made import prepared, quantized
from tests.support.schemes import described

SCHEME = baraquant.W8A8(symmetric=False)


def network(scheme: Any = SCHEME, calibration: torch.Tensor | None = None) -> Any:
    return onnx_runs.network(scheme, calibration)


@pytest.mark.parametrize("shape", [(2, 3), (5,), (1, 2, 4)])
def test_values(shape: tuple[int, ...]) -> None:
    model, x = network(), rows(*shape)
    copied = baraquant.export.to_pt2e_ops(model)
    assert error_of(copied(x), model(x)) < 1e-6


@pytest.mark.exhaustive
def test_integers_differ_by_one_step_at_most() -> None:
    """Of a million inputs nearly all become the same integers; the others are at a border."""
    torch.manual_seed(0)
    layer = bnn.QuantizedLinear(torch.eye(512).mul(100).to(torch.int8), torch.ones(512) / 100,
                                symmetric=False)  # fmt: skip
    x = torch.randn(2048, 512)
    ours, theirs = layer(x), baraquant.export.to_pt2e_ops(layer)(x)
    scale, _ = baraquant.ops.choose_qparams_per_token(x, symmetric=False)
    steps = (theirs - ours).abs() / scale.view(-1, 1)
    assert float(steps.max()) < 1.001
    # A row whose zero point is the other neighbour differs in every value, but by no step.
    assert float((steps > 0.5).float().mean()) < 1e-3


@pytest.mark.exhaustive
def test_smoothing_subclasses_hooks_and_shared_layers() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    torch.manual_seed(0)
    shared = nn.Linear(64, 64)
    model = nn.Sequential(Doubled(64, 64), shared, nn.ReLU(), shared).eval()
    baraquant.quantize_(model, SCHEME, progress=False)
    first: Any = model[1]
    first.smooth = torch.rand(64) + 0.5
    calls: list[int] = []
    model[0].register_forward_hook(lambda module, args, output: calls.append(1))
    copied: Any = baraquant.export.to_pt2e_ops(model)
    x = rows(3)
    expected = model(x)
    assert calls == [1]
    assert error_of(copied(x), expected) < 1e-6
    assert calls == [1, 1]
    assert copied[1] is copied[3] and copied[1].qweight is first.qweight
    assert torch.equal(copied[1].weight, first.weight)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(64, 24).to(dtype))
    baraquant.quantize_(model, SCHEME, progress=False)
    x = rows(4).to(dtype)
    assert error_of(baraquant.export.to_pt2e_ops(model)(x), model(x)) < 1e-2


@pytest.mark.exhaustive
def test_export_and_the_model_itself() -> None:
    model, x = network().train(), rows(2, 3)
    copied = baraquant.export.to_pt2e_ops(model)
    assert model.training and not copied.training
    assert type(model[0]) is bnn.QuantizedLinear
    batch = torch.export.Dim("batch")
    program = torch.export.export(copied, (x,), dynamic_shapes=({0: batch},))
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in names if name.startswith("baraquant")]
    assert "quantized_decomposed.quantize_per_token.default" in names
    assert error_of(program.module()(rows(4, 3)), model(rows(4, 3))) < 1e-6


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_xnnpack_takes_the_model_whole() -> None:
    pytest.importorskip("executorch")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    model, x = network(), rows(2, 3).view(6, 64)
    program = torch.export.export(baraquant.export.to_pt2e_ops(model), (x,))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    graph = lowered.exported_program().graph
    left = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert [name for name in left if "getitem" not in name] == ["executorch_call_delegate"]
    buffer = lowered.to_executorch().buffer
    assert len(buffer) < 4 * sum(p.numel() for p in nn.Linear(64, 96).parameters())
    method = Runtime.get().load_program(buffer).load_method("forward")
    assert error_of(method.execute([x])[0], model(x)) < 1e-5


def static() -> nn.Module:
    return network(baraquant.W8A8Static(), rows(4))


def lowest() -> nn.Module:
    model = network()
    qweight: Any = model[2].qweight
    qweight[3, 4] = -128
    return model


BAD: dict[str, tuple[Any, str]] = {
    "floating": (lambda: nn.Sequential(nn.Linear(8, 8)), "without a quantized layer"),
    "prepared": (lambda: prepared(nn.Sequential(nn.Linear(8, 8)), SCHEME),
        "0: expected converted layers, but it is prepared"),
    "symmetric": (lambda: network(baraquant.W8A8()), "0: expected zero points of the input"),
    "static": (static, "0: expected a QuantizedLinear, .* but got a StaticQuantizedLinear"),
    "weights": (lambda: network(baraquant.W8A16()), "but got a WeightOnlyLinear; keep it floating"),
    "groups": (lambda: network(baraquant.W4A8(32, group_factors=False)),
        "0: expected a QuantizedLinear"),
    "embedding": (lambda: quantized(nn.Sequential(nn.Embedding(8, 4)), baraquant.W8A16()),
        "0: expected a QuantizedLinear, .* got a QuantizedEmbedding"),
    "convolution": (lambda: quantized(nn.Sequential(nn.Conv2d(3, 4, 3)), SCHEME),
        "0: expected a QuantizedLinear, .* got a QuantizedConv2d"),
    "per tensor": (lambda: network(described("int8, int8 per_tensor asymmetric")),
        "0: expected a scale of the input for each token, but got per_tensor"),
    "6 bits": (lambda: network(described("int8, int6 per_token asymmetric")),
        "0: expected 8-bit inputs, but got 6 bits"),
    "group inputs": (lambda: network(described("int4 per_group(32), int8 per_token asymmetric")),
        "0: expected a QuantizedLinear"),
    "-128": (lowest, r"2: expected weights in \[-127, 127\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_what_it_refuses(case: str) -> None:
    make, match = BAD[case]
    with pytest.raises(ValueError, match=f"to_pt2e_ops: .*{match}"):
        baraquant.export.to_pt2e_ops(make())


def test_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="expected model to be a Module, but got dict"):
        baraquant.export.to_pt2e_ops({})  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch.ao.quantization.fx._decomposed", None)
    with pytest.raises(ImportError, match="expected a torch with quantized_decomposed ops"):
        baraquant.export.to_pt2e_ops(network())
