# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are integers times scales: ``quantize_`` finds scales that give their bits."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import baraquant
from baraquant import QuantConfig, TensorConfig
from tests.support import lattices
from tests.support.models.one_layer import Holder

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SIZES = (32, 64, 128, None)  # of groups; None: a scale for each channel


def scheme(bits: int, size: int | None, symmetric: bool = True, **how: str) -> QuantConfig:
    granularity = "per_channel" if size is None else "per_group"
    return QuantConfig(TensorConfig(bits, granularity, symmetric, group_size=size), **how)


def lattice(
    bits: int, size: int | None, symmetric: bool, scale_dtype: torch.dtype, dtype: torch.dtype
) -> Tensor:
    return lattices.lattice((24, 256), bits, scale_dtype, dtype, size, symmetric)


def quantized(weight: Tensor, config: QuantConfig) -> tuple[nn.Module, str]:
    model = Holder(nn.Linear(256, 24, bias=False, dtype=weight.dtype))
    model.child.weight.data.copy_(weight)
    report = baraquant.quantize_(model, config)
    return model.child, report.changed["child"]


def every_lattice() -> Iterator[tuple[int, int | None, bool, torch.dtype, torch.dtype]]:
    wide = (torch.bfloat16, torch.float16)
    yield from itertools.product(range(2, 9), SIZES, (True, False), wide, DTYPES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_comes_back(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for bits, size, symmetric, scale_dtype, of in every_lattice():
        if of != dtype or (bits == 8 and not symmetric and of == torch.bfloat16):
            continue  # the last has more integers than the dtype has numbers
        weight = lattice(bits, size, symmetric, scale_dtype, dtype)
        name = str(scale_dtype).removeprefix("torch.")
        for given in ("float32", name):
            layer, about = quantized(weight, scheme(bits, size, symmetric, scale_dtype=given))
            assert torch.equal(layer.weight, weight), (bits, size, symmetric, name)
            assert "100 % of its scales" in about
            assert torch.equal(layer.weight_scale.to(scale_dtype).float(), layer.weight_scale)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantizing_again_changes_nothing(bits: int, dtype: torch.dtype) -> None:
    """Scales of float32 too: of a weight that this package rounded itself."""
    torch.manual_seed(bits)
    for size, rule in itertools.product((32, None), ("search", "max")):
        weight = torch.randn(24, 256).to(dtype)
        once = quantized(weight, scheme(bits, size, scale_rule=rule))[0].weight
        layer, about = quantized(once, scheme(bits, size))
        assert torch.equal(layer.weight, once) and "100 %" in about


ASYMMETRIC = TensorConfig(8, "per_channel", symmetric=False)
SCHEMES = {
    "W4A16(32)": baraquant.W4A16(32), "W4A16(128)": baraquant.W4A16(128),
    "W4A16 asymmetric": baraquant.W4A16(32, symmetric=False), "W8A16": baraquant.W8A16(),
    "int8 asymmetric": QuantConfig(ASYMMETRIC), "W8A8": baraquant.W8A8(),
    "W4A8(None)": baraquant.W4A8(None), "W4A8(32)": baraquant.W4A8(32),
    "W4A8(128)": baraquant.W4A8(128),
    "W4A8 asymmetric": baraquant.W4A8(32, symmetric=False),
    "W4A8 learned": baraquant.W4A8(32, learned=True),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_layer_of_every_scheme_is_found_again(name: str, dtype: torch.dtype) -> None:
    """The dequantized weight has its bits again, and without zero points its integers."""
    torch.manual_seed(0)
    for rule in ("search", "max"):
        config = replace(SCHEMES[name], scale_rule=rule)
        once = quantized(torch.randn(24, 256).to(dtype), config)[0]
        again, about = quantized(once.weight, SCHEMES[name])
        assert torch.equal(again.weight, once.weight)
        if name != "int8 asymmetric" or dtype != torch.bfloat16:
            assert "100 % of its scales" in about
        if "asymmetric" not in name:
            kept = "qweight" if hasattr(once, "qweight") else "packed"
            assert torch.equal(getattr(again, kept), getattr(once, kept))


def test_factors_of_a_lattice_of_eight_bits_that_has_none() -> None:
    """A row of which a group has no factor is searched, as without the others."""
    torch.manual_seed(5)
    weight = quantized(torch.randn(24, 256), baraquant.W4A8(32))[0].weight.clone()
    unit = weight[3].abs().max() / 112
    weight[3] = torch.arange(-128, 128) / 2 * unit
    layer, about = quantized(weight, baraquant.W4A8(32))
    assert "; 95.8 % of its scales" in about
    alone, nothing = quantized(torch.randn(24, 256).index_copy(
        0, torch.tensor([3]), weight[3:4]), baraquant.W4A8(32))  # fmt: skip
    assert "scales" not in nothing
    assert torch.equal(layer.weight[3], alone.weight[3])
    kept = torch.arange(24) != 3
    assert torch.equal(layer.weight[kept], weight[kept])


def test_integers_are_the_smallest_and_zeros_have_no_sign() -> None:
    rows = torch.tensor([[-0.0, 0.5, -1.0, 1.5] * 64, [6.0, -2.0, -0.0, 4.0] * 64]).repeat(12, 1)
    layer, _ = quantized(rows, scheme(8, None))
    assert layer.weight_scale[:2].tolist() == [0.5, 2.0]
    assert layer.qweight[0, :4].tolist() == [0, 1, -2, 3]
    assert layer.qweight[1, :4].tolist() == [3, -1, 0, 2]


def test_a_checkpoint_that_was_read_as_float32() -> None:
    """The integers and scales are those of its own dtype."""
    torch.manual_seed(1)
    weight = lattice(4, 32, True, torch.bfloat16, torch.bfloat16)
    ours, about = quantized(weight, scheme(4, 32))
    read, same = quantized(weight.float(), scheme(4, 32))
    assert torch.equal(read.packed, ours.packed) and about == same
    assert torch.equal(read.weight_scale, ours.weight_scale)


def test_other_groups_are_searched() -> None:
    """Those that are on no lattice get the bits that they had without the others."""
    torch.manual_seed(2)
    weight = lattice(4, 32, True, torch.bfloat16, torch.float32)
    weight[::8] = torch.randn(3, 256)
    layer, about = quantized(weight, scheme(4, 32))
    alone, nothing = quantized(torch.randn(24, 256).index_copy(
        0, torch.arange(3), weight[::8]), scheme(4, 32))  # fmt: skip
    assert "; 87.5 % of its scales" in about and "scales" not in nothing
    assert torch.equal(layer.weight_scale[::8], alone.weight_scale[:3])
    assert torch.equal(layer.packed[::8], alone.packed[:3])


def test_few_groups_are_found_if_every_one_is_tried() -> None:
    torch.manual_seed(3)
    weight = torch.randn(24, 256)
    weight[5] = lattice(4, 32, True, torch.float16, torch.float32)[0]
    assert "scales" not in quantized(weight, scheme(4, 32))[1]
    layer, about = quantized(weight, scheme(4, 32, scale_rule="lattice"))
    assert "; 4.1 % of its scales" in about
    assert torch.equal(layer.weight[5], weight[5])
    assert "scales" not in quantized(weight, scheme(4, 32, scale_rule="max"))[1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_chance_explains_is_left_alone(dtype: torch.dtype) -> None:
    """Of two values a group is often on a lattice of eight bits, and no weight comes of that."""
    torch.manual_seed(4)
    weight = torch.randn(24, 256).to(dtype)
    for size, bits in ((2, 8), (8, 4), (32, 8), (None, 8)):
        if size == 2 and dtype == torch.float32:
            continue
        assert "scales" not in quantized(weight, scheme(bits, size))[1], (size, bits)


def test_a_scale_that_the_dtype_lacks_is_not_exact() -> None:
    weight = lattice(4, 32, True, torch.float16, torch.float32)
    about = quantized(weight, scheme(4, 32, scale_dtype="bfloat16"))[1]
    assert "100 %" not in about
