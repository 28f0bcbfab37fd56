# SPDX-License-Identifier: BSD-3-Clause
"""Hostile calls, thousands of them: `python -m tests.ops.hostile [calls] [--first N]`.

Each call returns, or raises one of the exceptions that are promised, with a message that says what
was wrong; the process never dies. What a call of a public op returns has the bits of the same call
on contiguous copies, and those of `baraquant.reference` where that takes the arguments. Gradients
are asked for where there are any. `--only N` makes one call alone, and shows it.
"""

import argparse
import collections
import faulthandler
import functools
import json
import math
import os
import re
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baraquant import reference
from tests.ops import hostile_values
from tests.ops.hostile_calls import Call, describe, make_call
from tests.support import cases
from tests.support.bits import assert_all_same, assert_same_bits
from tests.support.calls.affine import outputs
from tests.support.oracle import weight_only

PROMISED = (ValueError, TypeError, IndexError, NotImplementedError)
# What PyTorch itself raises: an argument that is not of the schema's type, memory that is not
# there, a gradient that nothing asks for, tensors that its own machinery refuses.
OF_PYTORCH = re.compile(
    r"Expected a value of type|match any schema|missing value for argument|Unknown keyword|"
    r"[Ee]xpected at most|declaration:|Overflow when unpacking|not enough memory|"
    r"can't allocate memory|Storage size calculation overflowed|numel: integer multiplication|"
    r"does not require grad|Inference tensors|inference tensor|"
    r"a leaf Variable that requires grad|marked dirty|Cannot access data pointer|"
    r"ZeroTensors are immutable|MathBitsFallback"
)
# The types that PyTorch can copy; of some, such as 1-bit integers, it has the name alone.
COPIED = (*cases.FLOAT_DTYPES, *hostile_values.WHOLE, torch.bool, torch.complex64)
NATURAL = (("ScalarType", torch.dtype), ("int", int), ("float", float), ("bool", bool))
MODULE = "tests.ops.hostile"
PATIENCE = 120  # seconds for one call
MAX_DEATHS = 5
SUMS = ("backward_qparams",)  # added up in another order by the reference


class BrokenPromiseError(AssertionError):
    """A call that kept no promise."""


def known(error: Exception, call: Call) -> bool:
    if isinstance(error, PROMISED):
        return True
    # The public ops refuse a nested tensor by name before a core op sees it.
    if not call.public and "NestedTensorImpl doesn't support sizes" in str(error):
        return True
    return isinstance(error, (RuntimeError, MemoryError)) and bool(OF_PYTORCH.search(str(error)))


def is_plain(value: Any) -> bool:
    return not isinstance(value, (Tensor, np.ndarray)) or (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and not value.is_nested
        and value.dtype in COPIED
        and value.dim() <= 64  # NumPy's most
        and value.numel() < 2**24  # not one that is expanded beyond all memory
        and all(size < 2**31 for size in value.shape)  # NumPy counts the others of an empty one too
    )


def copied(call: Call) -> dict[str, Any]:
    """The arguments as contiguous tensors of their own."""
    return {
        k: v.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
        if isinstance(v, Tensor)
        else v
        for k, v in call.arguments.items()
    }


def is_as_documented(call: Call) -> bool:
    """Whether the reference takes it: no overload, no sums of the weight that are not its own, and
    numbers and dtypes of the documented types (torch.ops takes a few others).
    """
    right = call.op._overloadname == "default"
    right &= call.arguments.get("weight_sum") is None or not call.changed
    for parameter in call.op._schema.arguments:
        value, kind = call.arguments.get(parameter.name), str(parameter.real_type)
        if value is not None and "Tensor" in kind:
            right &= isinstance(value, (Tensor, int, float))
        elif value is not None:
            right &= next((type(value) is t for name, t in NATURAL if name in kind), False)
    return right


def check_results(call: Call, results: tuple[Any, ...], given: dict[str, Any]) -> str:
    """Compare what was returned with the same call on copies and with the reference."""
    if not call.public or call.in_place or call.context or not all(map(is_plain, given.values())):
        return "returned"
    if call.name == "weight_only_linear":
        check_weight_only(results[0], given)
        return "compared with the oracle"
    with torch.no_grad():
        again = outputs(call(given))
    assert_all_same(results, again, str(call))
    function = getattr(reference, call.name, None)
    if function is None or call.name.endswith(SUMS) or not is_as_documented(call):
        return "compared"
    with torch.no_grad():
        expected = outputs(function(**given))
    for got, right in zip(results, expected, strict=True):
        assert_same_bits(got.detach(), right.reshape(got.shape), f"reference: {call}")
    return "compared with the reference"


def check_weight_only(result: Tensor, given: dict[str, Any]) -> None:
    """Compare with the oracle: PyTorch's product may have other bits for a tensor elsewhere."""
    x, scale, size = given["input"], given["weight_scale"], given.get("group_size")
    size = None if size is None else int(size)  # torch.ops takes a tensor of one integer too
    weight = given["weight"]
    if weight.dtype == torch.uint8:
        weight = weight_only.unpacked(weight, x.shape[-1])
    arguments = (weight, scale, given.get("weight_zero_point"), size, x.dtype)
    exact, rows = weight_only.dequantized(*arguments), math.prod(x.shape[:-1])
    expected = weight_only.linear(x.reshape(rows, x.shape[-1]), exact, given.get("bias"))
    weight_only.assert_close(result, expected)


