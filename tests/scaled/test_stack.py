# SPDX-License-Identifier: BSD-3-Clause
"""The scaled ops and a backward of integers in PyTorch: tools, autocast, checkpoints, layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import baraquant
from baraquant import ops
from tests.scaled.test_gradients import by_backward, by_rounding, gradients, leaves
from tests.support.bits import assert_all_same
from tests.support.calls.scaled import INTEGER_QAT_CALLS, SCALED_CALLS
from tests.support.family_cases.torch_tools import Tools


class TestTools(Tools):
    CALLS = SCALED_CALLS


class TestToolsOfTraining(Tools):
    CALLS, BATCHED = INTEGER_QAT_CALLS, ("input",)


def test_opcheck_of_draw_random(device: str) -> None:
    tests = ("test_schema", "test_faketensor")
    op = torch.ops.baraquant.draw_random.default
    torch.library.opcheck(op, (torch.randn(6, device=device), 2), test_utils=tests)


class Net(nn.Module):
    def __init__(self, backward: str, rounding: str, symmetric: bool = True) -> None:
        super().__init__()
        config = baraquant.W8A8(symmetric, backward=backward, rounding=rounding)
        self.first = baraquant.nn.FakeQuantizedLinear(24, 40, config=config)
        self.second = baraquant.nn.FakeQuantizedLinear(40, 9, bias=False, config=config)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def net_gradients(model: Callable[[Tensor], Tensor], net: Net, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    torch.manual_seed(6)
    net.zero_grad()
    model(x).square().sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]


@pytest.mark.exhaustive
@by_backward
@by_rounding
@pytest.mark.parametrize("compiler", ("aot_eager", "inductor"))
def test_compiled_is_eager(backward: str, rounding: str, compiler: str, device: str) -> None:
    """One graph forward, one backward; dynamic sizes; the generator is used as in eager mode."""
    torch._dynamo.reset()
    net = Net(backward, rounding, symmetric=False).to(device)
    model = torch.compile(net, fullgraph=True, backend=compiler, dynamic=True)
    for tokens in (16, 33):
        x = torch.randn(2, tokens, 24, device=device)
        found, wanted = net_gradients(model, net, x), net_gradients(net, net, x)
        if compiler == "aot_eager":
            assert_all_same(found, wanted)
        else:  # the square and the sums around the ops are compiled
            for got, want in zip(found, wanted, strict=True):
                limit = 1e-2 * want.abs().max().item()
                torch.testing.assert_close(got, want, rtol=1e-2, atol=limit)


@pytest.mark.exhaustive
@by_backward
def test_compiled_autograd(backward: str) -> None:
    torch._dynamo.reset()
    net = Net(backward, "nearest")
    x = torch.randn(12, 24)
    want = net_gradients(net, net, x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        got = net_gradients(net, net, x)
    assert_all_same(got, want)


@pytest.mark.parametrize("low", (torch.bfloat16, torch.float16))
def test_autocast(low: torch.dtype, device: str) -> None:
    x, w, b, dy = leaves((7,), 12, 20, torch.float32, device)
    with torch.autocast(device, dtype=low):
        y = ops.qat_linear(x, w, b, backward="int8")
    assert y.dtype == low
    found = torch.autograd.grad(y, (x, w, b), dy.to(low))
    # The input alone is lowered: the integers are those of the weight that the optimizer holds.
    lowered = [t.detach().requires_grad_() for t in (x.to(low), w, b)]
    want = gradients(*lowered, dy.to(low), backward="int8")
    assert_all_same(found, [t.float() for t in want])


@by_rounding
@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpointing(rounding: str, reentrant: bool, device: str) -> None:
    net = Net("int8", rounding).to(device)
    x = torch.randn(8, 24, device=device)

    def checkpointed(x: Tensor) -> Tensor:
        return checkpoint(net, x, use_reentrant=reentrant)

    assert_all_same(net_gradients(checkpointed, net, x), net_gradients(net, net, x))


def test_layers_take_the_option_from_their_configuration(device: str) -> None:
    x = torch.randn(30, 24, device=device)
    nets = {b: Net(b, "nearest").to(device) for b in ("float", "int8_input", "int8")}
    state = nets["float"].state_dict()
    found = {}
    for name, net in nets.items():
        net.load_state_dict(state)
        assert net.first.config.backward == name
        assert ("backward" in repr(net)) == (name != "float")
        found[name] = net_gradients(net, net, x)
    y = {name: net(x) for name, net in nets.items()}
    assert torch.equal(y["float"], y["int8_input"]) and torch.equal(y["float"], y["int8"])
    of_input, of_last_weight = 0, 3
    for name in ("int8_input", "int8"):
        assert not torch.equal(found[name][of_input], found["float"][of_input])
    # The gradient of the last weight depends on no gradient of an input.
    last = {name: gradients_of[of_last_weight] for name, gradients_of in found.items()}
    assert torch.equal(last["int8_input"], last["float"])
    assert not torch.equal(last["int8"], last["float"])


@pytest.mark.exhaustive
def test_a_switched_off_layer_has_floating_gradients(device: str) -> None:
    net, plain = Net("int8", "nearest").to(device), Net("float", "nearest").to(device)
    plain.load_state_dict(net.state_dict())
    x = torch.randn(5, 24, device=device)
    for model in (net, plain):
        model.apply(baraquant.nn.disable_fake_quant)
    assert_all_same(net_gradients(net, net, x), net_gradients(plain, plain, x))


def test_layers_without_integer_products_keep_float() -> None:
    """Nothing is ignored in silence: each layer's configuration and the report say what it does."""
    model = nn.Sequential(
        nn.Embedding(10, 16), nn.Linear(16, 8), nn.Unflatten(1, (8, 1)), nn.Conv1d(8, 4, 1)
    )
    report = baraquant.qat.prepare_(model, baraquant.W8A8(backward="int8", rounding="stochastic"))
    text = str(report)
    assert text.count("backward=int8 stochastic") == 1
    assert model[1].config.backward == "int8" and model[1].config.rounding == "stochastic"
    assert model[0].config.backward == "float" and model[3].config.backward == "float"
