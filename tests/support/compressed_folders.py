# SPDX-License-Identifier: BSD-3-Clause
"""Folders that the package compressed-tensors itself writes and reads, and a model for them.

And what damages a folder.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import baraquant
from tests.support.optional_packages import package

Edit = Callable[[Path], object]


class Block(nn.Module):
    """An embedding, projections that servers fuse, and a head; every size is a multiple of 32."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 64)
        self.q_proj = nn.Linear(64, 64, bias=bias)
        self.k_proj = nn.Linear(64, 32, bias=bias)
        self.v_proj = nn.Linear(64, 32, bias=bias)
        self.norm = nn.LayerNorm(64)
        self.o_proj = nn.Linear(64, 96)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.embed(ids))
        mixed = self.q_proj(x) + torch.cat([self.k_proj(x), self.v_proj(x)], dim=-1)
        return self.o_proj(mixed)


IDS = torch.arange(24).reshape(2, 12)


def block(dtype: torch.dtype = torch.float32, seed: int = 0) -> Block:
    """A block with random weights, some rows of which are zero."""
    torch.manual_seed(seed)
    model = Block().to(dtype).eval()
    with torch.no_grad():
        model.q_proj.weight[3] = 0
    return model


def quantized(config: Any = None, dtype: torch.dtype = torch.float32) -> Block:
    """A block under rules, or with one scheme for its linear layers."""
    model = block(dtype)
    if not isinstance(config, dict):
        config = {nn.Linear: config or baraquant.W8A8(), nn.Embedding: None}
    baraquant.quantize_(model, config, calibration=[IDS], progress=False)
    return model


def configured(change: Callable[[dict[str, Any]], object]) -> Edit:
    """An edit of the object quantization_config."""

    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config["quantization_config"])
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def group(change: Callable[[dict[str, Any]], object]) -> Edit:
    """An edit of its first group."""
    return configured(lambda config: change(config["config_groups"]["group_0"]))


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Edit:
    """An edit of the tensors."""

    def edit(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        state = {name: tensor.clone() for name, tensor in state.items()}
        change(state)
        save_file(state, folder / "model.safetensors", {"format": "pt"})

    return edit


def cut(folder: Path) -> None:
    """Takes the end of the file of tensors away."""
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


# Each kind of layer that the package writes: the weights' arguments, and the inputs'.
CHANNEL, TOKEN = {"strategy": "channel"}, {"strategy": "token", "dynamic": True}
TENSOR, ASYMMETRIC = {"strategy": "tensor"}, {"symmetric": False}
GROUPS = {"num_bits": 4, "strategy": "group", "group_size": 32}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "int8 token": (CHANNEL, TOKEN),
    "int8 token asymmetric": (CHANNEL, TOKEN | ASYMMETRIC),
    "int8 static": (CHANNEL, TENSOR),
    "int8 static asymmetric": (TENSOR, TENSOR | ASYMMETRIC),
    "int4 group": (GROUPS, None),
    "int4 group asymmetric": (GROUPS | ASYMMETRIC, None),
    "int4 channel": (CHANNEL | {"num_bits": 4}, None),
    "int4 channel asymmetric": (CHANNEL | ASYMMETRIC | {"num_bits": 4}, None),
    "int3 group": (GROUPS | {"num_bits": 3, "group_size": 16}, None),
    "int8 weights": (CHANNEL | {"num_bits": 8}, None),
    "int4 group, int8 token": (GROUPS, TOKEN),
}


def write_by_package(
    model: nn.Module, folder: Path, kind: str, targets: list[str], ignore: list[str]
) -> nn.Module:
    """Quantizes a model with the package and writes it; returns the model as the package has it."""
    quantization = package("compressed_tensors.quantization")
    weights, inputs = KINDS[kind]
    scheme = quantization.QuantizationScheme(
        targets=targets,
        weights=quantization.QuantizationArgs(**weights),
        input_activations=None if inputs is None else quantization.QuantizationArgs(**inputs),
    )
    config = quantization.QuantizationConfig(config_groups={"group_0": scheme}, ignore=ignore)
    quantization.apply_quantization_config(model, config, show_progress=False)
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            _calibrate(module)
    compressor = package("compressed_tensors").ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    folder.mkdir()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({}))
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    return model


def _calibrate(module: Any) -> None:
    """Sets the scales and zero points of a layer by the package's own formula."""
    formula = package("compressed_tensors.quantization.utils").calculate_qparams
    args = module.quantization_scheme.weights
    weight = module.weight.detach()
    size = {"group": args.group_size, "channel": weight.shape[1]}.get(args.strategy)
    rows = weight.reshape(weight.shape[0], -1, size) if size else weight.reshape(1, -1)
    scale, zero_point = formula(rows.amin(-1), rows.amax(-1), args)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(weight.dtype)
    if hasattr(module, "weight_zero_point"):
        shape = module.weight_zero_point.shape
        module.weight_zero_point.data = zero_point.reshape(shape).to(torch.int8)
    if hasattr(module, "input_scale"):
        module.input_scale.data = torch.full_like(module.input_scale, 0.03)
    if hasattr(module, "input_zero_point"):
        module.input_zero_point.data = torch.full_like(module.input_zero_point, -7)


def decompressed_by_package(folder: Path, model: nn.Module) -> nn.Module:
    """Reads a folder with the package into a float model: weights are dequantized."""
    quantization = package("compressed_tensors.quantization")
    given = json.loads((folder / "config.json").read_text())["quantization_config"]
    config = quantization.QuantizationConfig.model_validate(given)
    quantization.apply_quantization_config(model, config, show_progress=False)
    compressor = package("compressed_tensors").ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    files = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in (item for file in files for item in file.items()):
        # Zero points of packed weights have another shape there, until it decompresses them.
        module, _, key = name.rpartition(".")
        parameter = nn.Parameter(tensor, requires_grad=False)
        assert name in own or key == "weight_zero_point", name
        model.get_submodule(module)._parameters[key] = parameter
    compressor.decompress_model(model)
    return model
