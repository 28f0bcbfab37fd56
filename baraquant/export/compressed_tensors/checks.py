# SPDX-License-Identifier: BSD-3-Clause
"""What a server needs of a folder beyond the format. Each rule has a name, by which it is allowed.

Each rule is called with the quantized layers, their schemes and the model, and yields the errors
that it finds: the paths of layers, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ...nn import QuantizedExperts
from ...workflow.shared_inputs import fused_paths
from .._layers import IntegerLayer
from .scheme import PACKED, Scheme

SERVERS = ("vllm", "sglang", "transformers")


@dataclass(frozen=True)
class Exported:
    """What is about to be written: the model, its quantized layers, and their schemes by path."""

    model: nn.Module
    layers: dict[str, IntegerLayer]
    schemes: dict[str, Scheme]
    serve: str | None = None

    @property
    def server(self) -> str:
        """The name of the server, for messages."""
        return {"vllm": "vLLM", "sglang": "SGLang"}.get(self.serve or "", "transformers")


Rule = Callable[[Exported], Iterator[str]]


@dataclass(frozen=True)
class OfLayers:
    """A rule that asks each layer alone."""

    fails: Callable[[IntegerLayer, Scheme], bool]
    reason: str  # with places for the layer's scheme and dtype

    def __call__(self, exported: Exported) -> Iterator[str]:
        """Yield the errors."""
        for path, layer in exported.layers.items():
            scheme = exported.schemes[path]
            if self.fails(layer, scheme):
                name = str(layer.dtype).removeprefix("torch.")
                yield f"{path}: {self.reason.format(scheme=scheme, dtype=name)}"


def check_server(exported: Exported, serve: str | None, allow: Iterable[str], caller: str) -> None:
    """Check the rules of a server (None has none), but for those that ``allow`` names."""
    allowed = {allow} if isinstance(allow, str) else set(allow)
    unknown = sorted(allowed - RULES.keys())
    if unknown:
        raise ValueError(
            f"{caller}: expected allow to name rules of {', '.join(RULES)}, but got {unknown[0]!r}"
        )
    if serve is None:
        return
    if serve not in SERVERS:
        raise ValueError(
            f"{caller}: expected serve to be {', '.join(map(repr, SERVERS))} or None, but got "
            f"{serve!r}"
        )
    for name, (servers, rule) in RULES.items():
        if serve not in servers or name in allowed:
            continue
        found = list(rule(exported))
        if found:
            more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
            raise ValueError(f"{caller}: {name}: {'; '.join(found[:3])}{more}")


def _kernels(exported: Exported) -> Iterator[str]:
    """A scheme that vLLM has a kernel for."""
    for path, scheme in exported.schemes.items():
        weight, input = scheme.weight, scheme.input
        if input is None:
            continue
        is_expert = isinstance(exported.layers[path].module, QuantizedExperts)
        if is_expert and not (input.dynamic and input.symmetric):
            yield (
                f"{path}: vLLM has no kernel for experts with {scheme}; it has int8 inputs with a "
                "dynamic scale per token and no zero point (W8A8), and floating inputs"
            )
            continue
        has_kernel = (
            weight.bits == input.bits == 8
            and weight.symmetric
            and weight.strategy != "group"
            and input.strategy == ("token" if input.dynamic else "tensor")
        )
        if not has_kernel:
            yield (
                f"{path}: vLLM has no kernel for {scheme}; it has int8 inputs with a dynamic scale "
                "per token (W8A8) or one static scale (W8A8Static) for weights without groups and "
                "zero points, and floating inputs (W4A16, W8A16)"
            )


def _sglang_kernels(exported: Exported) -> Iterator[str]:
    """A scheme that SGLang has a kernel for: weights of channels or tensors, or 4 and 8 bits."""
    for path, scheme in exported.schemes.items():
        weight, input = scheme.weight, scheme.input
        is_expert = isinstance(exported.layers[path].module, QuantizedExperts)
        has_kernel = weight.symmetric and weight.bits == 8 and weight.strategy != "group"
        if input is None:
            has_kernel = weight.symmetric and weight.bits in (4, 8) and weight.strategy != "tensor"
        elif input.bits != 8 or (input.dynamic and input.strategy != "token"):
            has_kernel = False
        if is_expert or not has_kernel:
            yield (
                f"{path}: SGLang has no kernel for {'experts with ' if is_expert else ''}{scheme}; "
                "it has int8 inputs with a dynamic scale per token for int8 weights without groups "
                "and zero points (W8A8), and floating inputs for weights of 4 or 8 bits in groups "
                "or channels without zero points (W4A16, W8A16)"
            )


def _one_format(exported: Exported) -> Iterator[str]:
    """One storage for all layers: SGLang reads the format of the whole configuration alone."""
    formats = sorted({scheme.format for scheme in exported.schemes.values()})
    if len(formats) > 1:
        yield (
            f"expected layers of one format, but got {' and '.join(formats)}: SGLang reads one for "
            "all; use one scheme, and None for the other layers"
        )


def _fused_schemes(exported: Exported) -> Iterator[str]:
    """One scheme in layers that vLLM fuses."""
    linear = [n for n, m in exported.model.named_modules() if hasattr(m, "weight")]
    for group in fused_paths(linear):
        schemes = {exported.schemes.get(path) for path in group}
        if len(schemes) > 1:
            kinds = ", ".join(f"{path} {exported.schemes.get(path) or 'float'}" for path in group)
            yield (f"{exported.server} computes {kinds} as one layer: give them one configuration")


def _fused_input_scale(exported: Exported) -> Iterator[str]:
    """One static input scale in layers that vLLM fuses: it takes the last one for all."""
    for group in fused_paths(exported.layers):
        inputs = [exported.layers[path].input for path in group]
        scales = [
            (float(input.scale), 0 if input.zero_point is None else int(input.zero_point))
            for input in inputs
            if input is not None and input.scale is not None
        ]
        if len(set(scales)) > 1:
            values = ", ".join(f"{scale:.6g}" for scale, _ in scales)
            yield (
                f"{', '.join(group)} have the input scales {values}, and vLLM takes the last one "
                "for all; call baraquant.export.tie_fused_scales(model) before, or "
                "calibrate with observer='min_max'"
            )


def _static_zero_point(exported: Exported) -> Iterator[str]:
    """A static zero point that vLLM's CUDA kernels rebuild without being off by one."""
    for path, layer in exported.layers.items():
        input = layer.input
        if input is None or input.scale is None or input.zero_point is None:
            continue
        if nudged_scale(input.scale, input.zero_point) is None:
            yield (
                f"{path}: vLLM on CUDA would rebuild the input's zero point "
                f"{int(input.zero_point)} with the scale {float(input.scale):.9g} off by one; use "
                "W8A8Static(symmetric=True), or W8A8(symmetric=False) with dynamic scales"
            )


