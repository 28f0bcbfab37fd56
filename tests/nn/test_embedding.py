# SPDX-License-Identifier: BSD-3-Clause
"""Embeddings, convolutions and attention, in training and of integers: values, and as modules."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from baraquant import W8A8, QuantConfig, TensorConfig, ops
from baraquant import nn as bnn
from baraquant.qat import convert_, prepare_
from tests.support import cases
from tests.support.models import training_models
from tests.support.models.training_models import data

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
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


by_table = pytest.mark.parametrize("zero", [False, True], ids=["symmetric", "asymmetric"])
by_groups = pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])


@by_table
@by_groups
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
    assert module(INDICES[:0].to(device)).shape == (0, 3, D)
    assert torch.equal(module(INDICES[0, 0].to(device)), whole[1])


@by_table
@by_groups
def test_table_as_a_module(zero: bool, groups: bool) -> None:
    module = table(zero, groups)
    rows = module(INDICES)
    other = table(zero, groups)
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(module.state_dict())
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    exported = torch.export.export(module, (INDICES,)).module()
    for one in (other, copy.deepcopy(module), torch.jit.load(file), exported):
        assert torch.equal(one(INDICES), rows)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float32):
        module.to(dtype)
        assert module(INDICES).dtype == module.dtype == dtype
    assert module.weight_scale.dtype == torch.float32 and module.qweight.dtype == torch.int8
    assert torch.equal(module(INDICES), rows)


def test_what_a_table_refuses() -> None:
    with pytest.raises(TypeError, match="QuantizedEmbedding: expected dtype to be floating"):
        table(dtype=torch.int8)
    with pytest.raises(ValueError, match=r"QuantizedEmbedding: expected weight_scale to have the"):
        bnn.QuantizedEmbedding(torch.zeros(3, 8, dtype=torch.int8), torch.ones(3), group_size=4)
    with pytest.raises(IndexError):
        table()(torch.tensor([V]))
    assert repr(table(True, True)) == (
        "QuantizedEmbedding(9, 8, weight=int8 per_group(4) asymmetric, dtype=torch.float32)"
    )


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
    model = nn.Sequential(module)
    y = model.eval()(INDICES)
    convert_(model)
    assert torch.equal(model(INDICES), y)


CONVS: list[dict[str, Any]] = [
    {},
    {"padding": 1, "stride": 2},
    {"padding": "same", "dilation": 2, "padding_mode": "replicate"},
    {"groups": 2, "bias": False},
]


@pytest.mark.parametrize("options", CONVS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2])
def test_convolutions(dimensions: int, options: dict[str, Any], device: str) -> None:
    torch.manual_seed(0)
    plain_kind = nn.Conv1d if dimensions == 1 else nn.Conv2d
    kind = bnn.FakeQuantizedConv1d if dimensions == 1 else bnn.FakeQuantizedConv2d
    x = data(2, 4, *[9] * dimensions).to(device)
    for weight, activation in itertools.product(
        (TensorConfig(8), TensorConfig(4, "per_tensor", symmetric=False)),
        (None, TensorConfig(8, "per_tensor"), TensorConfig(8, "per_token")),
    ):
        plain = plain_kind(4, 6, 3, **options).to(device)
        module = kind.from_float(plain, QuantConfig(weight, activation))
        fixed = copy.deepcopy(plain)
        with torch.no_grad():
            if weight.bits == 8:
                fixed.weight.copy_(ops.dynamic_fake_quantize_per_channel(plain.weight, 0))
            else:
                args = (plain.weight, -8, 7)
                fixed.weight.copy_(ops.dynamic_fake_quantize_per_tensor(*args, symmetric=False))
        per_tensor = activation is not None and activation.granularity == "per_tensor"
        rounded = ops.dynamic_fake_quantize_per_tensor(x) if per_tensor else x
        y = module(x)
        torch.testing.assert_close(y, fixed(rounded))
        y.sum().backward()
        assert plain.weight.grad is not None, "shared"
        model = nn.Sequential(module).eval()
        y = model(x)
        convert_(model)
        assert torch.equal(model(x), y)
        assert torch.equal(torch.jit.script(model)(x), y)
        assert torch.equal(copy.deepcopy(model)(x), y)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), y)
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert model[0].qweight.dtype == torch.int8
        assert model[0].stride == plain.stride and model[0].padding == plain.padding


def test_what_convolutions_refuse() -> None:
    config = QuantConfig(TensorConfig(4, "per_group", group_size=4))
    with pytest.raises(ValueError, match=r"expected group_size to divide .* \(6\), but got 4"):
        bnn.FakeQuantizedConv1d(6, 4, 3, config=config)
    with pytest.raises(ValueError, match=r"expected group_size to divide .* \(2\), but got 4"):
        bnn.FakeQuantizedConv1d(4, 4, 3, groups=2, config=config)
    assert bnn.FakeQuantizedConv1d(8, 4, 3, config=config).quantized_weight()[1].shape == (4, 2)
    with pytest.raises(ValueError, match="QuantizedConv2d: expected qweight to have 4 dimensions"):
        bnn.QuantizedConv2d(torch.zeros(4, 4, 3, dtype=torch.int8), torch.ones(4))
    with pytest.raises(ValueError, match="QuantizedConv1d: expected weight_scale to have 4"):
        bnn.QuantizedConv1d(torch.zeros(4, 4, 3, dtype=torch.int8), torch.ones(3))


def masks(batch: int, length: int) -> list[dict[str, Any]]:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[:, -1] = True
    causal = nn.Transformer.generate_square_subsequent_mask(length)
    return [
        {},
        {"need_weights": False},
        {"key_padding_mask": padding, "average_attn_weights": False},
        {"attn_mask": causal.isinf(), "need_weights": False},
        {"attn_mask": torch.rand(batch * 2, length, length)},
        {"attn_mask": causal, "is_causal": True, "need_weights": False},
        {"attn_mask": causal, "is_causal": True, "key_padding_mask": padding},
    ]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 4}, {"bias": False}], ids=str)
def test_attention_is_pytorchs(batch_first: bool, sizes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first, **sizes)
    module = bnn.MultiheadAttention.from_float(plain)
    assert module.out_proj.weight is plain.out_proj.weight
    query, key, value = (data(3, 4, sizes.get(name, 8)) for name in ("qdim", "kdim", "vdim"))
    scripted = torch.jit.script(module)
    for options, mode in itertools.product(
        masks(*(3, 4) if batch_first else (4, 3)), (True, False)
    ):
        wanted, weights = plain.train(mode)(query, key, value, **options)
        for one in (module.train(mode), scripted):
            got, ours = one(query, key, value, **options)
            torch.testing.assert_close(got, wanted)
            assert (ours is None) == (weights is None)
            if weights is not None:
                torch.testing.assert_close(ours, weights)
    got, ours = module(query[0], key[0], value[0])
    wanted, weights = plain(query[0], key[0], value[0])
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(ours, weights)


def test_attention_drops_in_training_alone() -> None:
    module = bnn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = data(2, 5, 8)
    for need_weights in (True, False):
        first, second = (module.train()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert not torch.equal(first, second)
        first, second = (module.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert torch.equal(first, second)


def test_what_attention_refuses() -> None:
    with pytest.raises(ValueError, match=r"num_heads to divide embed_dim \(8\), but got 3"):
        bnn.MultiheadAttention(8, 3)
    module, x = bnn.MultiheadAttention(8, 2), data(2, 5, 8)
    with pytest.raises(RuntimeError, match="expected an attn_mask beside is_causal"):
        module(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match="no quantized form of add_bias_kv"):
        bnn.MultiheadAttention.from_float(nn.MultiheadAttention(8, 2, add_zero_attn=True))


def test_every_projection_of_attention_is_quantized() -> None:
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2)})
    prepare_(model, W8A8())
    x: Tensor = data(5, 2, 8)
    model.eval()
    y = model["attention"](x, x, x)[0]
    report = convert_(model)
    names = [f"attention.{name}_proj" for name in ("q", "k", "v", "out")]
    assert list(report.changed) == names
    assert torch.equal(model["attention"](x, x, x)[0], y)
