# SPDX-License-Identifier: BSD-3-Clause
"""Inputs that tests and benchmarks share: dtypes, granularities, shapes, layouts, values.

Nothing here knows what an op computes (that is `tests/support/oracle`) or needs pytest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from baraquant import ops

Shape = tuple[int, ...]

FLOAT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGER_DTYPES = (torch.int8, torch.uint8)
QUANTIZED_DTYPES = INTEGER_DTYPES + FLOAT_DTYPES
SCALE_DTYPES = (torch.float32, torch.float64)
RANGES = ((-128, 127), (-127, 127), (0, 255), (-8, 7), (0, 15), (-2, 1))
# The largest magnitude up to which a dtype holds every integer.
INTEGER_LIMIT = {torch.float16: 2**11, torch.bfloat16: 2**8}
INTEGER_LIMIT |= {torch.float32: 2**24, torch.float64: 2**53}
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
OP_NAMES = sorted([*ops.__all__, *ops.backward.__all__])


def function_of(name: str) -> Callable:
    """The function of `baraquant.ops`; the gradients are in `baraquant.ops.backward`."""
    return getattr(ops.backward if "_backward" in name else ops, name)


def name_of(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`; pytest's `ids`."""
    return str(dtype).removeprefix("torch.")


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype `C` in which an input of `dtype` is computed, which its scale must have."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def default_range(dtype: torch.dtype) -> tuple[int, int]:
    """The full eight-bit range of a quantized dtype."""
    return (0, 255) if dtype == torch.uint8 else (-128, 127)


