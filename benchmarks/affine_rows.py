# SPDX-License-Identifier: BSD-3-Clause
"""What ``bench_affine.py`` measures: for each part of the family the calls, their bytes, targets.

Bound is the bytes that an op has to move, against a copy of the same input. The peers are what
PyTorch itself offers: its fake quantize per tensor or per channel (for tokens and groups over a
view whose rows are the segments), and the plain formula under ``torch.compile``.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.bench import Call, Compiler, Timer, describe
from benchmarks.bench_row import Case, Row, Target

# isort: split
from baraquant import ops
from tests.support.cases import PER_TENSOR, PER_TOKEN, Granularity, per_channel, per_group

COLUMNS = 4096  # every shape is [rows, COLUMNS], as a layer's weight or a batch of tokens
RANGE = (-128, 127)
GRANULARITIES = {
    "tensor": PER_TENSOR,
    "channel0": per_channel(0),
    "channel1": per_channel(1),
    "token": PER_TOKEN,
    "group32": per_group(32),
    "group128": per_group(128),
}


def random_scale(case: Case, granularity: Granularity) -> Tensor:
    """Scales around 0.02: some of the normal values saturate."""
    dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    shape = granularity.param_shape(tuple(case.shape))
    return torch.rand(shape, device=case.device, dtype=dtype) * 0.01 + 0.015


def segments(x: Tensor, granularity: Granularity) -> tuple[Tensor, int]:
    """A view of ``x`` and the axis of it that counts granularity's segments."""
    if granularity.kind == "per_channel":
        return x, granularity.axis
    length = COLUMNS if granularity.kind == "per_token" else granularity.group_size
    return x.view(-1, length), 0


def pytorch_fake_quantize(granularity: Granularity, scale: Tensor) -> Callable[[Tensor], Tensor]:
    """PyTorch's own op for the same work; on another view where it has no such granularity."""
    zero_point = torch.zeros(scale.numel(), device=scale.device, dtype=torch.int32)
    flat = scale.reshape(-1).float()
    if granularity.kind == "per_tensor":
        return lambda x: torch.fake_quantize_per_tensor_affine(x, flat[0], zero_point[0], *RANGE)

    def run(x: Tensor) -> Tensor:
        view, axis = segments(x, granularity)
        return torch.fake_quantize_per_channel_affine(view, flat, zero_point, axis, *RANGE)

    return run


def forward_target(case: Case, op: str, granularity: Granularity) -> Target | None:
    """The target of a forward: a share of the copy, or a multiple of PyTorch's op."""
    if case.device.type == "cuda":
        return copy_target(case, 0.97 if granularity.kind == "per_tensor" else 0.95)
    twin = granularity.kind in ("per_tensor", "per_channel")
    if op == "fake_quantize" and case.dtype == torch.float32 and twin:
        return Target("PyTorch", 2.0)
    return None


def copy_target(case: Case, at_least: float) -> Target | None:
    """A share of the copy, on a GPU and for tensors that do not fit its cache."""
    return Target("copy", at_least) if case.exceeds_caches else None


def bench_forward(case: Case, granularity: Granularity, timer: Timer) -> Iterator[Row]:
    """Rows of quantize, dequantize and fake_quantize."""
    scale = random_scale(case, granularity)
    args = (scale, None, *granularity.args)
    xs, n = case.inputs, case.rotation
    quantize = granularity.op("quantize", ops)
    dequantize = granularity.op("dequantize", ops)
    fake_quantize = granularity.op("fake_quantize", ops)
    pytorch = pytorch_fake_quantize(granularity, scale)

    def integers() -> Call:
        qs = [quantize(x, *args, *RANGE) for x in xs]
        return lambda i: dequantize(qs[i % n], *args, dtype=case.dtype)

    works: dict[str, tuple[Callable[[], Call], int]] = {
        "quantize": (lambda: lambda i: quantize(xs[i % n], *args, *RANGE), case.itemsize + 1),
        "dequantize": (integers, case.itemsize + 1),
        "fake_quantize": (
            lambda: lambda i: fake_quantize(xs[i % n], *args, *RANGE),
            2 * case.itemsize,
        ),
    }
    for op, (prepare, element_bytes) in works.items():
        row = case.row("forward", op, granularity, forward_target(case, op, granularity))
        try:
            calls: dict[str, Call] = {"copy": case.copy, "baraquant": prepare()}
            if op == "fake_quantize":
                calls["PyTorch"] = lambda i: pytorch(xs[i % n])
            with torch.no_grad():
                results = timer.compare(calls, n)
            row.fill(results, "baraquant", case.numel * element_bytes + scale.nbytes, case.copied)
        except Exception as error:  # recorded in the row
            row.fail(describe(error))
        yield row


