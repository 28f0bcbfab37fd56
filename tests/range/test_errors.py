# SPDX-License-Identifier: BSD-3-Clause
"""What a wrong call of an observer writes: nothing; ops/test_wrong_calls.py has the words."""

import pytest
import torch

from tests.support.bad_arguments.range import BAD, OBSERVERS, OPS, WRITTEN, Op


@pytest.mark.parametrize("op", [op for op in OPS if op.verb in OBSERVERS], ids=str)
def test_nothing_is_written_by_a_wrong_call(op: Op, device: str) -> None:
    """Arguments are checked before any of the tensors changes."""
    for bad in BAD:
        if not bad.applies(op):
            continue
        arguments = op.arguments(device) | bad.also
        arguments["input"] = 3 * arguments["input"]
        before = {n: arguments[n].clone() for n in WRITTEN if n in arguments}
        kept = {n: arguments[n] for n in before}
        arguments[bad.argument] = bad.change(arguments)
        with pytest.raises(bad.error):
            op(arguments)
        for name, value in before.items():
            assert torch.equal(kept[name], value), f"{bad}: {name}"


def test_written_tensors_share_no_memory(any_device: str) -> None:
    """Whole or in part, seen through any view or dtype; neighbours in one buffer are fine."""
    ops = torch.ops.baraquant
    x = torch.ones(3, 4, device=any_device)
    buffer, other = (torch.ones(16, device=any_device) for _ in range(2))
    point = torch.zeros(4, dtype=torch.int32, device=any_device)
    on = torch.ones(1, dtype=torch.uint8, device=any_device)
    for second in (buffer[:4], buffer[3:7], buffer.view(2, 8)[0, 1:5]):
        with pytest.raises(ValueError, match=r"^baraquant::observe_min_max_: .*min_val.*max_val"):
            ops.observe_min_max_(x, buffer[:4], second, 1)
        state = (other[:4], other[4:8], buffer[:4], second.view(torch.int32), on, on, 1)
        with pytest.raises(ValueError, match=r"^baraquant::observe_fake_quantize: .*zero_point"):
            ops.observe_fake_quantize(x, *state)
        state = (other[:4], second, buffer[:4], point, on, on, 1)
        with pytest.raises(ValueError, match=r"^baraquant::observe_fake_quantize: .*max_val"):
            ops.observe_fake_quantize(x, *state)
    ops.observe_min_max_(x, buffer[:4], buffer[4:8], 1)
    integers = other[12:].view(torch.int32)
    ops.observe_fake_quantize(x, other[:4], other[4:8], other[8:12], integers, on, on, 1)
