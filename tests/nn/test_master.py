# SPDX-License-Identifier: BSD-3-Clause
"""What is quantized is the parameter as the optimizer holds it, or that rounded to ``master``.

The same in training, in evaluation and by conversion, under autocast and without it.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from baraquant import AWQ, GPTQ, W4A8, W4A16, W8A8, W8A16, QuantConfig, W8A8Static, quantize_
from baraquant.configs import Config
from baraquant.nn import FakeQuantizedExperts
from baraquant.qat import convert_, prepare_
from baraquant.workflow.served import served_experts
from tests.nn import expert_models
from tests.nn.test_nothing_stale import First
from tests.support import cases
from tests.support.schemes import described

SCHEMES: dict[str, QuantConfig] = {
    "w8a8": W8A8(), "asymmetric": W8A8(False), "backward": W8A8(backward="int8"),
    "rotated": W8A8(rotate=4), "static": W8A8Static(), "w8a16": W8A16(), "w4a16": W4A16(4, False),
    "w4a8": W4A8(4), "ternary": described("int2 per_tensor ternary, int8 per_token"),
    "w4a8_learned": W4A8(4, learned=True),
    "learned": described("int4 learned, int8 per_tensor learned"),
    "observed": described("int4 per_group(4) static, int8 per_tensor"),
    "rounded_scales": W4A16(4, scale_dtype="float16"),
}  # fmt: skip
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(16, 12), lambda: torch.randn(5, 16)),
    "conv": (lambda: nn.Conv2d(4, 6, 2), lambda: torch.randn(2, 4, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 8, 3), lambda: torch.randn(2, 4, 6)),
    "embedding": (lambda: nn.Embedding(9, 8), lambda: torch.randint(0, 9, (2, 3))),
    "lstm": (lambda: First(nn.LSTM(8, 4)), lambda: torch.randn(3, 2, 8)),
}
# Those whose training forward computes what is served, for inputs of autocast's dtype.
WHOLE = ("w8a8", "asymmetric", "backward", "rotated", "w4a8", "w4a8_learned")
by_scheme = pytest.mark.parametrize("scheme", SCHEMES)
by_model = pytest.mark.parametrize("kind", MODELS)
by_master = pytest.mark.parametrize("master", [None, "bfloat16", "float16"])
by_low = pytest.mark.parametrize("low", [None, torch.bfloat16, torch.float16], ids=str)


def made(kind: str, scheme: str, master: str | None, device: str) -> tuple[Any, Tensor]:
    """A prepared model that has seen a batch, and an input."""
    torch.manual_seed(0)
    build, example = MODELS[kind]
    model = nn.Sequential(build())
    prepare_(model, replace(SCHEMES[scheme], master=master))
    model, x = model.to(device), example().to(device)
    with torch.no_grad():
        model(x)
    return model, x


def autocast(device: str, low: torch.dtype | None) -> Any:
    return torch.autocast(device, low or torch.bfloat16, enabled=low is not None)


def layers_of(model: nn.Module) -> dict[str, Any]:
    return {name: m for name, m in model.named_modules() if hasattr(m, "weight_fake_quant")}


@by_low
@by_master
@by_scheme
@by_model
def test_evaluated_is_served(kind: str, scheme: str, master: Any, low: Any, device: str) -> None:
    model, x = made(kind, scheme, master, device)
    x = x.to(low) if low is not None and x.is_floating_point() else x
    with torch.no_grad(), autocast(device, low):
        trained, evaluated = model.train()(x), model.eval()(x)
        integers = {name: layer.quantized_weight()[0] for name, layer in layers_of(model).items()}
        weights = {name: layer.weight * 1 for name, layer in layers_of(model).items()}
        convert_(model)
        served = model(x)
    assert torch.equal(evaluated, served)
    is_row_by_row = kind == "embedding" and scheme in ("w8a8", "w8a16")
    if is_row_by_row or (kind == "linear" and scheme in WHOLE):
        assert torch.equal(trained, served)
    for name, layer in model.named_modules():
        if name in integers and hasattr(layer, "qweight"):
            assert torch.equal(layer.qweight, integers[name])
        if name in weights:
            assert torch.equal(layer.weight * 1, weights[name]), "it is read as it is served"


@by_low
@by_master
@by_scheme
@by_model
def test_the_master_is_rounded(kind: str, scheme: str, master: Any, low: Any, device: str) -> None:
    """Outputs and gradients are those of a model whose parameters are rounded already.

    Autocast alone rounds no weight before it is quantized.
    """
    model, x = made(kind, scheme, master, device)
    twin = copy.deepcopy(model)
    rounded = low if master is None else getattr(torch, master)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if rounded is not None and (master is not None or name.endswith("weight")):
                parameter.copy_(parameter.to(rounded))
    results = []
    for one in (model, twin):
        assert all(m._parameters["weight"].dtype == torch.float32 for m in layers_of(one).values())
        for mode in (True, False):
            one.zero_grad()
            torch.manual_seed(1)
            with autocast(device, low):
                y = one.train(mode)(x)
            y.float().square().sum().backward()
            gradients = [p.grad for p in one.parameters() if p.grad is not None]
            assert all(gradient.dtype == torch.float32 for gradient in gradients)
            assert len(gradients) == len(list(one.parameters())) or not mode
            results.append([y, *gradients])
    same = [all(map(torch.equal, *pair)) for pair in zip(results[:2], results[2:], strict=True)]
    if master is not None or low is None:
        assert all(same)
    elif scheme != "ternary":  # whose integers hardly follow, and outputs of 16 bits hide the scale
        assert not same[0]


@by_master
@pytest.mark.parametrize("scheme", ["w8a8", "static", "w4a16", "w4a8", "learned"])
@pytest.mark.parametrize("config", [None, "reentrant", "compiled", "scripted"])
def test_the_ways_of_pytorch(config: str | None, scheme: str, master: str | None) -> None:
    model, x = made("linear", scheme, master, "cpu")
    run, expected = partial(checkpoint, model, use_reentrant=config == "reentrant"), model(x)
    if config == "compiled":
        torch._dynamo.reset()
        run = torch.compile(model, backend="aot_eager", fullgraph=True)
    elif config == "scripted":
        run = torch.jit.script(copy.deepcopy(model))
    assert torch.equal(run(x), expected)


@pytest.mark.inductor
@pytest.mark.parametrize("low", [False, True])
def test_inductor_rounds_too(low: bool) -> None:
    """It would remove two casts."""
    torch._dynamo.reset()
    model, x = made("linear", "w4a16", "bfloat16", "cpu")
    compiled = torch.compile(model, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        torch.testing.assert_close(compiled(x), model(x))
        rounded = torch.compile(lambda: model[0].weight_to_round())()
    assert torch.equal(rounded, model[0].weight.bfloat16().float())


# Of each name of a scheme what quantizes by it.
AFTER: dict[str, tuple[str, Callable[..., Config]]] = {
    **{name: (name, lambda config: config) for name in ("w8a8", "w4a16", "w4a8_learned")},
    "gptq": ("w4a16", GPTQ),
    "awq": ("w4a16", AWQ),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("master", ["bfloat16", "float16"])
def test_quantize_rounds_first(after: str, master: str) -> None:
    """As a model does whose parameters are rounded already."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 12))
    nn.init.uniform_(model[0].weight, 0.1, 8.0)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin[1].parameters():
            parameter.copy_(parameter.to(getattr(torch, master)))
    batches = [torch.randn(8, 16, generator=cases.generator(i)) for i in range(3)]
    name, wrap = AFTER[after]
    for one, config in ((model, replace(SCHEMES[name], master=master)), (twin, SCHEMES[name])):
        quantize_(one, wrap(config), calibration=batches)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