def bench_backward(case: Case, granularity: Granularity, timer: Timer) -> Iterator[Row]:
    """Rows of fake_quantize forward and backward, with the input kept and with a bit mask."""
    scale = random_scale(case, granularity)
    fake_quantize = granularity.op("fake_quantize", ops)
    pytorch = pytorch_fake_quantize(granularity, scale)
    xs = [x.detach().requires_grad_() for x in case.inputs]
    n = case.rotation
    grads = case.random()

    def step(forward: Callable[[Tensor], Tensor]) -> Call:
        def run(i: int) -> object:
            x, y = xs[i % n], forward(xs[i % n])
            return torch.autograd.grad(y, x, grads[i % n].view(y.shape))

        return run

    # Forward reads x and writes y; backward reads dy and writes dx, and reads again what was kept.
    for kept, saved_bytes in (("input kept", case.itemsize), ("bit mask", 2 / 8)):
        row = case.row(
            "forward + backward", f"fake_quantize, {kept}", granularity, copy_target(case, 0.95)
        )

        def own(x: Tensor, save_mask: bool = kept == "bit mask") -> Tensor:
            return fake_quantize(x, scale, None, *granularity.args, *RANGE, save_mask=save_mask)

        calls = {"copy": case.copy, "baraquant": step(own), "PyTorch": step(pytorch)}
        try:
            moved = case.numel * (4 * case.itemsize + saved_bytes)
            row.fill(timer.compare(calls, n), "baraquant", moved, case.copied)
        except Exception as error:  # recorded in the row
            row.fail(describe(error))
        yield row


def bench_scale_gradient(case: Case, granularity: Granularity, timer: Timer) -> Iterator[Row]:
    """A row of the fused gradient of input, scale and zero point."""
    scale = random_scale(case, granularity)
    backward = granularity.op("fake_quantize_backward_qparams", ops)
    xs, n = case.inputs, case.rotation
    grads = case.random()
    flat, zero = scale.reshape(-1), torch.zeros(scale.numel(), device=scale.device)

    def pytorch(i: int) -> object:
        aten = torch.ops.aten
        if granularity.kind == "per_tensor":
            return aten._fake_quantize_learnable_per_tensor_affine_backward(
                grads[i % n], xs[i % n], flat, zero, *RANGE, 1.0
            )
        (grad, axis), (x, _) = (segments(t[i % n], granularity) for t in (grads, xs))
        return aten._fake_quantize_learnable_per_channel_affine_backward(
            grad, x, flat, zero, axis, *RANGE, 1.0
        )

    row = case.row(
        "scale gradient", "fake_quantize_backward_qparams", granularity, copy_target(case, 0.9)
    )
    calls: dict[str, Call] = {
        "copy": case.copy,
        "baraquant": lambda i: backward(
            grads[i % n], xs[i % n], scale, None, *granularity.args, *RANGE
        ),
        "PyTorch": pytorch,
    }
    try:
        moved = case.numel * 3 * case.itemsize + 3 * scale.nbytes
        row.fill(timer.compare(calls, n), "baraquant", moved, case.copied)
    except Exception as error:  # recorded in the row
        row.fail(describe(error))
    yield row


