# SPDX-License-Identifier: BSD-3-Clause
"""baraquant.plan and baraquant.can_implement: true of every op, and nothing runs."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import baraquant
from baraquant import _C, ops
from baraquant.planning import KernelPlan
from cpp_programs import PATIENCE
from tests.support import bad_arguments
from tests.support.cases import OP_NAMES, function_of
from tests.support.docstrings import run_examples

OPS = bad_arguments.every_op()
by_op = pytest.mark.parametrize("op", OPS, ids=str)
# What torch may do meanwhile: take memory, and look at tensors differently; and the profiler.
HARMLESS = ("Activity Buffer Request", "detach", "baraquant::", "[", "cuda", "cu")
HARMLESS += tuple(
    f"aten::{name}"
    for name in (
        *("empty", "view", "reshape", "permute", "movedim", "unsqueeze", "as_strided", "expand"),
        *("detach", "_reshape_alias", "alias", "select", "transpose", "narrow", "slice"),
    )
)
# Adds floating numbers, where it pays by a product of PyTorch's, in an order that is not promised.
SUMS_OF_FLOATS = ("weight_only_linear",)


def check_plan(kernel: KernelPlan, device: str, op: str = "") -> None:
    assert kernel.name
    assert kernel.backend == device
    if kernel.architecture != "torch":
        assert kernel.compute_dtype in ("float32", "float64", "int32")
        sums = ("", "int32", "float64", *(("float32",) if op in SUMS_OF_FLOATS else ()))
        assert kernel.accumulator_dtype in sums
        if device == "cpu":
            assert kernel.architecture == _C.cpu_isa()
        else:
            major, minor = torch.cuda.get_device_capability()
            assert kernel.architecture.rstrip("a") == f"sm_{major}{minor}"
    assert kernel.workspace_bytes >= 0
    assert kernel.deterministic
    assert kernel.bit_stable or op in SUMS_OF_FLOATS


def test_every_op_is_here() -> None:
    assert {op.name for op in OPS} == set(OP_NAMES)


@by_op
def test_every_op_has_a_plan(op: Any, device: str) -> None:
    arguments = op.arguments(device)
    plans = baraquant.plan(op.name, **arguments)
    assert plans
    for kernel in plans:
        check_plan(kernel, device, op.name)
    assert baraquant.plan(getattr(torch.ops.baraquant, op.name), **arguments) == plans
    assert baraquant.plan(function_of(op.name), **arguments) == plans
    assert baraquant.plan(f"baraquant::{op.name}", **arguments) == plans
    assert baraquant.can_implement(op.name, **arguments) == (True, "", "")


@by_op
def test_nothing_runs_and_nothing_is_written(op: Any, device: str) -> None:
    """With strides and dtypes that make torch copy first, where the op takes them."""
    arguments = op.arguments(device)
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            continue
        if value.dim() > 1 and name in ("input", "gate", "grad"):
            arguments[name] = torch.ones_like(value).repeat_interleave(2, -1)[..., ::2]
        of_any_dtype = name.endswith("zero_point") and name != "group_zero_point"
        if of_any_dtype and op.name not in ("observe_fake_quantize",):
            arguments[name] = value.to(torch.int64)
    tensors = {k: v for k, v in arguments.items() if isinstance(v, Tensor)}
    before = {k: (v.clone(), v._version) for k, v in tensors.items()}
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        plans = baraquant.plan(op.name, **arguments)
        assert baraquant.can_implement(op.name, **arguments).ok
    copied = "input" in arguments or "grad" in arguments
    assert not copied or any(kernel.architecture == "torch" for kernel in plans), "a copy is needed"
    for event in profile.events():
        harmless = event.name == "aten::t" or event.name.startswith(HARMLESS)
        assert harmless, event.name
        assert event.device_type == torch.autograd.DeviceType.CPU, event.name
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name][0]) and tensor._version == before[name][1]


@by_op
def test_nothing_to_do_has_no_plan(op: Any) -> None:
    assert baraquant.plan(op.name, **op.arguments("meta")) == []
    assert baraquant.can_implement(op.name, **op.arguments("meta")).ok


def wrong_calls() -> list[Any]:
    """Each way to be wrong, with the first op that it applies to in each family."""
    found = []
    for module in bad_arguments.modules():
        found += {str(bad): (op, bad) for op, bad in reversed(module.PAIRS)}.values()
    return found


@pytest.mark.parametrize(("op", "bad"), wrong_calls(), ids=str)
def test_errors_are_those_of_the_call(op: Any, bad: Any, device: str) -> None:
    text, _ = bad.call(op, device)
    arguments = op.arguments(device) | bad.also
    arguments[bad.argument] = bad.change(arguments)
    assert baraquant.can_implement(op.name, **arguments) == (False, bad.error.__name__, text)
    with pytest.raises(bad.error) as raised:
        baraquant.plan(op.name, **arguments)
    assert str(raised.value) == text


def test_other_threads_run_meanwhile(device: str) -> None:
    x = torch.randn(5, 7, device=device)
    expected = ops.fake_quantize_per_tensor(x, 0.1, 0)
    results: list[Tensor] = []

    def call() -> None:
        thread = threading.Thread(
            target=lambda: results.append(ops.fake_quantize_per_tensor(x, 0.1, 0)), daemon=True
        )
        thread.start()
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive()

    assert _C.plan(call) == []
    assert torch.equal(results[0], expected)


def test_plans_nest(device: str) -> None:
    x = torch.randn(5, 7, device=device)
    inner: list[Any] = []

    def call() -> None:
        inner.extend(_C.plan(lambda: ops.choose_qparams_per_token(x)))
        ops.fake_quantize_per_tensor(x, 0.1, 0)

    outer = _C.plan(call)
    assert [k["name"].partition("_")[0] for k in inner] == ["choose"]
    assert len(outer) == 1 and outer[0]["name"].startswith("fake_quantize")


def names(*args: Any, **kwargs: Any) -> list[str]:
    return [kernel.name for kernel in baraquant.plan(*args, **kwargs)]


def test_the_choice_is_seen() -> None:
    """On the CPU: rows that fit a cache are read once, longer ones twice."""
    rows, long = torch.randn(64, 256), torch.randn(2, 2**20)
    assert names("dynamic_range_quantize_per_token", rows) == ["dynamic_quantize"]
    assert names("dynamic_range_quantize_per_token", long) == ["choose_qparams", "quantize"]
    of_columns = names("dynamic_fake_quantize_per_token", rows.T.contiguous().T)
    assert of_columns == ["choose_qparams", "fake_quantize"]


def test_the_product_is_seen(device: str) -> None:
    x = torch.randn(16, 64, device=device)
    w = torch.ones(32, 64, dtype=torch.int8, device=device)
    sw = torch.ones(32, device=device)
    symmetric = baraquant.plan("quantized_linear", x, w, sw)
    assert len(symmetric) == 2
    assert symmetric[0].name.startswith("dynamic_quantize")
    assert symmetric[1].accumulator_dtype == "int32" and symmetric[1].compute_dtype == "float32"
    asymmetric = names("quantized_linear", x, w, sw, symmetric=False)
    assert asymmetric[1:-1] in ([], ["weight_sums"])  # some kernels find the sums themselves
    sums = w.sum(1, dtype=torch.int32)
    assert len(names("quantized_linear", x, w, sw, symmetric=False, weight_sum=sums)) == 2
    assert len(names("quantized_linear", x.T.contiguous().T, w, sw)) == 3  # and a copy
    assert len(names("qat_linear", x, w.float())) == 3
    in_double = baraquant.plan("quantized_linear", x.double(), w, sw.double())
    assert in_double[-1].compute_dtype == "float64"


def test_what_autograd_changes_is_seen(device: str) -> None:
    x, w = torch.randn(16, 64, device=device), torch.randn(32, 64, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        plans = baraquant.plan("qat_linear", x, w)
    assert [p.name for p in plans].count("to") == 1  # of the input alone
    leaf = x.clone().requires_grad_()
    assert baraquant.plan("qat_linear", leaf, w)
    assert leaf.grad is None and leaf._version == 0


@pytest.mark.parametrize(
    "op", ["no_such_op", "quantize_per_tensor.no_such", torch.ops.aten.add, torch.sin]
)
def test_unknown_ops(op: Any) -> None:
    for ask in (baraquant.plan, baraquant.can_implement):
        with pytest.raises(ValueError, match=r"baraquant\.plan: expected"):
            ask(op, torch.zeros(3))


def test_an_overload_by_name() -> None:
    q = torch.ones(2, 4, dtype=torch.int8)
    sw = torch.ones(2)
    by_name = baraquant.plan("smoothquant_linear.number", q, q, sw, 0.5)
    assert by_name == baraquant.plan(torch.ops.baraquant.smoothquant_linear.number, q, q, sw, 0.5)
    assert not baraquant.can_implement("smoothquant_linear.default", q, q, sw, 0.5).ok


def test_examples_run() -> None:
    run_examples(baraquant.plan, "plan")
    run_examples(baraquant.can_implement, "can_implement")
