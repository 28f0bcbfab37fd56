# SPDX-License-Identifier: BSD-3-Clause
"""Every op from eight Python threads at once: `python -m tests.ops.eight_threads [--quick]`.

The tensors are shared by all threads, or a thread's own. All get the bits that one thread gets.
The ops let go of Python's lock, so they do run side by side; the threads begin first, so that what
is made at a first call is made by several at once. Run under ThreadSanitizer by `make tsan`.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from tests.support.bits import assert_same_bits
from tests.support.calls.affine import value_and_gradients
from tests.support.calls.every import EVERY_CALL
from tests.support.calls.range import OBSERVE_CALLS
from tests.support.threads import side_by_side

THREADS = 8
SHAPES = ((3, 4, 20), (70, 500))  # the second is large enough for threads of the op's own
CALLS = (*EVERY_CALL, *OBSERVE_CALLS)


def own_copies(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)


def work(made: list[tuple[Any, tuple[Tensor, ...]]], first: int, rounds: int) -> list[Any]:
    """All calls, from another one on in each thread: on the shared tensors, then on its own."""
    order = [(first * len(made) // THREADS + i) % len(made) for i in range(len(made))]
    results: list[Any] = [None] * len(made)
    for turn in range(rounds):
        for index in order:
            call, tensors = made[index]
            given = tensors if turn % 2 == 0 else own_copies(tensors)
            results[index] = [t.detach() for t in value_and_gradients(call, given)]
    return results


def check(device: str, shape: tuple[int, ...], rounds: int) -> int:
    """Compare the threads with one thread; the number of results that were compared."""
    made = [(call, call.tensors(shape, device=device)) for call in CALLS]
    found = side_by_side(THREADS, lambda index: work(made, index, rounds))
    compared = 0
    for (call, _), expected, *others in zip(made, work(made, 0, 1), *found, strict=True):
        for results in others:
            for got, right in zip(results, expected, strict=True):
                assert_same_bits(got.cpu(), right.cpu(), f"{call} {shape} {device}")
                compared += 1
    return compared


def main() -> None:
    quick = "--quick" in sys.argv
    if quick:  # libgomp is not instrumented: the threads of an op would be taken for races
        torch.set_num_threads(1)
    for shape in SHAPES[:1] if quick else SHAPES:
        print(f"{THREADS} threads, {shape}: {check('cpu', shape, 2)} results agree", flush=True)


if __name__ == "__main__":
    main()
