# SPDX-License-Identifier: BSD-3-Clause
"""An input with some weights: each output has the bits of the product with that weight alone."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant  # noqa: F401 - registers the ops
from tests.support import cases
from tests.support.bits import assert_same_bits
from tests.support.cuda import capture
from tests.support.family_cases.int8_mm import integers

OPS = torch.ops.baraquant
KINDS = ("int8", "int4", "int4 with zero points", "floating", "floating packed")
DEPTHS = (64, 1056)
OUTPUTS = ((16,), (24, 8), (40, 1, 7), (1024, 256, 256, 8, 40), (6400, 6400))
ROWS = (1, 2, 4, 8, 9, 33)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Call = tuple[Any, list[Any], dict[str, Any]]


def weights(kind: str, outputs: tuple[int, ...], depth: int, dtype: torch.dtype) -> dict[str, Any]:
    """The lists of a kind, by their names among the arguments of one product."""
    is_float, compute = kind.startswith("floating"), cases.compute_dtype(dtype)
    values = [integers((n, depth), torch.int8, "random", n) for n in outputs]
    if "int4" in kind or "packed" in kind:
        values = [integers((n, depth // 2), torch.uint8, "random", n) for n in outputs]
    groups = depth // 32 if kind != "int8" else 1
    params = [(n, groups) if is_float else (n,) for n in outputs]
    lists: dict[str, Any] = {
        "weight_scale": [cases.scales(shape, compute, shape[0]) for shape in params],
        "bias": [cases.scales((n,), dtype, n) for n in outputs],
    }
    if "int4" in kind:
        lists["group_factor"] = [integers((n, groups), torch.uint8, "random", n) for n in outputs]
    if kind == "int4 with zero points":
        lists["group_zero_point"] = [
            integers((n, groups), torch.uint8, "random", n) % 16 for n in outputs
        ]
    return {"packed" if "int4" in kind else "weight": values, **lists}


def calls(
    kind: str, rows: int, outputs: tuple[int, ...], depth: int, dtype: torch.dtype, *, more: bool
) -> tuple[Call, list[Call]]:
    """The call of the op of several, and those of each product; `more` gives a bias and points."""
    lists = weights(kind, outputs, depth, dtype)
    if not more:
        del lists["bias"]
    if kind.startswith("floating"):
        x = cases.scales((rows, depth), dtype, 1)
        points = [cases.zero_points(s.shape, (0, 15), 2) for s in lists["weight_scale"]]
        named = lists | ({"weight_zero_point": points} if more else {})
        order = ["weight", "weight_scale", "bias", "weight_zero_point"]
        op, single, options = OPS._weight_only_linears, OPS.weight_only_linear, {"group_size": 32}
        args = [x, *(named.get(name) for name in order), 32]
    else:
        x = integers((rows, depth), torch.int8, "random", 1)
        options = {"input_scale": cases.scales((rows,), cases.compute_dtype(dtype), 3)}
        options |= {"dtype": dtype}
        if more:
            options["input_zero_point"] = cases.zero_points((rows,), (-128, 127), 4)
        named = lists
        scale, point = options["input_scale"], options.get("input_zero_point")
        if kind == "int8":
            op, single = OPS._int8_linears, OPS.int8_linear
            args = [x, named["weight"], scale, named["weight_scale"], named.get("bias")]
        else:
            op, single = OPS._int4_linears, OPS.int4_linear
            options["group_size"] = 32
            args = [x, named["packed"], scale, named["weight_scale"], named["group_factor"], 32]
            args += [named.get("bias"), named.get("group_zero_point")]
        args += [point, None, dtype]
    singles = [
        (single, [x], options | {name: values[i] for name, values in named.items()})
        for i in range(len(outputs))
    ]
    return (op, args, {}), singles


def moved(call: Call, device: str) -> Call:
    def move(value: Any) -> Any:
        if isinstance(value, list):
            return [move(one) for one in value]
        return value.to(device) if isinstance(value, Tensor) else value

    op, args, kwargs = call
    return op, [move(value) for value in args], {n: move(value) for n, value in kwargs.items()}


def run(call: Call, device: str) -> Any:
    op, args, kwargs = moved(call, device)
    return op(*args, **kwargs)


def is_possible(kind: str, dtype: torch.dtype, outputs: tuple[int, ...], depth: int) -> bool:
    """Leave out what takes long on a CPU, and shows nothing more."""
    return sum(outputs) < 5000 or (dtype == torch.bfloat16 and depth == 64 and kind != "int8")


CASES = [
    case
    for case in itertools.product(KINDS, DTYPES, OUTPUTS, DEPTHS)
    if is_possible(case[0], case[1], case[2], case[3])
]


@pytest.mark.parametrize("more", (False, True), ids=("plain", "more"))
@pytest.mark.parametrize(("kind", "dtype", "outputs", "depth"), CASES, ids=str)
@pytest.mark.cover(("kind", "outputs", "depth"), ("kind", "dtype", "more"))
def test_the_bits_of_each_alone(
    kind: str, dtype: torch.dtype, outputs: tuple[int, ...], depth: int, more: bool, device: str
) -> None:
    for rows in ROWS:
        together, singles = calls(kind, rows, outputs, depth, dtype, more=more)
        results = run(together, device)
        assert len(results) == len(outputs)
        for result, single in zip(results, singles, strict=True):
            assert_same_bits(result, run(single, device), f"{rows} rows")
            assert result.is_contiguous() and result.storage_offset() == 0
        shapes = [tuple(one.shape) for one in run(together, "meta")]
        assert shapes == [tuple(one.shape) for one in results]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_each_alone(kind: str, device: str) -> None:
    found = []
    for one_by_one in (False, True):
        together, singles = calls(kind, 3, (24, 8), 64, torch.float32, more=True)
        biases, results = [], []
        for call in singles if one_by_one else [together]:
            op, args, kwargs = moved(call, device)
            names = [argument.name for argument in op.default._schema.arguments]
            own = [kwargs["bias"]] if one_by_one else args[names.index("biases")]
            biases += [bias.requires_grad_() for bias in own]
            made = op(*args, **kwargs)
            results += [made] if one_by_one else made
        for result in results:
            result.sin().sum().backward()
        found.append([bias.grad for bias in biases])
    for left, right in zip(*found, strict=True):
        assert_same_bits(left, right)


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_and_autocast_are_those_of_each_alone(kind: str, device: str) -> None:
    """A batch of the input, and of an input's scales and zero points; of nothing else."""
    together, singles = calls(kind, 6, (24, 8), 64, torch.float32, more=True)
    (op, args, _), singles = moved(together, device), [moved(one, device) for one in singles]
    batched = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    args = [a.unflatten(0, (2, 3)) if i in batched else a for i, a in enumerate(args)]
    found = torch.vmap(op, tuple(0 if i in batched else None for i in range(len(args))))(*args)
    for result, (single, given, options) in zip(found, singles, strict=True):
        assert_same_bits(result.flatten(0, 1), single(*given, **options))
    for i, own in enumerate(args):
        if isinstance(own, list):
            repeated = [*args[:i], [torch.stack((one, one)) for one in own], *args[i + 1 :]]
            for others in ([], batched):
                dims = tuple(0 if j in (i, *others) else None for j in range(len(args)))
                with pytest.raises(NotImplementedError, match=r"torch\.vmap over .* Call the op"):
                    torch.vmap(op, dims)(*repeated)
    args = [a.flatten(0, 1) if j in batched else a for j, a in enumerate(args)]
    with torch.autocast(device, torch.bfloat16):
        for result, (single, given, options) in zip(op(*args), singles, strict=True):
            assert_same_bits(result, single(*given, **options))
            assert (result.dtype == torch.bfloat16) == kind.startswith("floating")


