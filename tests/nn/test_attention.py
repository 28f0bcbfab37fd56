# SPDX-License-Identifier: BSD-3-Clause
"""`baraquant.nn.MultiheadAttention`: PyTorch's results, out of four linear layers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from baraquant import nn as bnn
from tests.support.models.training_models import data

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


def masks(batch: int, length: int) -> list[dict[str, Any]]:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[:, -1] = True
    causal = nn.Transformer.generate_square_subsequent_mask(length)
    return [
        {}, {"need_weights": False}, {"key_padding_mask": padding, "average_attn_weights": False},
        {"attn_mask": causal.isinf(), "need_weights": False}, {"attn_mask": torch.rand(batch * 2,
        length, length)}, {"attn_mask": causal, "is_causal": True, "need_weights": False},
        {"attn_mask": causal, "is_causal": True, "key_padding_mask": padding},
    ]  # fmt: skip


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
    module, x = bnn.MultiheadAttention(8, 2), data(2, 5, 8)
    with pytest.raises(RuntimeError, match="expected an attn_mask beside is_causal"):
        module(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match="no quantized form of add_bias_kv"):
        bnn.MultiheadAttention.from_float(nn.MultiheadAttention(8, 2, add_zero_attn=True))
