# SPDX-License-Identifier: BSD-3-Clause
"""Products of bytes on a CPU with AVX2 and without VNNI: right, or said.

Such a CPU multiplies a uint8 with an int8 by vpmaddubsw, which adds two neighbouring products and
saturates the sum to 16 bits. What onnxruntime would compute there is computed here, from the
integers of the file.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import baraquant
from baraquant import QuantConfig, TensorConfig
from tests.export.onnx_runs import error_of, exported, run
from tests.support.optional_packages import package

package("onnx")
package("onnxscript")
package("onnxruntime")

KEY = "baraquant.saturates_without_vnni"
CONFIGS: dict[str, tuple[Any, bool]] = {  # and whether a sum can saturate
    "W8A8": (baraquant.W8A8(), True),
    "W8A8 asymmetric": (baraquant.W8A8(symmetric=False), True),
    "W8A8 static": (baraquant.W8A8Static(), True),
    "W7A8": (QuantConfig(TensorConfig(7), TensorConfig(8, "per_token")), False),
    "W4A8": (baraquant.W4A8(None), False),
    "W8A16": (baraquant.W8A16(), False),
}


def network(config: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(63, 96), nn.ReLU(), nn.Linear(96, 24)).eval()
    x = torch.randn(16, 63) + 1
    given = [x] if config == baraquant.W8A8Static() else None
    baraquant.quantize_(model, config, calibration=given, progress=False)
    return model, x


def metadata(path: Path) -> dict[str, str]:
    import onnx

    return {one.key: one.value for one in onnx.load(path).metadata_props}


def saturates(path: Path) -> bool:
    """Whether a product of the file loses something, for the worst of all inputs."""
    import onnx

    graph = onnx.load(path).graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    lost = False
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        weight = constants[node.input[1]]  # [K, N]
        if weight.dtype == np.uint8:
            continue  # multiplied as numbers of 16 bits, whose sums of 32 bits are exact
        padded = np.pad(weight.astype(np.int32), ((0, len(weight) % 2), (0, 0)))
        for input in (np.maximum(padded, 0) > 0, padded < 0):
            products = padded * np.where(input, 255, 0)
            pairs = products[0::2] + products[1::2]
            lost |= bool((np.clip(pairs, -(2**15), 2**15 - 1) != pairs).any())
    return lost


@pytest.mark.parametrize("unsigned_weights", [False, True])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_file_is_safe_or_says_so(name: str, unsigned_weights: bool, tmp_path: Path) -> None:
    config, can_saturate = CONFIGS[name]
    model, x = network(config)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = exported(model, (x,), tmp_path, unsigned_weights=unsigned_weights)
    said = [str(one.message) for one in caught if "session.x64quantprecision=1" in str(one.message)]
    expected = can_saturate and not unsigned_weights
    assert saturates(path) == expected
    assert (KEY in metadata(path)) == bool(said) == expected
    if expected:
        assert metadata(path)[KEY].split() == ["0", "2"]
        assert "the weights of 0 and 1 others exceed 64" in said[0]
    assert error_of(run(path, x), model(x)) < 1e-6


@pytest.mark.exhaustive
def test_static_products_of_the_other_style_and_convolutions_are_said(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(288, 4))
    x = torch.randn(2, 3, 8, 8)
    config = baraquant.W8A8Static(conv_inputs=True)
    baraquant.quantize_(model.eval(), config, calibration=[x], progress=False)
    with pytest.warns(UserWarning, match="session option session.x64quantprecision=1"):
        path = exported(model, (x,), tmp_path, style="qdq")
    assert metadata(path)[KEY].split() == ["0", "1", "3"]


def test_errors(tmp_path: Path) -> None:
    model, x = network(baraquant.W8A8())
    with pytest.raises(TypeError, match="expected unsigned_weights to be a bool, but got int"):
        exported(model, (x,), tmp_path, unsigned_weights=1)
    with pytest.raises(ValueError, match="expected style='integer' with unsigned_weights"):
        exported(model, (x,), tmp_path, style="qdq", unsigned_weights=True)
