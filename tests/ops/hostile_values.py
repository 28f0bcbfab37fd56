# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that nobody should pass, by the type that a schema gives them."""

import contextlib
import math
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support import cases

PUBLIC = [getattr(torch, name) for name in dir(torch) if not name.startswith("_")]
DTYPES = tuple(dict.fromkeys(value for value in PUBLIC if isinstance(value, torch.dtype)))
WHOLE = (*cases.INTEGER_DTYPES, torch.int16, torch.int32, torch.int64)
INTEGERS = (0, 1, -1, 2, 3, -2, 7, 8, 127, 128, -128, -129, 255, 256, 2**15, 2**24 + 1)
INTEGERS += (2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**62, 2**63 - 1, -(2**63), 2**63, -(2**70))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.1, 1e-45, 1e-320, 1e308, -1e308, 2.0**63)
FLOATS += (math.nan, math.inf, -math.inf)
OBJECTS: tuple[Any, ...] = (None, "three", [1.0, 2.0], (), {}, b"1", object(), 1j, torch.float32)
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)  # of PyTorch's own
SIZES = (0, 1, 2, 3, 4, 5, 8, 17, 33)


class Subclass(Tensor):
    """A tensor of another Python type."""


def values(rng: Random, t: Tensor) -> Tensor:
    """The same tensor with other numbers: special ones, any bits, or one for all."""
    if t.dtype in WHOLE:
        info = torch.iinfo(t.dtype)
        return torch.full_like(t, rng.choice((info.min, info.max, 0, 1)))
    if t.dtype not in cases.FLOAT_DTYPES:
        return t
    special = cases.special_values(t.dtype)
    if rng.random() < 0.5:
        return torch.full_like(t, special[rng.randrange(len(special))].item())
    picked = torch.randint(0, len(special), t.shape, generator=cases.generator(rng.randrange(99)))
    return special[picked].to(t.dtype)


def layout(rng: Random, t: Tensor) -> Tensor:
    """The same shape and dtype; strides that step, overlap, repeat or begin anywhere."""
    if t.dim() == 0:
        return torch.stack([t, t])[1]
    if t.dim() == 4 and rng.random() < 0.3:
        return t.contiguous(memory_format=torch.channels_last)
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
        lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        lambda t: torch.cat([t.new_zeros(1), t.reshape(-1)])[1:].view(t.shape),
        lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
        lambda t: t[:1].expand(t.shape) if t.shape[0] else t,
        lambda t: t.flip(0).flip(0),
        overlapping,
    ]
    if t.dtype.is_floating_point or t.dtype.is_complex:
        ways.append(lambda t: torch._neg_view(t.contiguous()))
        ways.append(lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype))
    return rng.choice(ways)(t)


