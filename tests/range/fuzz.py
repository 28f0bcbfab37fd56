# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of the range family, often wrong."""

from random import Random

import numpy as np
import torch
from torch import Tensor

from tests.affine.fuzz import wrong_granularity
from tests.support import cases
from tests.support.bad_arguments.range import COUNTER, DATA, FLAGS, WRITTEN
from tests.support.bits import assert_same_bits, to_numpy
from tests.support.calls.affine import outputs
from tests.support.calls.range import FAKE_CALLS, OBSERVE_CALLS, OTHER_CALLS
from tests.support.cases import PER_TENSOR, per_channel
from tests.support.family_cases import random_calls as calls
from tests.support.family_cases.range import CLEAN, RANGES, characterful
from tests.support.oracle import affine as oracle
from tests.support.oracle.range import Dynamic, Observed

OPTIONS = {
    ("quant_min", "quant_max"): RANGES,
    ("symmetric",): ((True,), (False,)),
    ("averaging_constant",): [(c,) for c in (None, 0.01, 0.3, 1.0, *calls.FLOATS)],
    ("skipped_batches",): [(torch.tensor(-3),), (torch.tensor([5]),)],
}


def of_a_character(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Or few ranges would have a finite scale."""
    character = CLEAN[seed % len(CLEAN)]
    return characterful(shape, dtype, PER_TENSOR, seed=seed, characters=(character,))


class Call(calls.Call):
    """`axis` of an observer is its granularity."""

    @property
    def written(self) -> list[str]:
        return [k for k in (*WRITTEN, COUNTER) if self.arguments.get(k) is not None]

    def __call__(self, device: str, namespace: object) -> tuple[Tensor, ...]:
        """The results, and the written tensors; they are copies of the call's."""
        moved = {k: calls.move(v, device) for k, v in self.arguments.items()}
        state = {k: moved[k].clone() for k in self.written}
        result = self.function(namespace)(**(moved | state))
        return (*(() if result is None else outputs(result)), *state.values())


# --- what the contract says of a call ------------------------------------------------------------


def broken_rules(call: Call) -> set[type[Exception]]:
    """The exceptions that the contract allows for this call; none where the call is right."""
    a, found = call.all, set[type[Exception]]()
    shape, dtype = tuple(a["input"].shape), a["input"].dtype
    if dtype not in cases.FLOAT_DTYPES:
        found.add(TypeError)
    found |= wrong_granularity(call.granularity, shape)
    compute = cases.compute_dtype(dtype)
    params: list[tuple[int, ...]] = [(), (1,)]
    if call.granularity.kind == "per_channel" and not found & {IndexError}:
        params = [call.granularity.param_shape(shape)]
    allowed = dict.fromkeys(WRITTEN, (compute,)) | dict.fromkeys(FLAGS, (torch.uint8, torch.bool))
    allowed |= {"zero_point": (torch.int32,), COUNTER: (torch.int64,)}
    for name, dtypes in allowed.items():
        if name in a:
            shapes = {**dict.fromkeys(WRITTEN, params), COUNTER: ((), (1,))}.get(name)
            if a[name].dtype not in dtypes:
                found.add(TypeError)
            if tuple(a[name].shape) not in shapes if shapes else a[name].numel() != 1:
                found.add(ValueError)
    constant = a.get("averaging_constant")
    if constant is not None and not 0 < constant <= 1:
        found.add(ValueError)
    return found | wrong_range(call, dtype)


def wrong_range(call: calls.Call, dtype: torch.dtype) -> set[type[Exception]]:
    a, found = call.all, set[type[Exception]]()
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
    a, granularity = call.all, call.granularity
    ends = a.get("quant_min", 0), a.get("quant_max", 0)
    if call.verb in DATA:
        rule = Dynamic(a["input"], granularity, *ends, a["symmetric"])
        if call.verb == "dynamic_fake_quantize":
            return assert_same_bits(got[0], rule.fake_quantize())
        assert_same_bits(got[-2], rule.scale)
        assert_same_bits(got[-1], rule.zero_point)
        if call.verb == "dynamic_range_quantize":
            assert_same_bits(got[0], rule.quantize(a["dtype"]))
        return None
    expected = {k: to_numpy(a[k]).copy() for k in state}
    axis = a.get("axis")
    if a.get("observer_enabled", torch.ones(1)).any() and a["input"].numel() > 0:
        params = () if axis is None else expected["min_val"].shape
        before = Observed(*(expected[k].reshape(params) for k in WRITTEN[:2]))
        seen = before.after(a["input"], axis, a.get("averaging_constant"))
        found = dict(zip(WRITTEN, seen[:2], strict=False))
        if "scale" in state:
            chosen = seen.qparams(ends, a["symmetric"], (expected["scale"], expected["zero_point"]))
            found |= dict(zip(WRITTEN[2:], chosen, strict=True))
        if COUNTER in state:
            found[COUNTER] = expected[COUNTER] + seen.skipped
        expected = {k: np.asarray(found[k]).reshape(v.shape) for k, v in expected.items()}
    for name, value in expected.items():
        assert_same_bits(state[name], value, name)
    if call.verb == "observe_min_max_":
        assert not got
        return None
    if not a["fake_quant_enabled"].any():
        return assert_same_bits(got[0], a["input"])
    kind = PER_TENSOR if axis is None else per_channel(axis)
    params = (torch.from_numpy(expected[k].copy()) for k in WRITTEN[2:])
    rule = oracle.Affine(a["input"], *params, kind, *ends)
    return assert_same_bits(got[0], rule.fake_quantize())


# Of an observer, whose calls have axes up to 1.
MATRICES = [shape for shape in calls.SHAPES if len(shape) > 1]


def make(rng: Random) -> calls.Call:
    right = calls.right_call(rng, (*FAKE_CALLS, *OTHER_CALLS), calls.SHAPES[1:])
    if calls.one_in(rng, 2):
        right = calls.right_call(rng, OBSERVE_CALLS, MATRICES)
    call, makers = Call(right.name, right.arguments), (calls.tensor, of_a_character)
    return calls.changed(rng, call, OPTIONS, makers)


if __name__ == "__main__":
    calls.run(make, broken_rules, check_values, 1000)
