# SPDX-License-Identifier: BSD-3-Clause
"""Layers that are prepared, trained for one step and converted; files of the converted ones.

What PyTorch computes in an order of its own stays out, or gets inputs for which every sum is
exact: weights and inputs are quarters of integers whose scales are powers of two. A floating
product of trained weights is not exact: there an input has one number in each row, so that a sum
has one term. Sigmoid, tanh and softmax belong to PyTorch: of layers with these the state alone is
hashed, and it is that of an untrained layer.
"""

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16, QuantConfig, SmoothQuant, TensorConfig, W8A8Static
from baraquant.configs import Config
from baraquant.nn import WeightOnlyInt4Linear
from baraquant.qat import convert_, prepare_
from tests.golden import values
from tests.golden.int8_mm import exact_rows, sparse
from tests.golden.values import Case
from tests.support import cases
from tests.support.bits import without_switches
from tests.support.cases import name_of
from tests.support.models.every_layer import Every

T = TensorConfig
TENSOR = T(8, "per_tensor", False, learned=True)
CONFIGS: dict[str, Config] = {
    "W8A8": W8A8(),
    "W8A8 asymmetric": W8A8(symmetric=False),
    "W8A8Static": W8A8Static(),
    "W8A8Static moving asymmetric": W8A8Static("moving_average", symmetric=False),
    "W8A16": W8A16(),
    "W4A16": W4A16(8, scale_rule="max"),
    "W4A16 asymmetric": W4A16(8, symmetric=False, scale_rule="max"),
    "W4A8": W4A8(8, scale_rule="max", group_factors=False),
    "W4A8 per channel": W4A8(None, scale_rule="max"),
    "learned": QuantConfig(T(4, learned=True), TENSOR),
    "learned groups": QuantConfig(T(4, "per_group", False, learned=True, group_size=8)),
    "observed": QuantConfig(T(8, "per_tensor", dynamic=False), T(8, "per_tensor")),
    "groups of inputs": QuantConfig(T(3), T(8, "per_group", group_size=8)),
}
AFTER_TRAINING: dict[str, Config] = {
    "W8A8": W8A8(),
    "W8A8Static": W8A8Static(),
    "W8A8Static percentile asymmetric": W8A8Static("percentile", symmetric=False),
    "W8A8Static mse": W8A8Static("mse"),
    "W4A16 searched": W4A16(8),
    "W4A8 searched": W4A8(None),
    "SmoothQuant": SmoothQuant(0.5),
    "SmoothQuant static": SmoothQuant(0.5, W8A8Static(symmetric=False)),
}
ROWS, OUTPUTS, INPUTS = 12, 12, 40
FLOATS = "a step in training multiplies floats, which each device sums in an order of its own"
CUDNN = "cuDNN chooses the algorithm of a convolution, and some are not exact"