def overlapping(t: Tensor) -> Tensor:
    """Each row begins one element after the one before it."""
    if t.dim() < 2 or t.numel() == 0:
        return t
    flat = t.reshape(-1)
    strides = [1] * t.dim()
    reach = 1 + sum(size - 1 for size in t.shape)
    flat = flat if flat.numel() >= reach else flat.repeat(1 + reach // flat.numel())
    return flat.as_strided(t.shape, strides)


def shape(rng: Random, t: Tensor) -> Tensor:
    """The same dtype in another shape."""
    sizes = list(t.shape)
    kind = rng.randrange(8)
    if kind == 0:
        return t.reshape(-1)
    if kind == 1:
        return t.unsqueeze(rng.randint(0, t.dim()))
    if kind == 2:
        return t.new_ones(())
    if kind == 3:
        return t.new_ones(sizes[1:])
    if kind == 4 and sizes:
        sizes[rng.randrange(len(sizes))] = rng.choice(SIZES)
        return t.new_ones(sizes)
    if kind == 5:
        return t.new_ones([rng.choice(SIZES[:5]) for _ in range(rng.randint(0, 6))])
    if kind == 6:
        return t.new_ones([1] * rng.choice((20, 64, 65)))
    # Too large to be taken for real, so that a loop over it could not end.
    return t.new_ones(1).expand([2 ** rng.choice((46, 62)), *sizes[:1]])


def dtype(rng: Random, t: Tensor) -> Tensor:
    other = rng.choice(DTYPES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a complex number loses its imaginary part
            return t.detach().to(other)
    except (RuntimeError, NotImplementedError, TypeError):  # of types such as bits or qint8
        return torch.empty(t.shape, dtype=other)


def kind(rng: Random, t: Tensor) -> Any:
    """The same tensor elsewhere, of another layout, of another class."""
    t = t.detach()
    makers: list[Callable[[], Any]] = [
        lambda: t.to("meta"),
        lambda: t.to_sparse(),
        lambda: t.float().reshape(1, -1).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([t, t]),
        lambda: torch.nested.nested_tensor([t.reshape(-1)] * 2, layout=torch.jagged),
        lambda: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
        lambda: t.float().to_mkldnn(),
        lambda: t.as_subclass(Subclass),
        lambda: torch.nn.Parameter(t.double()),
        lambda: torch.nn.parameter.UninitializedParameter(),
        lambda: t.float().requires_grad_(),
        lambda: t.numpy(),
        lambda: t.reshape(-1)[0].item(),
        lambda: t.tolist(),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested, quantized and sparse tensors announce themselves
        try:
            return rng.choice(makers)()
        except (RuntimeError, TypeError, IndexError, NotImplementedError):
            return t.to("meta")


def tensor(rng: Random, right: Any) -> Any:
    """Something in place of a tensor that was right, or of the None that was."""
    t = right if isinstance(right, Tensor) else torch.ones(rng.choice(((), (1,), (4,), (3, 4))))
    roll = rng.random()
    if roll < 0.1:
        return rng.choice((*OBJECTS, *FLOATS[:3], *INTEGERS[:3]))
    made: Any = t
    change = rng.choice((values, layout, layout, shape, shape, dtype, kind))
    with contextlib.suppress(*REFUSALS):
        made = change(rng, t)
        if type(made) is Tensor and made.numel() < 2**24 and rng.random() < 0.2:
            made = rng.choice((values, layout))(rng, made)
    return made


def integer(rng: Random, right: Any) -> Any:
    if rng.random() < 0.15:
        return rng.choice((*OBJECTS, 1.5, True, np.int64(3), np.int8(-1), torch.tensor(2)))
    near = right + rng.choice((-1, 1)) if isinstance(right, int) else 1
    return rng.choice((*INTEGERS, near))


def floating(rng: Random, right: Any) -> Any:
    if rng.random() < 0.15:
        return rng.choice((*OBJECTS, 3, True, np.float32(0.5), torch.tensor(0.5), 2**70))
    return rng.choice(FLOATS)


def boolean(rng: Random, right: Any) -> Any:
    return rng.choice((not right, not right, *OBJECTS, 0, 1, 2, 0.5, np.True_))


def scalar_type(rng: Random, right: Any) -> Any:
    if rng.random() < 0.15:
        return rng.choice((*OBJECTS, *range(50), 127, 128, 1000, -1, 2**40, "float32", np.float32))
    return rng.choice((*cases.QUANTIZED_DTYPES, *DTYPES))


def integers(rng: Random, right: Any) -> Any:
    right = list(right) if isinstance(right, (list, tuple)) else [0]
    made = [right[::-1], right[1:], [*right, 0]]
    made.append([rng.choice(INTEGERS[:24]) for _ in range(rng.randint(0, 6))])
    made += [[0] * len(right), [-1] * len(right), [0] * 65]
    return rng.choice((*made, *OBJECTS))


WORDS = ("float", "int8_input", "int8", "nearest", "stochastic", "", "Int8", "int8 ", "\u00fc")
WORDS += ("x" * 999,)


def string(rng: Random, right: Any) -> Any:
    if rng.random() < 0.15:
        return rng.choice((*(o for o in OBJECTS if not isinstance(o, str)), 1, 0.5, True))
    return rng.choice(WORDS)


BY_TYPE: dict[str, Callable[[Random, Any], Any]] = {
    "Tensor": tensor,
    "int": integer,
    "SymInt": integer,
    "float": floating,
    "bool": boolean,
    "str": string,
    "ScalarType": scalar_type,
    "List[int]": integers,
}


def instead_of(rng: Random, type_name: str, right: Any) -> Any:
    """Some value for an argument whose schema says `type_name`."""
    name = type_name.removeprefix("Optional[")
    if name != type_name:
        name = name.removesuffix("]")
        if rng.random() < 0.2:
            return None
    return BY_TYPE[name](rng, right)