def _shapes(exported: Exported) -> Iterator[str]:
    """Sizes that vLLM's kernels take."""
    for path, layer in exported.layers.items():
        if layer.float_name == "Embedding":
            continue
        rows, columns = layer.qweight.shape
        step = 16 if exported.schemes[path].input is not None else 32
        if rows % step or columns % step:
            yield (
                f"{path}: {exported.server}'s kernels for {exported.schemes[path]} need multiples "
                f"of {step} in and out, but its weight is {[rows, columns]}; keep it floating"
            )
        elif exported.schemes[path].input is None and layer.group_size not in (None, 32, 64, 128):
            yield (
                f"{path}: {exported.server}'s kernels take groups of 32, 64 or 128, but it has "
                f"{layer.group_size}"
            )


def _is_inexact(layer: IntegerLayer, scheme: Scheme, packed: bool) -> bool:
    """Whether the dtype of a layer, packed or not, does not hold its scales."""
    return (scheme.format == PACKED) == packed and not is_exact(layer.scale, layer.dtype)


# Which servers a rule is for, and the rule.
RULES: dict[str, tuple[tuple[str, ...], Rule]] = {
    "kernels": (("vllm",), _kernels),
    "sglang_kernels": (("sglang",), _sglang_kernels),
    # SGLang loads a static scale and does not use it.
    "static_inputs": (("sglang",), OfLayers(
        lambda _, scheme: scheme.input is not None and not scheme.input.dynamic,
        "SGLang ignores the static scale of its input and computes one for each token; use W8A8() "
        "with dynamic scales")),
    "input_zero_points": (("sglang",), OfLayers(
        lambda _, scheme: scheme.input is not None and not scheme.input.symmetric,
        "SGLang rounds its input without a zero point; use symmetric=True")),
    "one_format": (("sglang",), _one_format),
    # SGLang takes this format in bfloat16 and float16 alone.
    "sixteen_bits": (("sglang",), OfLayers(
        lambda layer, _: layer.dtype not in (torch.bfloat16, torch.float16),
        "SGLang computes layers of this format in bfloat16 or float16, and converts a model of "
        "{dtype}; convert the float model first (model.to(torch.bfloat16))")),
    "fused_schemes": (("vllm", "sglang"), _fused_schemes),
    "fused_input_scale": (("vllm",), _fused_input_scale),
    "static_zero_point": (("vllm",), _static_zero_point),
    "shapes": (("vllm", "sglang"), _shapes),
    "widths": (("vllm",), OfLayers(
        lambda _, scheme: scheme.format == PACKED and scheme.weight.bits != 4
        and not (scheme.weight.bits == 8 and scheme.weight.symmetric),
        "vLLM's Marlin kernels take 4 bits, or 8 bits without zero points, not {scheme}; a server "
        "with other kernels may take it")),
    "half_models": (("vllm",), OfLayers(
        lambda layer, scheme: scheme.format == PACKED and layer.dtype == torch.float32,
        "vLLM computes packed weights in bfloat16 or float16, and converts a float32 model and its "
        "scales; convert the float model first (model.to(torch.bfloat16)), and quantize it with "
        "scale_dtype='bfloat16'")),
    "packed_zero_points": (("transformers",), OfLayers(
        lambda _, scheme: scheme.format == PACKED and not scheme.weight.symmetric,
        "transformers cannot load packed weights with zero points (its shapes do not fit those of "
        "the format); use symmetric=True, serve it with vLLM, or load it with "
        "baraquant.export.from_compressed_tensors")),
    "rounded_scales": (SERVERS, OfLayers(partial(_is_inexact, packed=True),
        "the server rounds its scales to {dtype}, and so computes with other weights; quantize "
        "with scale_dtype='{dtype}' in the configuration")),
    # Those of layers that multiply integers, which only transformers converts.
    "integer_scales": (("transformers",), OfLayers(partial(_is_inexact, packed=False),
        "transformers rounds its scales to {dtype} unless the folder is loaded with "
        "CompressedTensorsConfig(dequantize=True); quantize with scale_dtype='{dtype}'")),
}  # fmt: skip