def pull_gradient(rng: Random, call: Call, results: tuple[Any, ...]) -> None:
    """Backward with an incoming gradient of any layout and values."""
    leaves = [t for t in call.arguments.values() if isinstance(t, Tensor) and t.requires_grad]
    leaves = [t for t in leaves if t.is_leaf]
    roots = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
    if not leaves or not roots:
        return
    grads = []
    for root in roots:
        grad = torch.ones_like(root, memory_format=torch.contiguous_format)
        if root.layout == torch.strided and root.device.type == "cpu":
            grad = hostile_values.layout(rng, hostile_values.values(rng, grad.detach()))
        grads.append(grad)
    for gradient in torch.autograd.grad(roots, leaves, grads, allow_unused=True):
        if gradient is not None:
            gradient.clone()


def judge(number: int) -> str:
    """Make a call; say in a word what came of it, or raise BrokenPromiseError."""
    call = make_call(number)
    usable = all(map(is_plain, call.arguments.values())) and not call.in_place
    given = copied(call) if usable else dict(call.arguments)
    try:
        results = tuple(r for r in outputs(call()) if r is not None)
        for result in results:
            if is_plain(result):
                result.detach().clone()
        if not call.context:
            pull_gradient(Random(number), call, results)
    except Exception as error:
        if not known(error, call):
            raise BrokenPromiseError(f"{type(error).__name__}: {error}") from error
        return f"raised {type(error).__name__}"
    try:
        return check_results(call, results, given)
    except Exception as error:
        raise BrokenPromiseError(f"returned, then {type(error).__name__}: {error}") from error


def show(number: int) -> int:
    call = make_call(number)
    print(call)
    for name, value in call.arguments.items():
        print(f"  {name}: {describe(value)}")
    print(judge(number))
    return 0


def run_part(options: argparse.Namespace) -> int:
    """The calls of one process, each announced before it is made."""
    torch.set_num_threads(1 + options.part % 2)
    counts: collections.Counter[str] = collections.Counter()
    broken = 0
    for number in range(options.first, options.first + options.calls):
        if number % options.processes != options.part:
            continue
        print("at", number, flush=True)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        if number == options.die_in:
            os.abort()
        try:
            counts[judge(number)] += 1
        except BrokenPromiseError as error:
            broken += 1
            print(f"call {number}: {str(error)[:600]}\n    {str(make_call(number))[:600]}")
    faulthandler.cancel_dump_traceback_later()
    print("counts", json.dumps(counts), flush=True)
    return 1 if broken else 0


def run_share(options: argparse.Namespace, part: int) -> tuple[bool, collections.Counter[str]]:
    """Whether a share of the calls failed, and what came of them; a process, anew at a death."""
    first, end, failed = options.first, options.first + options.calls, False
    totals: collections.Counter[str] = collections.Counter()
    for _ in range(MAX_DEATHS):
        command = (sys.executable, "-u", "-X", "faulthandler", "-m", MODULE, str(end - first))
        command += ("--first", str(first), "--processes", str(options.processes))
        command += ("--part", str(part), "--die-in", str(options.die_in))
        last, done = first, False
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, **pipes, text=True, errors="replace") as process:
            for line in process.stdout or ():
                word, _, rest = line.partition(" ")
                if word == "at":
                    last = int(rest)
                    if last % 1000 == 0:
                        print(f"hostile calls: at {last}", flush=True)
                elif word == "counts":
                    totals.update(json.loads(rest))
                    done = True
                else:
                    print(line, end="")
        failed = failed or process.returncode != 0
        if done:  # be it with broken calls
            break
        died = f"DIED (exit code {process.returncode}) in call {last}"
        print(f"{died}: python -m {MODULE} --only {last}")
        first = last + 1
        if first >= end:
            break
    return failed, totals


def run_all(options: argparse.Namespace) -> int:
    """All parts side by side."""
    start = time.monotonic()
    with ThreadPoolExecutor(options.processes) as pool:
        shares = list(pool.map(functools.partial(run_share, options), range(options.processes)))
    failed = any(share_failed for share_failed, _ in shares)
    totals = sum((counts for _, counts in shares), collections.Counter[str]())
    took = time.monotonic() - start
    print(f"hostile calls: {sum(totals.values())} in {took:.0f} s: {dict(totals)}")
    if not failed and min(totals["raised ValueError"], totals["compared"]) < options.calls / 50:
        print("hostile calls: FAILED: the calls are one-sided")
        return 1
    print(f"hostile calls: {'FAILED' if failed else 'passed'}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, help="this call alone")
    parser.add_argument("--die-in", type=int, default=-1, help="abort in this call, as a test")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.only is not None:
        return show(options.only)
    return run_all(options) if options.part is None else run_part(options)


if __name__ == "__main__":
    sys.exit(main())
