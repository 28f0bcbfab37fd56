# SPDX-License-Identifier: BSD-3-Clause
"""How far the gradients of an integer backward pass are from the exact straight-through ones.

The exact ones are those of ``backward="float"``, which is the default. A model with another
``backward`` has the same forward pass bit for bit, so at every step both get the same weights and
the same batch. Two cosines are taken of each layer's gradients, of its weight and of its input:

* **alone**: the layer gets the exact gradient of its output. This is the error of its own rounding.
* **step**: of the whole backward pass. The error of all later layers is in it.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from lm_training import adamw, autocast, loss_of, rate

WAYS = ("alone", "step")
WHAT = ("weight", "input")
LEAST = 0.999  # asked of int8_input


@dataclass(frozen=True)
class Captured:
    """What one backward pass gave a layer; all tensors are detached.

    Attributes:
        input: Of the layer.
        output_grad: The gradient of its output.
        grads: Those of its weight and of its input.
    """

    input: Tensor
    output_grad: Tensor
    grads: dict[str, Tensor]


@dataclass(frozen=True)
class Cosines:
    """The least cosines of one scheme.

    Attributes:
        scheme: Its name.
        steps: How many steps were compared.
        least: By way, layer, and ``weight`` or ``input``.
    """

    scheme: str
    steps: int
    least: dict[str, dict[str, dict[str, float]]]

    def worst(self, way: str) -> tuple[float, str]:
        """Return the least cosine of all layers, and whose it is; a NaN is the least of all."""
        found = [
            (value, f"{what} of {layer}")
            for layer, by_what in self.least[way].items()
            for what, value in by_what.items()
        ]
        return min(found, key=lambda pair: pair[0] if pair[0] == pair[0] else -2.0)


def prepared_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that compute integer products, by their paths."""
    kind = baraquant.nn.FakeQuantizedLinear
    return {path: module for path, module in model.named_modules() if isinstance(module, kind)}


def capture(model: nn.Module, batch: Tensor, dtype: torch.dtype) -> tuple[Tensor, dict[str, Any]]:
    """Run forward and backward; return the loss, and a ``Captured`` for each layer's path."""
    inputs: dict[str, Tensor] = {}
    grads: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = []
    for path, layer in prepared_layers(model).items():

        def forward_hook(_: Any, given: Any, __: Any, path: str = path) -> None:
            inputs[path] = given[0].detach()

        def backward_hook(_: Any, to_input: Any, of_output: Any, path: str = path) -> None:
            grads[path] = of_output[0].detach(), to_input[0].detach()

        hooks.append(layer.register_forward_hook(forward_hook))
        hooks.append(layer.register_full_backward_hook(backward_hook))
    model.zero_grad()
    try:
        loss = loss_of(model, batch, dtype)
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for path, layer in prepared_layers(model).items():
        output_grad, input_grad = grads[path]
        weight_grad = layer.weight.grad.detach().clone()
        both = {"weight": weight_grad, "input": input_grad}
        found[path] = Captured(inputs[path], output_grad, both)
    return loss.detach(), found


def alone(layer: nn.Module, exact: Captured, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the gradients that a layer computes from the exact gradient of its output."""
    given = exact.input.clone().requires_grad_()
    with autocast(given.device, dtype):
        output = layer(given)
    of_weight, of_input = torch.autograd.grad(output, [layer.weight, given], exact.output_grad)
    return {"weight": of_weight, "input": of_input}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of two gradients, each taken as one long vector; float64."""
    a, b = a.double().flatten(), b.double().flatten()
    return (a @ b) / (a.norm() * b.norm())


def compare(
    exact: nn.Module, other: nn.Module, batch: Tensor, dtype: torch.dtype
) -> dict[tuple[str, str, str], Tensor]:
    """Return the cosines of one batch, by way, layer, and ``weight`` or ``input``.

    Raises:
        AssertionError: The two forward passes differ, so that nothing could be compared.
    """
    other.load_state_dict(exact.state_dict())
    expected_loss, expected = capture(exact, batch, dtype)
    loss, found = capture(other, batch, dtype)
    if not torch.equal(loss, expected_loss):
        raise AssertionError(f"the forward passes differ: {float(loss)}, {float(expected_loss)}")
    cosines = {}
    for path, layer in prepared_layers(other).items():
        by_way = {"alone": alone(layer, expected[path], dtype), "step": found[path].grads}
        for way, grads in by_way.items():
            for what in WHAT:
                cosines[way, path, what] = cosine(grads[what], expected[path].grads[what])
    return cosines


def least_cosines(
    floats: nn.Module,
    configs: dict[str, Any],
    batches: Iterator[Tensor],
    steps: int,
    learning_rate: float,
    dtype: torch.dtype,
    compared: int,
    tick: Callable[[str], None],
) -> list[Cosines]:
    """Train with exact gradients, and at some of the steps look what the others would be.

    Args:
        floats: The model to start from, which stays as it is.
        configs: The baseline's configuration first, then those to compare with it, by name.
        batches: Where the batches come from.
        steps: Of the training.
        learning_rate: Its maximum.
        dtype: Of the products.
        compared: At how many of the steps to compare, evenly spread.
        tick: Hears the name of the comparison at each step.
    """
    models = {}
    for name, config in configs.items():
        models[name] = copy.deepcopy(floats).train()
        baraquant.qat.prepare_(models[name], config, progress=False)
    exact, *others = models
    optimizer = adamw(models[exact], learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    least: dict[str, dict[tuple[str, str, str], Tensor]] = {name: {} for name in others}
    chosen = {index * steps // compared for index in range(compared)}
    for step in range(steps):
        batch = next(batches)
        for name in others if step in chosen else []:
            found = compare(models[exact], models[name], batch, dtype)
            known = least[name]
            for key, value in found.items():  # minimum hands a NaN on
                known[key] = torch.minimum(known[key], value) if key in known else value
        optimizer.zero_grad()
        loss_of(models[exact], batch, dtype).backward()
        nn.utils.clip_grad_norm_(models[exact].parameters(), 1.0)
        optimizer.step()
        schedule.step()
        tick("gradients")
    return [Cosines(name, len(chosen), _nested(values)) for name, values in least.items()]


def _nested(values: dict[tuple[str, str, str], Tensor]) -> dict[str, Any]:
    nested: dict[str, Any] = {way: {} for way in WAYS}
    for (way, path, what), value in values.items():
        nested[way].setdefault(path, {})[what] = float(value)
    return nested
