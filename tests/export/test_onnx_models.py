# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files of whole models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import baraquant
from tests.export.onnx_runs import error_of, nodes, run
from tests.export.tiny_decoders import tiny
from tests.support.optional_packages import package

package("onnx")
package("onnxscript")
package("onnxruntime")
package("transformers")
pytestmark = pytest.mark.exhaustive


def encoder() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        vocab_size=96,
        max_position_embeddings=64,
    )
    return BertModel(config, add_pooling_layer=False).eval()


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
@pytest.mark.parametrize("make", [encoder, lambda: tiny("llama")], ids=["BERT", "Llama"])
def test_transformers(make: Any, scheme: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(96, (3, 12))
    model = First(make())
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
