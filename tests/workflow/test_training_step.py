# SPDX-License-Identifier: BSD-3-Clause
"""Whole training steps of a prepared Transformer block, run in all ways at once.

Compiled, checkpointed, under autocast, captured in a CUDA graph: alone and in combination, each has
to give what the plain step gives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from baraquant import nn as bnn
from baraquant.qat import convert_, prepare_
from tests.support.models.training_models import SCHEMES, block, data

Forward = Callable[[Tensor], Tensor]
STEPS = 4
by_scheme = pytest.mark.parametrize("scheme", ["w8a8", "static", "groups", "learned"])
# Compiling takes seconds: each scheme has a layer of one of these blocks.
MIXED = [
    "static-learned-groups",
    "w8a8-learned_factors-w8a8_asymmetric",
    "w4a8-weight_only-learned",
]
by_mixed = pytest.mark.parametrize("scheme", MIXED[:2])
by_any_scheme = pytest.mark.parametrize("scheme", SCHEMES)
by_kind = pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "hooks"])


@pytest.fixture(autouse=True)
def _same_bits_in_every_run() -> Iterator[None]:
    """Other kernels of attention add in an order that changes from run to run."""
    torch._dynamo.reset()
    with sdpa_kernel(SDPBackend.MATH):
        yield


@dataclass
class Result:
    """What training left: the loss of each step, the last gradients, and the state."""

    losses: list[float]
    grads: list[Tensor]
    state: dict[str, Tensor]

    def check(self, expected: Result) -> None:
        assert self.losses == expected.losses
        for a, b in zip(self.grads, expected.grads, strict=True):
            assert torch.equal(a, b)
        for name, tensor in expected.state.items():
            assert torch.equal(self.state[name], tensor), name


def prepared(scheme: str, device: str = "cpu", blocks: int = 1, seen: bool = False) -> nn.Module:
    """Blocks whose scales are not known yet, unless a batch was seen.

    Of several schemes each has a part of the block.
    """
    model = nn.Sequential(*(block() for _ in range(blocks))).to(device)
    parts, names = ("*attention*", "*up", "*down"), scheme.split("-")
    rules = {part: SCHEMES[name] for part, name in zip(parts, names, strict=False)}
    prepare_(model, rules if len(names) > 1 else SCHEMES[scheme])
    if seen:
        with torch.no_grad():
            model(batches(device)[0])
    return model


def batches(device: str = "cpu") -> list[Tensor]:
    """The later, the wider: an observed range moves in each step."""
    return [data(2, 5, 16, seed=step).mul_(1 + step).to(device) for step in range(STEPS)]


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    on_cuda = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=on_cuda, fused=on_cuda)


def step(forward: Forward, optimizer: torch.optim.Optimizer, x: Tensor, autocast: bool) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast):
        loss = forward(x).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def result(model: nn.Module, losses: list[float]) -> Result:
    grads = [p.grad.clone() for p in model.parameters()]
    return Result(losses, grads, {name: t.clone() for name, t in model.state_dict().items()})


def train(model: nn.Module, forward: Forward | None = None, autocast: bool = False) -> Result:
    optimizer = make_optimizer(model)
    inputs = batches(next(model.parameters()).device.type)
    run = forward or model
    losses = [step(run, optimizer, x.requires_grad_(), autocast).item() for x in inputs]
    return result(model, losses)


def compiled(function: Forward) -> Forward:
    # Dynamo and AOTAutograd are what is tested; Inductor would add in another order.
    return torch.compile(function, fullgraph=True, backend="aot_eager")


# --- compiled, checkpointed, under autocast ------------------------------------------------------


def checkpointed(model: Forward, use_reentrant: bool) -> Forward:
    return lambda x: checkpoint(model, x, use_reentrant=use_reentrant)


def nested(model: Forward, use_reentrant: bool) -> Forward:
    return checkpointed(checkpointed(model, not use_reentrant), use_reentrant)


WRAPS: dict[str, Callable[[Forward, bool], Forward]] = {
    "compiled_whole": lambda model, kind: compiled(checkpointed(model, kind)),
    "compiled_within": lambda model, kind: checkpointed(compiled(model), kind),
    "nested": nested,
    "nested_around_compiled": lambda model, kind: nested(compiled(model), kind),
}
# What is observed in all ways; of the others some, as each takes seconds to compile.
COMBINED = [("static", wrap, kind) for wrap in WRAPS for kind in (True, False)]
COMBINED += [("w8a8-groups-learned", wrap, False) for wrap in ("compiled_whole", "compiled_within")]


@pytest.mark.cover(wrap=lambda wrap: [wrap])  # each scheme, wrap and kind
@pytest.mark.parametrize(("scheme", "wrap", "use_reentrant"), COMBINED)
def test_checkpointed_and_compiled(scheme: str, wrap: str, use_reentrant: bool) -> None:
    """What is computed again in the backward pass is what was, whoever computes it.

    Dynamo compiles no checkpoint within which a module is changed, as a first batch does.
    """
    model = prepared(scheme, seen=True)
    twin = copy.deepcopy(model)
    train(twin, WRAPS[wrap](twin, use_reentrant)).check(train(model))


@by_kind
@by_any_scheme
def test_blocks_checkpointed_one_by_one(scheme: str, use_reentrant: bool) -> None:
    model = prepared(scheme, blocks=2)
    twin = copy.deepcopy(model)
    first, second = (checkpointed(part, use_reentrant) for part in twin)
    train(twin, lambda x: second(first(x))).check(train(model))


@pytest.mark.cover(scheme=None)
@by_mixed
def test_compiled_under_autocast(scheme: str) -> None:
    """Attention is made of its parts there, whose casts are others in the last bits of bfloat16."""
    model = prepared(scheme)
    twin = copy.deepcopy(model)
    losses = train(model, autocast=True).losses
    assert train(twin, compiled(twin), autocast=True).losses == pytest.approx(losses, rel=2e-3)


@by_kind
@by_scheme
def test_checkpointed_under_autocast(scheme: str, use_reentrant: bool, device: str) -> None:
    model = prepared(scheme, device)
    twin = copy.deepcopy(model)
    again = train(twin, checkpointed(twin, use_reentrant), autocast=True)
    again.check(train(model, autocast=True))
    assert again.losses != train(prepared(scheme, device)).losses, "autocast did something"


@pytest.mark.inductor
def test_compiled_by_inductor(device: str) -> None:
    """Its code for what lies between the layers rounds otherwise in the last bits."""
    model = prepared("static-learned-learned", device, seen=True)
    twin = copy.deepcopy(model)
    inductor = torch.compile(checkpointed(twin, False), fullgraph=True)
    assert train(twin, inductor).losses == pytest.approx(train(model).losses, rel=2e-3)


@pytest.mark.cover(scheme=None)
@by_mixed
def test_compiled_step(scheme: str) -> None:
    """One graph for the forward pass and one for the backward pass; the optimizer compiled too."""
    model = prepared(scheme)
    twin = copy.deepcopy(model)
    # SGD: a step of Adam makes much of what rounding makes of a gradient near 0.
    plain, optimizer = (torch.optim.SGD(m.parameters(), 0.01, 0.9) for m in (model, twin))
    forward, update = compiled(twin), torch.compile(optimizer.step, backend="aot_eager")
    for x in batches():
        loss = step(model, plain, x, False)
        optimizer.zero_grad()
        again = forward(x).square().mean()
        again.backward()
        update()
        assert again.item() == pytest.approx(loss.item(), rel=1e-4)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[name], tensor, rtol=1e-2, atol=2e-3)


@torch.no_grad()
@pytest.mark.cover(scheme=None)
@pytest.mark.parametrize("scheme", MIXED)
def test_dynamic_shapes(scheme: str) -> None:
    """One compilation for all lengths of the sequence (and one for the first)."""
    model = prepared(scheme, seen=True)
    model.apply(bnn.disable_observer)
    forward = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(recompile_limit=1):
        for length in (5, 7, 12):
            x = data(2, length, 16)
            torch.testing.assert_close(forward(x), model(x))


@by_any_scheme
def test_autocast(scheme: str) -> None:
    model = prepared(scheme, seen=True)
    twin = copy.deepcopy(model)
    losses, lowered = train(model).losses, train(twin, autocast=True).losses
    assert lowered == pytest.approx(losses, rel=0.03)
    assert lowered != losses
    for parameter in twin.parameters():
        assert parameter.dtype == torch.float32 and parameter.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert twin[0].up(data(2, 16)).dtype == torch.bfloat16
        convert_(twin.eval())
        assert twin(data(2, 5, 16)).isfinite().all()


# --- what a module does while a backward pass is under way ---------------------------------------


@pytest.mark.parametrize("wrap", ["checkpointed", *WRAPS])
@by_kind
def test_an_observer_counts_a_batch_once(use_reentrant: bool, wrap: str, device: str) -> None:
    """And keeps the switch: held still, it stays so, and goes on when it is let go."""
    quantizer = bnn.FakeQuantize(mode="observed", averaging_constant=0.5).to(device)
    forward = WRAPS.get(wrap, checkpointed)(lambda x: quantizer(x).sin(), use_reentrant)
    largest = []
    for size, enabled in ((1.0, True), (3.0, True), (99.0, False), (5.0, True)):
        quantizer.enable_observer(enabled)
        x = torch.tensor([0.1, size], device=device, requires_grad=True)
        y = forward(x)
        scale = quantizer.scale.clone()
        y.sum().backward()
        largest.append(quantizer.max_val.item())
        assert torch.equal(quantizer.scale, scale)
        rounded = (x.detach() / scale).round().clamp(-128, 127) * scale
        inside = (x.detach() / scale).round() <= 127
        torch.testing.assert_close(x.grad, torch.where(inside, rounded.cos(), 0.0))
    assert largest == [1.0, 2.0, 2.0, 3.5]


def test_an_exported_observer_needs_no_python_op() -> None:
    quantizer = bnn.FakeQuantize(mode="observed", averaging_constant=0.5)
    program = torch.export.export(quantizer, (torch.randn(8),), strict=True)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in names if "recomputing" in name]
    assert any("observe" in name for name in names)


# --- in a CUDA graph -----------------------------------------------------------------------------


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def train_captured(model: nn.Module, forward: Forward, autocast: bool, warm_up: int = 1) -> Result:
    """The first steps as they are, the others replayed from a graph of one."""
    inputs = batches("cuda")
    optimizer = make_optimizer(model)
    x = inputs[0].clone().requires_grad_()
    losses = []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for batch in inputs[:warm_up]:
            x.data.copy_(batch)
            losses.append(step(forward, optimizer, x, autocast).item())
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with no_waiting(), torch.cuda.graph(graph):
        loss = step(forward, optimizer, x, autocast)
    for batch in inputs[warm_up:]:
        x.data.copy_(batch)
        graph.replay()
        losses.append(loss.item())
    return result(model, losses)


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("kind", ["plain", "reentrant", "hooks"])
@by_scheme
def test_captured_step(scheme: str, kind: str, autocast: bool, cuda: str) -> None:
    """Forward, backward and optimizer in one graph; replayed, it trains on as eager steps do.

    Learned scales come from the first batch, for which the host has to look: one step before.
    """
    model = prepared(scheme, cuda)
    twin = copy.deepcopy(model)
    forward: Forward = twin
    if kind != "plain":  # a random generator's state cannot be read while a graph is captured
        forward = lambda x: checkpoint(  # noqa: E731
            twin, x, use_reentrant=kind == "reentrant", preserve_rng_state=False
        )
    expected = train(model, autocast=autocast)
    train_captured(twin, forward, autocast).check(expected)
    assert len(set(expected.losses)) == STEPS


@by_scheme
def test_a_step_never_waits_for_the_device(scheme: str, cuda: str) -> None:
    model = prepared(scheme, cuda)
    optimizer = make_optimizer(model)
    inputs = batches(cuda)
    step(model, optimizer, inputs[0], False)  # from here on all scales are known
    with no_waiting():
        for x in inputs[1:]:
            step(model, optimizer, x, False)


@pytest.mark.inductor
@by_scheme
def test_compiled_into_cuda_graphs(scheme: str, cuda: str) -> None:
    """As torch.compile makes them itself."""
    model = prepared(scheme, cuda)
    twin = copy.deepcopy(model)
    forward = torch.compile(twin, fullgraph=True, mode="reduce-overhead")
    assert train(twin, forward).losses == pytest.approx(train(model).losses, rel=2e-3)