def fill(model: nn.Module) -> nn.Module:
    """Give every parameter exact values."""
    with torch.no_grad():
        for seed, (_, parameter) in enumerate(sorted(model.named_parameters())):
            rows = parameter.shape[:1] if parameter.ndim > 1 else (1,)
            made = exact_rows((*rows, parameter.numel() // max(rows[0], 1)), torch.float64, seed)
            parameter.copy_(made.reshape(parameter.shape))
    return model


def state(model: nn.Module) -> list[Tensor]:
    """Everything that the model keeps, by the order of the names; packed integers as int8."""
    found = without_switches(model.state_dict())
    for path, layer in model.named_modules():
        if isinstance(layer, WeightOnlyInt4Linear):
            del found[f"{path}.packed"]
            found[f"{path}.qweight"] = layer.qweight
    return [v.detach().clone() for _, v in sorted(found.items()) if isinstance(v, Tensor)]


def step(model: nn.Module, x: Tensor, dy: Tensor) -> list[Tensor]:
    """One batch in training, and a step of plain gradient descent: the output and gradients."""
    y = model.train()(x)
    y.backward(dy)
    found = [y]
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.grad is not None:
                found.append(parameter.grad.clone())
                parameter -= parameter.grad * 2.0**-6
                parameter.grad = None
    return found


def one_in_each_row(m: int, k: int, dtype: torch.dtype) -> Tensor:
    found = torch.zeros(m, k, dtype=dtype)
    found[torch.arange(m), (7 * torch.arange(m)) % k] = 3.5
    return found


def linear(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Without a bias: beside a floating product it would be a second term."""
    model = fill(nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False))).to(device, dtype)
    prepare_(model, CONFIGS[name])
    x, dy = exact_rows((ROWS, INPUTS), dtype, 20), sparse(ROWS, OUTPUTS, dtype)
    found = step(model, x.to(device), dy.to(device)) + state(model)
    one = one_in_each_row(ROWS, INPUTS, dtype).to(device)
    found += [model.eval()(one)]
    convert_(model)
    with torch.no_grad():
        return (*found, *state(model), model(one))


def integer_linear(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Products of integers take any weight, bias and input."""
    model = fill(nn.Sequential(nn.Linear(INPUTS, OUTPUTS))).to(device, dtype)
    prepare_(model, CONFIGS[name])
    for seed in (21, 22):
        x = values.segments((ROWS, INPUTS), dtype, "tame", seed).to(device)
        model.train()(x)
    x = values.segments((ROWS, INPUTS), dtype, "poisoned", 23).to(device)
    with torch.no_grad():
        prepared = model.eval()(x)
        convert_(model)
        return (prepared, *state(model), model(x))


def embedding(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    model = fill(nn.Sequential(nn.Embedding(17, 16, padding_idx=1))).to(device, dtype)
    prepare_(model, CONFIGS[name])
    tokens = torch.tensor([[3, 0, 16], [1, 3, 7]], device=device)
    dy = values.integers((2, 3, 16), -3, 3, 24).to(device, dtype)
    found = step(model, tokens, dy) + state(model)
    convert_(model.eval())
    return (*found, *state(model), model(tokens))


def convolution(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for layer in (nn.Conv2d(8, 4, 3, padding=1, bias=False), nn.Conv1d(8, 4, 1, bias=False)):
        model = fill(nn.Sequential(layer)).to(device, dtype)
        prepare_(model, CONFIGS[name])
        size = (5,) * (2 if isinstance(layer, nn.Conv2d) else 1)
        x = exact_rows((2, 8, *size), dtype, 25).to(device)
        dy = values.integers((2, 4, *size), -1, 1, 26).to(device, dtype)
        found += step(model, x, dy) + state(model)
        convert_(model.eval())
        found += state(model)
    return tuple(found)


def recurrent(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for layer in (nn.LSTM(8, 16), nn.GRU(8, 16), nn.MultiheadAttention(16, 2), nn.LSTMCell(8, 16)):
        model = fill(nn.Sequential(layer)).to(device, dtype)
        prepare_(model, CONFIGS[name])
        found += state(model)
        convert_(model.eval())
        found += state(model)
    return tuple(found)


def after_training(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """quantize_, with its calibration; the output where the product is one of integers."""
    model = fill(nn.Sequential(nn.Linear(INPUTS, OUTPUTS))).to(device, dtype)
    batches = [values.segments((ROWS, INPUTS), dtype, "tame", seed) for seed in (27, 28)]
    batches = [batch.to(device) for batch in batches]
    with torch.no_grad():
        model[0].weight.copy_(values.rounded(values.spread((OUTPUTS, INPUTS), 29), dtype))
        model.eval()
        baraquant.quantize_(model, AFTER_TRAINING[name], calibration=batches, progress=False)
        outputs = [] if "A16" in name else [model(batches[0])]
    return (*state(model), *outputs)


def saved(model: nn.Module, folder: Path) -> list[Tensor]:
    """The bytes of each tensor in a file, with its name, dtype and shape, in the file's order."""
    path = folder / "model.safetensors"
    baraquant.save(model, path)
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    text = json.dumps(header, sort_keys=True).encode() + raw[8 + length :]
    return [torch.frombuffer(bytearray(text), dtype=torch.uint8)]


def files(name: str, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """What is stored of a quantized model, and the state of the model that is loaded from it."""
    build: Callable[[], nn.Module] = partial(nn.Sequential, nn.Linear(INPUTS, OUTPUTS))
    model = fill(build()).to(device, dtype).eval()
    prepare_(model, CONFIGS[name])
    model.train()(exact_rows((ROWS, INPUTS), dtype, 20).to(device))
    convert_(model.eval())
    with tempfile.TemporaryDirectory() as folder:
        found = saved(model, Path(folder))
        fresh = nn.Sequential(nn.Linear(INPUTS, OUTPUTS)).to(device, dtype).eval()
        baraquant.load_(fresh, Path(folder) / "model.safetensors")
    return (*found, *state(fresh))


def every_module(device: str) -> tuple[Tensor, ...]:
    """A file with a module of every kind; its integers are in the range of their bits."""
    model = Every().quantize()
    with torch.no_grad():
        for seed, (name, value) in enumerate(sorted(model.state_dict().items())):
            if value.is_floating_point():
                value.copy_(values.scales(tuple(value.shape), value.dtype, seed))
            elif value.dtype == torch.int8 or "weight_zero_point" in name:
                value.copy_(values.integers(tuple(value.shape), -2, 1, seed))
    with tempfile.TemporaryDirectory() as folder:
        return tuple(saved(model.to(device), Path(folder)))


def all_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every configuration with layers of a dtype."""
    kinds: dict[str, Callable[..., tuple[Tensor, ...]]] = {"files": files}
    is_single = dtype in (torch.float32, torch.float64)
    for name, config in CONFIGS.items():
        # A search compares sums of squares, which PyTorch adds in an order of the instruction set,
        # and SmoothQuant takes PyTorch's power, whose last bit in float64 depends on the processor.
        # In float32 and shorter neither changes a bit. Learned scales start at searched ones.
        if dtype == torch.float64 and "learned" in name:
            continue
        weight, activation = config.weight, config.activation  # type: ignore[attr-defined]
        is_whole = name in ("W8A8", "W8A8 asymmetric", "W4A8 per channel")
        found = kinds | {"linear" if is_whole else "float_linear": linear}
        if activation is None:
            found["embedding"] = embedding
        if weight.dynamic and (activation is None or activation.dynamic):
            found["recurrent"] = recurrent
        is_integer = activation is not None and activation.granularity != "per_group"
        if is_integer and weight.granularity == "per_channel":
            found["integer_linear"] = integer_linear
        if is_single and activation is None and weight.granularity != "per_group":
            found["convolution"] = convolution
        for kind, call in found.items():
            reason = {"convolution": CUDNN, "float_linear": FLOATS}.get(kind, "")
            title = f"{kind} {name_of(dtype)}"
            yield Case(title, name, partial(call, name, dtype), reason, False)
    for name in AFTER_TRAINING:
        if dtype == torch.float64 and ("searched" in name or "SmoothQuant" in name):
            continue
        run = partial(after_training, name, dtype)
        yield Case(f"quantize_ {name_of(dtype)}", name, run, has_private=False)
    if dtype == cases.FLOAT_DTYPES[0]:
        yield Case("file of every module", "", every_module, has_private=False)