@by_master
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("scheme", ["w8a8", "asymmetric", "static", "w4a16", "learned"])
def test_experts(scheme: str, kind: str, master: str | None) -> None:
    given = expert_models.inputs(kind)
    config = replace(SCHEMES[scheme], master=master)
    module = FakeQuantizedExperts.from_float(expert_models.experts(kind), config)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        given = (given[0].bfloat16(), *given[1:])
        module.train()(*given)
        trained, evaluated = module(*given), module.eval()(*given)
        served = served_experts(module)
        assert torch.equal(evaluated, served(*given))
        if scheme in WHOLE:
            assert torch.equal(trained, evaluated)
    for name in module.form.weights:
        weight = module.float_weight(name).detach()
        rounded = weight if master is None else weight.to(getattr(torch, master)).float()
        assert torch.equal(module.weight_to_round(name), module.form.canonical(rounded))


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@by_scheme
def test_16_bits_under_autocast(scheme: str, dtype: torch.dtype, low: torch.dtype) -> None:
    """Also of another dtype than autocast's, and for inputs of float32, as a norm gives them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).to(dtype)
    prepare_(model, SCHEMES[scheme])
    x = torch.randn(3, 16)
    with torch.autocast("cpu", low):
        y = model(x)
    y.float().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == parameter.dtype
    with torch.no_grad(), torch.autocast("cpu", low):
        evaluated = model.eval()(x)
        convert_(model)
        assert torch.equal(evaluated, model(x))
