# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the range family, mostly wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.affine.fuzz import (
    AXES,
    EDGES,
    GROUP_SIZES,
    INPUT_DTYPES,
    KINDS,
    OUTPUTS,
    SHAPES,
    wrong_granularity,
)
from tests.support import cases
from tests.support.bad_arguments.range import COUNTER, DATA, FLAGS, OBSERVERS, WRITTEN
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.calls.affine import outputs
from tests.support.cases import PER_TENSOR, Granularity, per_channel
from tests.support.family_cases.random_calls import move, run, tensor
from tests.support.family_cases.range import CLEAN, characterful
from tests.support.oracle import affine as oracle
from tests.support.oracle.range import Dynamic, Observed

PARAM_DTYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64)
FLAG_DTYPES = (torch.float32, torch.int32, torch.complex64)
CONSTANTS = (0.0, -0.5, 1.5, math.nan, math.inf, -math.inf)
RANGES = ((-128, 127), (-8, 7), (0, 127), (3, 100), (-100, -3))


@dataclass
class Call:
    """An op and its arguments. `axis` of an observer is its granularity."""

    verb: str
    granularity: Granularity
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.granularity.kind}" if self.verb in DATA else self.verb

    @property
    def written(self) -> list[str]:
        return [k for k in (*WRITTEN, COUNTER) if k in self.arguments]

    def __call__(self, device: str, namespace: object) -> tuple[Tensor, ...]:
        """The results, and the written tensors; they are copies of the call's."""
        moved = {k: move(v, device) for k, v in self.arguments.items()}
        state = {k: moved[k].clone() for k in self.written}
        result = getattr(namespace, self.name)(**(moved | state))
        return (*(() if result is None else outputs(result)), *state.values())


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Each argument is right nine times out of ten."""

    def choose(right: Any, wrong: tuple) -> Any:
        return draw(st.sampled_from(wrong)) if draw(st.integers(0, 9)) > 8 else right

    verb = draw(st.sampled_from((*DATA, *OBSERVERS)))
    shape, seed = draw(st.sampled_from(SHAPES)), draw(st.integers(0, 99))
    ndim = len(shape)
    axis = choose(draw(st.integers(-ndim, max(ndim - 1, -ndim))), AXES)
    group_size = choose(draw(st.sampled_from((1, 2, 3, 100))), GROUP_SIZES)
    kinds = KINDS if verb in DATA else KINDS[:2]
    granularity = Granularity(draw(st.sampled_from(kinds)), axis, group_size)
    dtype = choose(draw(st.sampled_from(cases.FLOAT_DTYPES)), INPUT_DTYPES)
    x = tensor(shape, dtype, seed, 20)
    if dtype.is_floating_point and draw(st.booleans()):  # or few would have a finite scale
        character = draw(st.sampled_from(CLEAN))
        x = characterful(shape, dtype, PER_TENSOR, seed=seed, characters=(character,))
    arguments: dict[str, Any] = {"input": x}
    if verb in OBSERVERS:
        arguments |= draw(observer_arguments(verb, granularity, shape, dtype, seed))
    if granularity.kind == "per_group":
        arguments["group_size"] = group_size
    if granularity.kind in ("per_channel", "per_group"):
        arguments["axis"] = axis
    if verb != "observe_min_max_":
        low, high = draw(st.sampled_from(RANGES))
        arguments |= {"quant_min": choose(low, EDGES), "quant_max": choose(high, EDGES)}
        arguments["symmetric"] = draw(st.booleans())
    if verb == "dynamic_range_quantize":
        arguments["dtype"] = choose(torch.int8, OUTPUTS)
    return Call(verb, granularity, arguments)


@st.composite
def observer_arguments(
    draw: st.DrawFn,
    verb: str,
    granularity: Granularity,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
) -> dict[str, Any]:
    def choose(right: Any, wrong: tuple) -> Any:
        return draw(st.sampled_from(wrong)) if draw(st.integers(0, 19)) > 18 else right

    right = (1,) if wrong_granularity(granularity, shape) else granularity.param_shape(shape)
    compute = cases.compute_dtype(dtype)
    found: dict[str, Any] = {}
    names = WRITTEN[:2] if verb == "observe_min_max_" else WRITTEN[:3]
    for index, name in enumerate(names):
        made = tensor(choose(right, SHAPES), choose(compute, PARAM_DTYPES), seed + index)
        found[name] = made.nan_to_num() if draw(st.booleans()) else made
    if verb == "observe_fake_quantize":
        point = tensor(choose(right, SHAPES), choose(torch.int32, PARAM_DTYPES), seed + 5)
        found["zero_point"] = point
        for name in FLAGS:
            flag = choose(draw(st.sampled_from((torch.uint8, torch.bool))), FLAG_DTYPES)
            on = torch.tensor(draw(st.booleans())).to(flag)
            found[name] = on.expand(choose(draw(st.sampled_from(((), (1,)))), SHAPES)).clone()
    if draw(st.booleans()):
        counter = torch.tensor(draw(st.integers(-9, 9))).to(choose(torch.int64, PARAM_DTYPES))
        found[COUNTER] = counter.expand(choose(draw(st.sampled_from(((), (1,)))), SHAPES)).clone()
    constant = draw(st.sampled_from((None, 0.01, 0.3, 1.0)))
    return found | {"averaging_constant": choose(constant, CONSTANTS)}


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, found = call.arguments, set[type[Exception]]()
    shape, dtype = tuple(a["input"].shape), a["input"].dtype
    if dtype not in cases.FLOAT_DTYPES:
        found.add(TypeError)
    found |= wrong_granularity(call.granularity, shape)
    compute = cases.compute_dtype(dtype)
    params: list[tuple[int, ...]] = [(), (1,)]
    if call.granularity.kind == "per_channel" and not found & {IndexError}:
        params = [call.granularity.param_shape(shape)]
    for name in WRITTEN:
        if name in a:
            if a[name].dtype != (torch.int32 if name == "zero_point" else compute):
                found.add(TypeError)
            if tuple(a[name].shape) not in params:
                found.add(ValueError)
    for name in FLAGS:
        if name in a:
            if a[name].dtype not in (torch.uint8, torch.bool):
                found.add(TypeError)
            if a[name].numel() != 1:
                found.add(ValueError)
    if COUNTER in a:
        if a[COUNTER].dtype != torch.int64:
            found.add(TypeError)
        if tuple(a[COUNTER].shape) not in ((), (1,)):
            found.add(ValueError)
    constant = a.get("averaging_constant")
    if constant is not None and not 0 < constant <= 1:
        found.add(ValueError)
    return found | wrong_range(call, dtype)


def wrong_range(call: Call, dtype: torch.dtype) -> set[type[Exception]]:
    a, found = call.arguments, set[type[Exception]]()
    output = a.get("dtype")
    if output is not None and output not in cases.INTEGER_DTYPES:
        found.add(TypeError)
        output = None
    if "quant_min" in a:
        ends = a["quant_min"], a["quant_max"]
        holder = output or (dtype if dtype == torch.float64 else torch.float32)
        int32 = ends[0] >= cases.INT32_MIN and ends[1] <= cases.INT32_MAX
        steps = ends[1] - ends[0]
        if steps < (2 if a["symmetric"] else 1) or not cases.fits(ends, holder) or not int32:
            found.add(ValueError)
    return found


def check_values(call: Call, found: tuple[Tensor, ...]) -> None:
    """The oracle's bits."""
    count = len(found) - len(call.written)
    got, state = found[:count], dict(zip(call.written, found[count:], strict=True))
    a, granularity = call.arguments, call.granularity
    ends = a.get("quant_min", 0), a.get("quant_max", 0)
    if call.verb in DATA:
        rule = Dynamic(a["input"], granularity, *ends, a["symmetric"])
        if call.verb == "dynamic_fake_quantize":
            return assert_same_bits(got[0], rule.fake_quantize(), str(call))
        assert_same_bits(got[-2], rule.scale, str(call))
        assert_same_bits(got[-1], rule.zero_point, str(call))
        if call.verb == "dynamic_range_quantize":
            assert_same_bits(got[0], rule.quantize(a["dtype"]), str(call))
        return None
    expected = {k: to_numpy(a[k]).copy() for k in state}
    axis = a.get("axis")
    if a.get("observer_enabled", torch.ones(1)).any() and a["input"].numel() > 0:
        params = () if axis is None else expected["min_val"].shape
        before = Observed(*(expected[k].reshape(params) for k in WRITTEN[:2]))
        seen = before.after(a["input"], axis, a["averaging_constant"])
        found = dict(zip(WRITTEN, seen[:2], strict=False))
        if "scale" in state:
            chosen = seen.qparams(ends, a["symmetric"], (expected["scale"], expected["zero_point"]))
            found |= dict(zip(WRITTEN[2:], chosen, strict=True))
        if COUNTER in state:
            found[COUNTER] = expected[COUNTER] + seen.skipped
        expected = {k: np.asarray(found[k]).reshape(v.shape) for k, v in expected.items()}
    for name, value in expected.items():
        assert_same_bits(state[name], value, f"{name} of {call}")
    if call.verb == "observe_min_max_":
        assert not got
        return None
    if not a["fake_quant_enabled"].any():
        return assert_same_bits(got[0], a["input"], str(call))
    kind = PER_TENSOR if axis is None else per_channel(axis)
    params = (torch.from_numpy(expected[k].copy()) for k in WRITTEN[2:])
    rule = oracle.Affine(a["input"], *params, kind, *ends)
    return assert_same_bits(got[0], rule.fake_quantize(), str(call))


if __name__ == "__main__":
    run(calls(), broken_rules, check_values, 1000)