def test_what_is_refused() -> None:
    for kind in KINDS:
        (op, args, _), _ = calls(kind, 2, (24, 8), 64, torch.float32, more=True)
        lists = [i for i, value in enumerate(args) if isinstance(value, list) and value]
        for i in lists:
            changed = [*args]
            changed[i] = changed[i][:1]
            with pytest.raises(ValueError, match="a tensor for each of"):
                op(*changed)
        changed = [*args]
        changed[1] = [changed[1][0], changed[1][1][:, :-1].contiguous()]
        with pytest.raises((ValueError, TypeError), match="expected"):
            op(*changed)
        changed = [*args]
        bias = next(i for i, a in enumerate(op.default._schema.arguments) if a.name == "biases")
        changed[bias] = [one._neg_view() for one in args[bias]]
        with pytest.raises(NotImplementedError, match="expected biases to hold their values"):
            op(*changed)
        assert op(args[0], *([] if isinstance(value, list) else value for value in args[1:])) == []


@pytest.mark.cuda
@pytest.mark.parametrize(("kind", "rows"), [(kind, 1) for kind in KINDS] + [(KINDS[-1], 8)])
def test_few_rows_are_one_launch(kind: str, rows: int, cuda: str) -> None:
    """And right in a graph, whose kernels begin before the last ones have ended."""
    together, _ = calls(kind, rows, (128, 64, 64), 256, torch.bfloat16, more=True)
    expected = run(together, cuda)
    op, args, _ = moved(together, cuda)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        op(*args)
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    products = [name for name in names if "vector_kernel" in name or "few_rows_kernel" in name]
    assert len(products) == 1, names
    graph, captured = capture(lambda: op(*args))
    for _ in range(3):
        graph.replay()
    for result, right in zip(captured, expected, strict=True):
        assert_same_bits(result, right)
