# SPDX-License-Identifier: BSD-3-Clause
"""What quantizers and layers refuse: a case for each rule, its text, and the class that says it.

But for what C++ refuses by the same text: `tests/cpp_api/modules.cpp` has those calls.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from baraquant import W4A8, PerGroup, TensorConfig
from baraquant import nn as bnn
from tests.support.schemes import described

INF, NAN = float("inf"), float("nan")
V, T = ValueError, TypeError
Case = tuple[str, type[Exception], str, dict[str, Any]]
ones = torch.ones
int8, uint8 = (partial(ones, dtype=dtype) for dtype in (torch.int8, torch.uint8))
FACTORS = {
    "packed": torch.full((24, 48), 0x88, dtype=torch.uint8), "group_factor": uint8(24, 3),
    "weight_scale": ones(24), "group_size": 32, "in_features": 96,
}  # fmt: skip
CHANNEL = {"granularity": "per_channel", "axis": 0}
# Arguments that each class takes; a case changes some.
VALID: dict[str, dict[str, Any]] = {
    "FakeQuantize": {"scale": 0.1},
    "LearnedFakeQuantize": {},
    "FakeQuantizeInt4": {
        "group_size": 2, "scale": ones(4), "group_factor": uint8(4, 2),
        "group_zero_point": uint8(4, 2),
    },
    "LearnedFakeQuantizeInt4": {"group_size": 2, "shape": (4, 2)},
    "QuantizedLinear": {"qweight": int8(5, 12), "weight_scale": ones(5)},
    "StaticQuantizedLinear": {
        "qweight": int8(5, 12), "weight_scale": ones(5), "act_scale": torch.tensor(1.0)
    },
    "WeightOnlyLinear": {"qweight": int8(5, 12), "weight_scale": ones(5)},
    "QuantizedInt4Linear": FACTORS,
    "StaticQuantizedInt4Linear": {**FACTORS, "act_scale": torch.tensor(1.0)},
    "WeightOnlyInt4Linear": {
        "packed": FACTORS["packed"][:12, :24], "weight_scale": ones(12, 3), "group_size": 16,
        "in_features": 48,
    },
    "QuantizedEmbedding": {"qweight": int8(3, 8), "weight_scale": ones(3)},
    **{
        f"Quantized{kind}{n}d": {"qweight": int8(4, 2, *[3] * n), "weight_scale": ones(4)}
        for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)
    },
    "RMSNorm": {"normalized_shape": 4},
    "LayerNorm": {"normalized_shape": 4},
    "GELU": {},
    "MultiheadAttention": {"embed_dim": 8, "num_heads": 2},
    **{
        name: {"input_size": 2, "hidden_size": 3}
        for name in ("LSTM", "GRU", "RNN", "LSTMCell", "RNNCell")
    },
}  # fmt: skip
DYNAMIC, OBSERVED = ({"scale": None, "mode": mode} for mode in ("dynamic", "observed"))

QUANTIZERS: list[Case] = [
    ("FakeQuantize", V, "symmetric=False with mode", {"symmetric": False}),
    ("FakeQuantize", V, "no axis for per_tensor", {"axis": 0}),
    ("FakeQuantize", V, "no axis for per_token", {"granularity": "per_token", "axis": 0}),
    ("FakeQuantize", V, "group_size > 0 for per_group, but got None", {"granularity": "per_group"}),
    ("FakeQuantize", V, "but got 0", {"granularity": "per_group", "group_size": 0}),
    ("FakeQuantize", V, "no group_size for per_tensor", {"group_size": 4}),
    ("FakeQuantize", V, "quant_min < quant_max, but got 7 and 7", {"quant_min": 7, "quant_max": 7}),
    ("FakeQuantize", V, "quant_max - quant_min >= 2 .* but got -1 and 0",
     {**DYNAMIC, "quant_min": -1, "quant_max": 0}),
    ("FakeQuantize", V, "quant_max - quant_min >= 2 .* but got 0 and 1",
     {**OBSERVED, "quant_min": 0, "quant_max": 1}),
    ("FakeQuantize", V, "scale to be a tensor for per_channel", CHANNEL),
    ("FakeQuantize", V, "finite and > 0, but got 0", {"scale": 0}),
    ("FakeQuantize", V, "finite and > 0, but got nan", {"scale": NAN}),
    ("FakeQuantize", V, "finite and > 0, but got inf", {"scale": INF}),
    ("FakeQuantize", V, r"\[\] or \[1\] for per_tensor, but got \[4\]", {"scale": ones(4)}),
    ("FakeQuantize", V, r"one dimension .*\[4, 1\]", {**CHANNEL, "scale": ones(4, 1)}),
    ("FakeQuantize", V, r"lie in \[-128, 127\], but got 128", {"zero_point": 128}),
    ("FakeQuantize", V, r"shape of scale \(\[4\]\), but got \[3\]",
     {**CHANNEL, "scale": ones(4), "zero_point": int8(3)}),
    ("FakeQuantize", T, "integer, but got torch.float32", {"zero_point": ones(1)}),
    ("FakeQuantize", T, "integer, but got torch.bool", {"zero_point": ones(1).bool()}),
    ("FakeQuantize", V, "channels > 0 .* but got None", {**OBSERVED, **CHANNEL}),
    ("FakeQuantize", V, "channels > 0 .* but got 0", {**OBSERVED, **CHANNEL, "channels": 0}),
    ("FakeQuantize", V, "no channels for per_tensor, but got 4", {**OBSERVED, "channels": 4}),
    ("FakeQuantize", V, r"to lie in \(0, 1\], but got 0", {**OBSERVED, "averaging_constant": 0}),
    ("FakeQuantize", V, "averaging.* but got nan", {**OBSERVED, "averaging_constant": NAN}),
    ("LearnedFakeQuantize", V, "granularity to be per_tensor, .* or per_group",
     {"granularity": "per_token"}),
    ("LearnedFakeQuantize", V, "granularity to be one of", {"granularity": "per_row"}),
    ("LearnedFakeQuantize", V, "an axis for per_channel", {"granularity": "per_channel"}),
    ("LearnedFakeQuantize", V, "scale_rule to be one of search, .* 'mean'", {"scale_rule": "mean"}),
    ("LearnedFakeQuantize", V, "shape to have one dimension", {**CHANNEL, "shape": (2, 2)}),
    ("LearnedFakeQuantize", V, r"shape to have \[1\] .*, but got \[3\]", {"shape": (3,)}),
    ("LearnedFakeQuantize", V, "quant_min < quant_max", {"quant_min": 7, "quant_max": -8}),
    ("FakeQuantizeInt4", V, "an even group_size > 0, but got 3", {"group_size": 3}),
    ("FakeQuantizeInt4", V, "scale, group_factor and group_zero_point together", {"scale": None}),
    ("FakeQuantizeInt4", T, "scale to be float32 or float64", {"scale": ones(4).half()}),
    ("FakeQuantizeInt4", T, "group_factor to be uint8", {"group_factor": ones(4, 2)}),
    ("FakeQuantizeInt4", T, "group_zero_point to be uint8", {"group_zero_point": ones(4, 2)}),
    ("FakeQuantizeInt4", V, "the shape .rows, groups. and scale .rows.", {"scale": ones(3)}),
    *((kind, V, r"bits to be an int in \[2, 4\], but got", {"bits": bits})
      for kind in ("FakeQuantizeInt4", "LearnedFakeQuantizeInt4") for bits in (1, 5, 4.0)),
    ("LearnedFakeQuantizeInt4", V, "an even group_size > 0, but got 0", {"group_size": 0}),
    ("LearnedFakeQuantizeInt4", V, "an even group_size > 0, but got 2.0", {"group_size": 2.0}),
    ("LearnedFakeQuantizeInt4", V, r"\[rows, groups\], but got \[4, -1\]", {"shape": (4, -1)}),
    ("LearnedFakeQuantizeInt4", V, r"\[rows, groups\], but got \[4, 2.0\]", {"shape": (4, 2.0)}),
]  # fmt: skip

LAYERS: list[Case] = [
    ("QuantizedLinear", V, "weight to have 2 dimensions", {"qweight": int8(5)}),
    ("QuantizedLinear", T, "weight_scale .*float16", {"weight_scale": ones(5).half()}),
    ("QuantizedLinear", V, "bias to have 5", {"bias": ones(4)}),
    ("QuantizedLinear", T, "bias to be floating", {"bias": int8(5)}),
    ("QuantizedLinear", V, "weight_bits to be an int", {"weight_bits": 1}),
    ("QuantizedLinear", V, "per_token or per_tensor", {"granularity": "per_group"}),
    ("QuantizedLinear", V, r"smooth to have 12 elements .* \[5\]", {"smooth": ones(5)}),
    ("StaticQuantizedLinear", T, "act_zero_point to be integer", {"act_zero_point": ones(1)}),
    ("StaticQuantizedLinear", V, "smooth_scale to have 12 elements", {"smooth_scale": ones(3)}),
    ("StaticQuantizedLinear", V, "rotate or smooth_scale, but got",
     {"smooth_scale": ones(12), "rotate": 4}),
    ("WeightOnlyLinear", V, r"shape \[5, 3\] \(groups of 4\), but got \[5, 2\]",
     {"weight_scale": ones(5, 2), "group_size": 4}),
    ("WeightOnlyLinear", V, "group_size > 0", {"weight_scale": ones(5, 2), "group_size": 0}),
    ("WeightOnlyLinear", V, "zero_point to have the shape of weight_scale",
     {"weight_zero_point": int8(2)}),
    ("QuantizedInt4Linear", V, "an even group_size > 0, but got 31", {"group_size": 31}),
    ("QuantizedInt4Linear", V, "in_features to be an int", {"in_features": 4.0}),
    ("QuantizedInt4Linear", V, r"shape \[out_features, 47\]", {"in_features": 94}),
    ("QuantizedInt4Linear", T, "packed to be uint8", {"packed": int8(24, 48)}),
    ("QuantizedInt4Linear", T, "group_factor to be uint8", {"group_factor": ones(24, 3)}),
    ("QuantizedInt4Linear", V, r"shape \[24, 3\]", {"group_factor": uint8(24, 2)}),
    ("QuantizedInt4Linear", V, r"shape \[24, 3\]", {"group_zero_point": uint8(23, 3)}),
    ("QuantizedInt4Linear", V, r"bias to have 24 elements \(packed.size", {"bias": ones(3)}),
    ("StaticQuantizedInt4Linear", V, r"bits to be an int in \[2, 8\]", {"bits": 9}),
    ("WeightOnlyInt4Linear", V, "in_features to be an int", {"in_features": True}),
    ("WeightOnlyInt4Linear", V, "weight_scale to have 12 elements", {"group_size": None}),
    ("WeightOnlyInt4Linear", T, "weight_zero_point to be integer",
     {"weight_zero_point": ones(12, 3)}),
    ("WeightOnlyInt4Linear", V, r"in \[2, 4\], but got 4.0", {"weight_bits": 4.0}),
    ("QuantizedEmbedding", T, "dtype to be floating", {"dtype": torch.int8}),
    ("QuantizedEmbedding", V, "weight_scale to have the shape", {"group_size": 4}),
    *((f"Quantized{kind}{n}d", V, f"qweight to have {n + 2} dimensions", {"qweight": int8(4, 2)})
      for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)),
    ("QuantizedConv1d", T, "qweight to be int8", {"qweight": ones(4, 2, 3)}),
    ("QuantizedConv2d", V, r"weight_scale to have the shape \[4, 1\]", {"group_size": 2}),
    ("QuantizedConvTranspose2d", T, "zero_point to be integer", {"weight_zero_point": ones(4)}),
    ("MultiheadAttention", V, r"num_heads to divide embed_dim \(8\), but got 3", {"num_heads": 3}),
    ("RMSNorm", V, "normalized_shape to be the size of the", {"normalized_shape": (2, 3)}),
    ("GELU", V, "approximate to be none or tanh, but got 'erf'", {"approximate": "erf"}),
    ("LSTM", V, "input_size to be an int > 0, but got 0", {"input_size": 0}),
    ("GRU", V, "num_layers to be an int > 0, but got 0", {"num_layers": 0}),
    ("RNN", V, r"dropout to lie in \[0, 1\], but got 1.5", {"dropout": 1.5}),
    ("LSTM", V, r"proj_size to lie in \[0, 3\) \(hidden_size\), but got 3", {"proj_size": 3}),
    ("RNN", V, "nonlinearity to be tanh or relu", {"nonlinearity": "elu"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "error", "words", "change"), [*QUANTIZERS, *LAYERS])
def test_wrong_arguments(kind: str, error: type[Exception], words: str, change: Any) -> None:
    make = getattr(bnn, kind)
    make(**VALID[kind])
    name = kind.replace("Learned", "(Learned)?")  # what both check names the fixed one
    with pytest.raises(error, match=rf"^{name}\w*: expected .*{words}"):
        make(**VALID[kind] | change)


@pytest.mark.parametrize("kind", ["QuantizedConv1d", "QuantizedConvTranspose2d"])
def test_options_that_pytorch_refuses(kind: str) -> None:
    for change, words in ({"groups": 3}, "divisible by groups"), ({"padding_mode": "x"}, "padding"):
        with pytest.raises(ValueError, match=words):
            getattr(bnn, kind)(**VALID[kind] | change)
    with pytest.raises(TypeError, match="output_padding"):
        bnn.QuantizedConv1d(**VALID["QuantizedConv1d"], output_padding=1)


def test_blocks_of_a_rotation_that_do_not_fit() -> None:
    kinds = ["QuantizedLinear", "StaticQuantizedLinear", "WeightOnlyLinear", "QuantizedInt4Linear"]
    values = [*((value, V) for value in (0, 1, 3, -4, 64, 2**20, -(2**63)))]
    values += [(value, T) for value in (True, False, 2.0, "4", [4])]
    for kind, (value, error) in itertools.product([*kinds, "WeightOnlyInt4Linear"], values):
        with pytest.raises(error, match=f"^{kind}: expected rotate to be a"):
            getattr(bnn, kind)(**VALID[kind], rotate=value)


def test_arguments_of_other_modes() -> None:
    values = {"zero_point": 3, "save_mask": False, "averaging_constant": 0.5, "channels": 4}
    uses = {
        "fixed": {"scale", "zero_point", "save_mask"}, "dynamic": set(),
        "observed": {"averaging_constant", "channels"},
    }  # fmt: skip
    for mode, name in itertools.product(uses, ["scale", *values]):
        if name not in uses[mode]:
            given = {"scale": 0.1} | values
            arguments = {"scale": given["scale"] if mode == "fixed" else None, name: given[name]}
            words = f"no {name} for mode '{mode}', but got {given[name]}"
            with pytest.raises(ValueError, match=f"FakeQuantize: expected {words}"):
                bnn.FakeQuantize(mode=mode, **arguments)


@pytest.mark.parametrize("mode", ["fixed", "dynamic"])
def test_calls_of_other_modes(mode: str) -> None:
    module = bnn.FakeQuantize(0.5 if mode == "fixed" else None, mode=mode)
    names = ["enable_observer", "disable_observer", "reset_min_max_vals", "sync_qparams"]
    for name in names + (["calculate_qparams", "freeze"] if mode == "dynamic" else []):
        with pytest.raises(RuntimeError, match=f"expected mode .*, but got '{mode}'"):
            getattr(module, name)()
    with pytest.raises(torch.jit.Error, match=f"expected mode .*, but got '{mode}'"):
        torch.jit.script(module).enable_observer()


@pytest.mark.parametrize("kind", ["FakeQuantize", "LearnedFakeQuantize", "LearnedFakeQuantizeInt4"])
def test_ranges_are_joined_by_processes(kind: str) -> None:
    module = getattr(bnn, kind)(**OBSERVED if kind == "FakeQuantize" else VALID[kind])
    with pytest.raises(RuntimeError, match=r"torch\.distributed to be initialized"):
        module.sync_qparams()


X = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
ROUNDED = {"granularity": "per_group", "mode": "dynamic", "scale_dtype": "float16"}
INPUTS: list[tuple[Callable[[], Any], Tensor, type[Exception], str]] = [
    (lambda: bnn.FakeQuantize(0.1), X.double(), T, "scale"),
    (lambda: bnn.FakeQuantize(mode="dynamic"), torch.arange(4), T, "input"),
    (lambda: bnn.FakeQuantize(**OBSERVED, **CHANNEL, channels=3), X.double(), T, "min_val"),
    (lambda: bnn.FakeQuantize(**OBSERVED, **CHANNEL, channels=5), X, V, "min_val"),
    (lambda: bnn.FakeQuantize(**ROUNDED, group_size=3), X, V, "group_size to divide 8, but"),
    (lambda: bnn.FakeQuantize(**ROUNDED, group_size=2, axis=0), X, V, "along the last dimension"),
    (lambda: bnn.LearnedFakeQuantize("per_group", group_size=3, shape=(4, 3)), X[0], V,
     "group_size to divide 8, but got 3"),
    *((lambda: bnn.LearnedFakeQuantizeInt4(2, shape=(4, 2)).initialize, ones(*shape), V,
       r"input to have the shape \[4, 4\]") for shape in ((4, 6), (3, 4), (4,), (4, 4, 1))),
]  # fmt: skip


@pytest.mark.parametrize(("make", "x", "error", "words"), INPUTS)
def test_inputs_that_do_not_fit(make: Any, x: Tensor, error: type[Exception], words: str) -> None:
    module = make()
    state = getattr(module, "state_dict", dict)()
    before = {name: tensor.clone() for name, tensor in state.items()}
    with pytest.raises(error, match=words):
        module(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.items() if x.dim() > 2)


CONFIGS: list[tuple[Callable[[], Any] | str, type[Exception], str]] = [
    ("int8 per_group(32) factors", V, "4 bits.*but got int8"),
    ("int4 factors", V, "granularity=PerGroup of an even size"),
    (lambda: W4A8(7, learned=True), V, "PerGroup of an even size"),
    ("int4 per_group(8) static factors", V,
     "dynamic=True or learned=True with group_factors=True"),
    (lambda: TensorConfig(4, PerGroup(8), learned=True, dynamic=True, group_factors=True), V,
     "dynamic=False .* for a learned scale"),
    (lambda: W4A8(None, group_factors=True), V, "W4A8: expected a group_size"),
    ("int3 ternary", V, "2 bits.*but got int3"),
    ("int2 asymmetric ternary", V, "symmetric=True"),
    ("int2 learned ternary", V, "dynamic=True and group_factors=False with ternary=True"),
    (lambda: TensorConfig(2, ternary=1), T, "ternary to be a bool"),
    ("int4 per_group(32) factors, int2 per_tensor ternary", V, "weight alone"),
    (lambda: W4A8(32, learned=1), T, "learned to be a bool, but got int"),
    (lambda: W4A8(32, group_factors=True, scale_dtype="bfloat16"), V, "'float32' with group_fac"),
    ("int4 per_group(32) factors", V, "per_token or per_tensor activation .* floating inputs"),
    ("int4 per_group(32) factors, int8 per_group(32)", V, "but got int8 per_group"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "words"), CONFIGS)
def test_configurations(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        described(make) if isinstance(make, str) else make()