def fits(quant_range: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether every integer of the range can be held by `dtype`."""
    if dtype in INTEGER_DTYPES:
        info = torch.iinfo(dtype)
        return info.min <= quant_range[0] and quant_range[1] <= info.max
    return max(abs(q) for q in quant_range) <= INTEGER_LIMIT[dtype]


@dataclass(frozen=True)
class Granularity:
    """Which elements share a scale: `kind` is `per_` tensor, channel, token or group."""

    kind: str
    axis: int = -1
    group_size: int = 0

    def __str__(self) -> str:
        if self.kind == "per_channel":
            return f"{self.kind}({self.axis})"
        if self.kind == "per_group":
            return f"{self.kind}({self.group_size},{self.axis})"
        return self.kind

    @property
    def args(self) -> Shape:
        """The arguments that the op takes after `zero_point`."""
        if self.kind == "per_channel":
            return (self.axis,)
        return (self.group_size, self.axis) if self.kind == "per_group" else ()

    def op(self, verb: str, namespace: object = None) -> Callable:
        """The public op of a verb, e.g. `fake_quantize` or `quantize_backward`."""
        stem, _, suffix = verb.partition("_backward")
        name = f"{stem}_{self.kind}" + ("_backward" + suffix if "_backward" in verb else "")
        if namespace is ops:
            return function_of(name)
        return getattr(namespace or torch.ops.baraquant, name)

    def param_shape(self, shape: Shape) -> Shape:
        """The shape of scale and zero point for an input of `shape`."""
        if self.kind == "per_tensor":
            return ()
        if self.kind == "per_channel":
            return (shape[self.axis],)
        if self.kind == "per_token":
            return (*shape[:-1], 1)
        groups = list(shape)
        groups[self.axis] = -(-shape[self.axis] // self.group_size)
        return tuple(groups)


PER_TENSOR = Granularity("per_tensor")
PER_TOKEN = Granularity("per_token")


def per_channel(axis: int) -> Granularity:
    return Granularity("per_channel", axis=axis)


def per_group(group_size: int, axis: int = -1) -> Granularity:
    return Granularity("per_group", axis=axis, group_size=group_size)


# One of each kind, for tests that do not turn on the map.
KINDS = (PER_TENSOR, per_channel(1), PER_TOKEN, per_group(8))


def granularities(shape: Shape) -> list[Granularity]:
    """Every granularity for this shape: several axes; whole, partial and outsized groups."""
    found = [PER_TENSOR]
    if not shape:
        return found
    ndim = len(shape)
    found += [per_channel(axis) for axis in sorted({0, ndim // 2, -1, -ndim})]
    found += [PER_TOKEN]
    found += [per_group(32), per_group(7, 0), per_group(1), per_group(3, -ndim)]
    found += [per_group(5, ndim // 2), per_group(max(shape) + 1), per_group(10**9)]
    return list(dict.fromkeys(found))


SHAPES = (
    (), (0,), (1,), (17,), (1025,), (0, 4), (4, 0), (3, 0, 5), (1, 1), (2, 1025), (33, 17),
    (4, 17, 33), (2, 16, 5, 7), (2, 3, 1, 4, 9),
)  # fmt: skip

# --- layouts -------------------------------------------------------------------------------------


def _padded(t: Tensor, elements: int) -> Tensor:
    """The same values as rows of a wider buffer: neither dense nor 16-byte aligned."""
    wide = t.new_zeros((*t.shape[:-1], t.shape[-1] + elements))
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def _stepped(t: Tensor) -> Tensor:
    wide = t.new_zeros((*t.shape[:-1], 2 * t.shape[-1]))
    wide[..., ::2] = t
    return wide[..., ::2]


def _misaligned(t: Tensor) -> Tensor:
    flat = t.new_zeros(t.numel() + 1)
    flat[1:] = t.reshape(-1)
    return flat[1:].view(t.shape)


def _in_memory_order(t: Tensor, order: Shape) -> Tensor:
    """The same tensor, stored with its dimensions in the given order (outermost first)."""
    inverse = [order.index(dim) for dim in range(len(order))]
    return t.permute(order).contiguous().permute(inverse)


# Layouts that keep every value except `expanded`. Those after `dense` are not dense.
DENSE_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "misaligned": _misaligned,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "permuted": lambda t: _in_memory_order(t, (*range(1, t.ndim), 0)),
    "swapped": lambda t: _in_memory_order(t, (t.ndim - 2, t.ndim - 1, *range(t.ndim - 2))),
}
OTHER_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "stepped": _stepped,
    "padded": lambda t: _padded(t, 3),
    "expanded": lambda t: t[:1].expand_as(t),  # stride 0: the first slice, repeated
    "transposed_padded": lambda t: _padded(t.transpose(0, -1), 1).transpose(0, -1),
}
LAYOUTS = {**DENSE_LAYOUTS, **OTHER_LAYOUTS}
LAYOUTS_4D = {
    **LAYOUTS,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "permuted_4d": lambda t: _in_memory_order(t, (2, 0, 3, 1)),
    "channels_last_misaligned": lambda t: _misaligned(t.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
}


def is_dense(t: Tensor) -> bool:
    """Non-overlapping and dense: the elements fill their stretch of memory exactly once."""
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


# --- values --------------------------------------------------------------------------------------


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def special_values(dtype: torch.dtype) -> Tensor:
    """±0, subnormals, ends of the normal range, ±inf, NaN, halves, limits of integer dtypes."""
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps
    positive = [0.0, subnormal, 3 * subnormal, info.smallest_normal - subnormal]
    positive += [info.smallest_normal, info.eps, 0.25, 0.5, 1.0, 1.5, 2.5, 7.5, 8.0, 14.5, 15.5]
    positive += [126.5, 127.0, 127.5, 128.0, 128.5, 254.5, 255.5, 256.0, 2048.0, 32767.5]
    positive += [2.0**23 + 0.5, 2.0**24 + 1, 2.0**31, 3e9, 2.0**53 + 1, 2.0**63, 1e19]
    positive += [info.max / 2, info.max, math.inf, math.nan]
    values = torch.tensor(positive, dtype=torch.float64).to(dtype)
    return torch.cat([values, -values])


def bit_patterns(dtype: torch.dtype, count: int, seed: int = 0) -> Tensor:
    """Random bits read as `dtype`: every exponent equally often, NaN payloads too."""
    width = torch.finfo(dtype).bits
    if width == 16 and count == 65536:
        return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    raw = torch.randint(-(2**15), 2**15, (count * width // 16,), generator=generator(seed))
    return raw.to(torch.int16).view(dtype)


def scales(shape: Shape, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Positive scales around 1/16: a third of them powers of two, so that ties are exact."""
    gen = generator(seed)
    exponent = torch.randint(-7, 0, shape, generator=gen).to(dtype)
    mantissa = 1 + torch.rand(shape, generator=gen, dtype=torch.float64).to(dtype)
    power_of_two = torch.rand(shape, generator=gen) < 1 / 3
    return torch.where(power_of_two, torch.ones_like(mantissa), mantissa) * 2**exponent


def special_scales(dtype: torch.dtype) -> Tensor:
    """Scales no one should pass, and the edges of those one may."""
    info = torch.finfo(dtype)
    tiny = info.smallest_normal
    values = [0.0, -0.0, -0.5, -1.0, math.nan, math.inf, -math.inf, tiny * info.eps, tiny / 2]
    values += [tiny, tiny * 3, info.max, info.max / 3, 1.0, 3.0, 0.1, 1 / 3, 7e-5, 1e-20, 1e20]
    return torch.tensor(values, dtype=dtype)


def zero_points(shape: Shape, quant_range: tuple[int, int], seed: int = 0) -> Tensor:
    """int32 zero points of the range, its ends, and some beyond it (legal in a tensor)."""
    low, high = quant_range
    values = torch.randint(low, high + 1, shape, generator=generator(seed))
    pick = torch.randint(0, 12, shape, generator=generator(seed + 1))
    for index, value in enumerate((low, high, low - 3, high + 1000)):
        values = torch.where(pick == index, torch.tensor(value), values)
    return values.clamp(INT32_MIN, INT32_MAX).to(torch.int32)


SPECIAL_ZERO_POINTS = (0, 1, -1, 127, -128, 255, 300, -1000, 2**24 + 1, INT32_MIN, INT32_MAX)


def adversarial(full_scale: Tensor, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Values of `full_scale`'s shape: near and on ties, over the range, any bits, all specials."""
    shape, count = full_scale.shape, full_scale.numel()
    gen = generator(seed)
    scale = full_scale.double().reshape(-1)
    half = torch.randint(-600, 600, (count,), generator=gen) / 2
    on_tie = (half * scale).to(dtype)
    toward = torch.where(torch.rand(count, generator=gen) < 0.5, math.inf, -math.inf).to(dtype)
    near_tie = torch.nextafter(on_tie, toward)
    spread = (torch.randn(count, generator=gen, dtype=torch.float64) * 100 * scale).to(dtype)
    anything = bit_patterns(dtype, count, seed + 1)
    choice = torch.randint(0, 4, (count,), generator=gen)
    values = on_tie
    for index, other in enumerate((near_tie, spread, anything)):
        values = torch.where(choice == index, other, values)
    special = special_values(dtype)
    where = torch.randperm(count, generator=gen)[: min(8 * len(special), count)]
    values[where] = special.repeat(8)[: len(where)]
    return values.reshape(shape)


def gradients(shape: Shape, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Incoming gradients of which one in sixteen is ±0, ±inf, NaN, subnormal or the largest."""
    gen = generator(seed)
    values = torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)
    special = special_values(dtype)
    pick = special[torch.randint(0, len(special), shape, generator=gen)]
    return torch.where(torch.rand(shape, generator=gen) < 1 / 16, pick, values)


def expand(param: Tensor, granularity: Granularity, shape: Shape) -> Tensor:
    """One entry of `param` for each element of an input of `shape`."""
    ndim = len(shape)
    param = param.reshape(granularity.param_shape(shape))
    if granularity.kind == "per_channel":
        axis = granularity.axis % ndim
        param = param.reshape([shape[d] if d == axis else 1 for d in range(ndim)])
    if granularity.kind == "per_group":
        axis = granularity.axis % ndim
        segment = torch.arange(shape[axis], device=param.device) // granularity.group_size
        param = param.index_select(axis, segment)
    return param.expand(shape)


def to(device: str, *tensors: Tensor | None) -> list[Tensor | None]:
    """Copies on a device (values only: apply a layout after this)."""
    return [None if t is None else t.to(device) for t in tensors]
