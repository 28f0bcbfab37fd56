# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings, in training and of integers: values, and as modules."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from baraquant import QuantConfig, TensorConfig, ops
from baraquant import nn as bnn
from tests.support import cases
from tests.support.models import training_models
from tests.support.models.training_models import data

V, D = 9, 8
INDICES = torch.tensor([[1, 3, 3], [0, 8, 2]])


def table(zero: bool = False, groups: bool = False, **changes: Any) -> bnn.QuantizedEmbedding:
    shape = (V, 2) if groups else (V,)
    weight = torch.randint(-8, 8, (V, D), generator=cases.generator(0)).to(torch.int8)
    scale = torch.rand(shape, generator=cases.generator(1)) + 0.1
    return bnn.QuantizedEmbedding(
        weight,
        scale,
        weight_zero_point=torch.arange(scale.numel()).reshape(shape) % 5 - 2 if zero else None,
        group_size=4 if groups else None,
        **changes,
    )


@pytest.mark.parametrize("zero", [False, True], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_rows(zero: bool, groups: bool, dtype: torch.dtype, device: str) -> None:
    module = table(zero, groups, dtype=dtype).to(device)
    rows = module(INDICES.to(device))
    assert rows.shape == (2, 3, D) and rows.dtype == dtype
    zero_point = module.weight_zero_point
    args = module.qweight, module.weight_scale, zero_point
    if groups:
        whole = ops.dequantize_per_group(*args, 4, 1, dtype=dtype)
    else:
        whole = ops.dequantize_per_channel(*args, 0, dtype=dtype)
    assert torch.equal(rows, whole[INDICES.to(device)])
    assert torch.equal(module.weight + 0, whole)
    assert module(INDICES[:0].to(device)).shape == (0, 3, D)
    assert torch.equal(module(INDICES[0, 0].to(device)), whole[1])
    if device == "cpu":
        with pytest.raises(IndexError):
            module(torch.tensor([V]))


@pytest.mark.parametrize("weight", training_models.weight_configs((4,)), ids=str)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_embedding_in_training(weight: TensorConfig, sparse: bool) -> None:
    """Values and gradients are those of a whole table that is fake-quantized."""
    torch.manual_seed(0)
    plain = nn.Embedding(V, D, padding_idx=3, sparse=sparse)
    module = bnn.FakeQuantizedEmbedding.from_float(plain, QuantConfig(weight))
    assert module.weight is plain.weight
    if sparse and not module.rounds_rows:
        pytest.skip("a table that is rounded as a whole has a dense gradient")
    grad = data(2, 3, D)
    module(INDICES).backward(grad)
    got = module.weight.grad.to_dense()
    whole = copy.deepcopy(module.fake_quantized_weight().detach()).requires_grad_()
    assert torch.equal(module(INDICES), F.embedding(INDICES, whole, 3))
    F.embedding(INDICES, whole, 3).backward(grad)
    if weight.symmetric and weight.dynamic:
        torch.testing.assert_close(got, whole.grad)
    assert not got[[3, 4, 5, 6, 7]].any() and got[[0, 1, 2, 8]].any(1).all()