def bench_compile(
    case: Case, granularity: Granularity, timer: Timer, compiler: Compiler
) -> Iterator[Row]:
    """A row of fake_quantize beside the plain formula under torch.compile, while there is time."""
    scale = random_scale(case, granularity)
    fake_quantize = granularity.op("fake_quantize", ops)
    xs, n = case.inputs, case.rotation

    def formula(x: Tensor, scale: Tensor) -> Tensor:
        q = torch.clamp(torch.round(x.to(scale.dtype) / scale), *RANGE)
        return (q * scale).to(x.dtype)

    if granularity.kind == "per_tensor":
        views, broadcast = xs, scale
    else:
        views = [segments(x, granularity)[0] for x in xs]
        broadcast = scale.view(1, -1) if granularity.axis == 1 else scale.view(-1, 1)
    compiled = compiler(formula)
    if compiled is None:
        return
    row = case.row("compile", "fake_quantize", granularity)
    try:
        calls: dict[str, Call] = {
            "copy": case.copy,
            "baraquant": lambda i: fake_quantize(xs[i % n], scale, None, *granularity.args, *RANGE),
            "torch.compile": lambda i: compiled(views[i % n], broadcast),
        }
        with torch.no_grad():
            results = timer.compare(calls, n)
        moved = case.numel * 2 * case.itemsize + scale.nbytes
        row.fill(results, "baraquant", moved, case.copied)
    except Exception as error:  # recorded in the row
        row.fail(describe(error))
    yield row


def bench_call_overhead(device: torch.device, timer: Timer, quick: bool) -> Iterator[Row]:
    """Rows of what a call on 64 values costs the host, with and without autograd."""
    scale = torch.full((1,), 0.02, device=device)
    zero_point = torch.zeros(1, device=device, dtype=torch.int32)
    works = {
        "per_tensor, numbers": ("per_tensor", (0.02, 0, *RANGE)),
        "per_tensor, tensors": ("per_tensor", (scale, zero_point, *RANGE)),
        "per_channel(0)": (
            "per_channel",
            (scale.expand(64).contiguous(), zero_point.expand(64).contiguous(), 0, *RANGE),
        ),
    }
    repeats, rounds = (20, 25) if quick else (40, 151)  # short: between time slices
    for case, (kind, args) in works.items():
        packet = getattr(torch.ops.baraquant, f"fake_quantize_{kind}")
        own = {
            "torch.ops.baraquant": packet,  # chooses the overload in every call
            "its overload": packet.number if "numbers" in case else packet.default,
            "baraquant.ops": getattr(ops, f"fake_quantize_{kind}"),
        }
        peers = {
            "PyTorch": getattr(torch, f"fake_quantize_{kind}_affine"),
            "torch.ops.aten": getattr(torch.ops.aten, f"fake_quantize_{kind}_affine"),
        }
        for mode, calls in _modes(device, own | peers, args).items():
            results = timer.compare_overhead(calls, repeats, rounds)
            for name in own:
                row = Row("call overhead", name, f"{case}, {mode}", "float32", [64])
                row.targets = [Target("PyTorch", 1.0)]
                yield row.fill({key: results[key] for key in (name, *peers)}, name)


def _modes(
    device: torch.device, functions: dict[str, Callable], args: tuple
) -> dict[str, dict[str, Call]]:
    x = torch.randn(64, device=device)
    recorded, grad = x.clone().requires_grad_(), torch.ones_like(x)

    def forward(function: Callable, x: Tensor) -> Call:
        return lambda _: function(x, *args)

    def both(function: Callable) -> Call:
        return lambda _: torch.autograd.grad(function(recorded, *args), recorded, grad)

    return {
        "no grad": {name: forward(function, x) for name, function in functions.items()},
        "grad recorded": {
            name: forward(function, recorded) for name, function in functions.items()
        },
        "forward + backward": {name: both(function) for name, function in functions.items()},
    }