def is_exact(scale: Tensor, dtype: torch.dtype) -> bool:
    """Whether a dtype represents all of these scales exactly."""
    return bool((scale.to(dtype).to(scale.dtype) == scale).all())


def nudged_scale(scale: Tensor, zero_point: Tensor) -> Tensor | None:
    """Return a scale within four units in the last place that vLLM keeps the zero point of.

    vLLM on CUDA computes the ends of the range from the scale and the zero point, and from these
    the scale and the zero point again, which it truncates. Both have one element. The result is
    ``scale`` itself if it is good, else the nearest good one; None if there is none.
    """
    step = torch.tensor([0, 1, -1, 2, -2, 3, -3, 4, -4], dtype=torch.int32)
    bits = scale.detach().cpu().to(torch.float32).reshape(1).view(torch.int32)
    candidates = (bits + step).view(torch.float32)
    zero = zero_point.detach().cpu().to(torch.int32).reshape(())
    highest, lowest = candidates * (127 - zero), candidates * (-128 - zero)
    rebuilt = (highest - lowest) / 255
    zeros = (-128 - lowest / rebuilt).to(torch.int32)
    good = torch.nonzero((zeros == zero) & (candidates > 0) & candidates.isfinite())
    return None if good.numel() == 0 else candidates[good[0, 0]].reshape(scale.shape)
