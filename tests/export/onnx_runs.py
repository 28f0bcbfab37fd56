# SPDX-License-Identifier: BSD-3-Clause
"""Exports models, and runs the files in onnxruntime."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import baraquant


def network(config: Any, calibration: torch.Tensor | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24, bias=False)).eval()
    given = None if calibration is None else [calibration]
    baraquant.quantize_(model, config, calibration=given, progress=False)
    return model


class Beside(nn.Module):
    """Networks in one file, since each export takes seconds; each has an input of its own."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.stack([n(x) for n, x in zip(self.networks, inputs, strict=True)])


def rows(*shape: int) -> torch.Tensor:
    """Rows of zeros, with outliers, of very small numbers, and without negative ones."""
    torch.manual_seed(1)
    x = torch.randn(*shape, 64)
    x.view(-1, 64)[0] = 0.0
    x.view(-1, 64)[1, 3] = 50.0
    x.view(-1, 64)[2] *= 1e-20
    x.view(-1, 64)[3:4].abs_()
    return x


def exported(model: nn.Module, x: Any, folder: Path, **options: Any) -> Path:
    """The path of a file that was exported and that ONNX's own checker accepts."""
    import onnx

    path = folder / "model.onnx"
    baraquant.export.to_onnx(model, x, path, **options)
    onnx.checker.check_model(path)
    return path


def run(
    path: Path, *inputs: Tensor, optimize: bool = True, save: Any = None, default: bool = False
) -> Tensor:
    """The first output, where inputs of int4 layers stay floating, or in a default session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not default:
        options.log_severity_level = 3
        options.intra_op_num_threads = 2
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if save is not None:
        options.optimized_model_filepath = str(save)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    fed = dict(zip(names, (one.numpy() for one in inputs), strict=True))
    return torch.from_numpy(session.run(None, fed)[0])


def nodes(path: Path) -> Counter[str]:
    import onnx

    return Counter(node.op_type for node in onnx.load(path).graph.node)


def constants(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtypes and shapes of the constants of a file that are no scalars."""
    import onnx

    return {
        one.name: (onnx.TensorProto.DataType.Name(one.data_type), tuple(one.dims))
        for one in onnx.load(path, load_external_data=False).graph.initializer
        if one.dims
    }


def error_of(theirs: Tensor, ours: Tensor) -> float:
    assert theirs.shape == ours.shape and theirs.dtype == ours.dtype
    assert bool(torch.isfinite(ours).all()) and float(ours.norm()) > 0
    return float((theirs.double() - ours.double()).norm() / ours.double().norm())


def assert_close(path: Path, model: Beside, x: Tensor, error: float = 1e-6, **options: Any) -> None:
    """Each network of a file has the same output for the same input."""
    inputs = [x] * len(model.networks)
    outputs = zip(run(path, *inputs, **options), model(*inputs).detach(), strict=True)
    for name, (theirs, ours) in enumerate(outputs):
        assert error_of(theirs, ours) < error, name


@contextmanager
def no_file_is_left(folder: Path) -> Iterator[None]:
    before = sorted(folder.iterdir())
    yield
    assert sorted(folder.iterdir()) == before
