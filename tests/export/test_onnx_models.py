# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files of whole models of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import baraquant
from tests.export.onnx_runs import error_of, nodes, run
from tests.support.optional_packages import package
from tests.support.tiny_transformers.build import build

package("onnx")
package("onnxscript")
package("onnxruntime")
package("transformers")
pytestmark = pytest.mark.exhaustive


class First(nn.Module):
    """The first output of a model of transformers, from token ids alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if hasattr(self.model, "lm_head") else {}
        result: torch.Tensor = self.model(input_ids=input_ids, return_dict=False, **options)[0]
        return result


SCHEMES = {
    "static": baraquant.W8A8Static(symmetric=False),
    "W4A16": baraquant.W4A16(32),
    "W8A16": baraquant.W8A16(),
}


@pytest.mark.parametrize("scheme", list(SCHEMES))
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_transformers(name: str, scheme: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(64, (3, 12))
    model = First(build(name))
    given = [tokens] if scheme == "static" else None
    baraquant.quantize_(model, SCHEMES[scheme], calibration=given, progress=False)
    path = tmp_path / "model.onnx"
    shapes = ({0: torch.export.Dim("batch", min=2)},)
    baraquant.export.to_onnx(model, tokens[:2], path, dynamic_shapes=shapes)
    kinds = nodes(path)
    weights_alone = kinds["DequantizeLinear"] + kinds["MatMulNBits"]
    assert (kinds["MatMulInteger"] if scheme == "static" else weights_alone) >= 12
    with torch.no_grad():
        ours = model(tokens)
    # Static scales turn another order of a floating sum into another integer here and there.
    assert error_of(run(path, tokens), ours) < (1e-2 if scheme == "static" else 1e-5)
