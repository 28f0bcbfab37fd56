# SPDX-License-Identifier: BSD-3-Clause
"""``LSTMCell``, ``GRUCell`` and ``RNNCell`` made of linear layers, so that they can be quantized.

A cell has the layers ``ih``, for the input, and ``hh``, for the hidden state; in an ``LSTM`` with
``proj_size`` also ``hr``, for the projection. PyTorch's ``weight_ih`` is ``ih.weight`` here, and so
on; PyTorch's names can be read too.
"""

import math
import re
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .shared.arguments import check

_PARAMETER = re.compile(r"(weight|bias)_(ih|hh|hr)")


class TakesPlace(nn.Module):  # type: ignore[misc]
    """A module that takes the place of one of PyTorch's, and shares its parameters."""

    _float: type[nn.Module]  # PyTorch's
    _options: tuple[str, ...]  # further arguments, which PyTorch's module has as attributes

    @classmethod
    def why_not(cls, module: nn.Module) -> str | None:
        """Return why one of PyTorch's modules cannot be replaced; None if it can."""
        if getattr(type(module), "forward", None) is not cls._float.forward:
            return f"{type(module).__name__} has a forward of its own"
        if "forward" in vars(module):
            return "its forward was replaced by another"
        for name in cls._names_of(module):
            if module._parameters.get(name) is None:
                return f"its {name} is computed by a parametrization or a hook"
        return None

    @classmethod
    def from_float(cls, module: nn.Module) -> Self:
        """Return a module that shares the parameters of PyTorch's module.

        Raises:
            ValueError: The module cannot be replaced (:meth:`why_not`).
        """
        reason = cls.why_not(module)
        if reason is not None:
            raise ValueError(f"{cls.__name__}: {reason}")
        options = {name: getattr(module, name) for name in cls._options}
        new = cls(module.input_size, module.hidden_size, **options, device="meta")
        new.share(module)
        new.train(module.training)
        return new

    @classmethod
    def _names_of(cls, module: nn.Module) -> Iterable[str]:
        """Return the names of the parameters of PyTorch's module."""
        raise NotImplementedError

    def share(self, module: nn.Module) -> None:
        """Share the parameters of PyTorch's module."""
        raise NotImplementedError


class Cell(TakesPlace):
    """The base of the cells.

    A state is a list of tensors ``[batch, size]``, of which the first is also the cell's output. A
    subclass defines :meth:`step`; :meth:`run` applies it to whole sequences.
    """

    _options: tuple[str, ...] = ("bias",)
    gates = 1  # how many times hidden_size the products are
    name: Final[str]  # of the class, for messages
    input_size: Final[int]
    hidden_size: Final[int]
    bias: Final[bool]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        check_sizes(self.name, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        output, rows = proj_size or hidden_size, self.gates * hidden_size
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.ih = nn.Linear(input_size, rows, bias, **options)
        self.hh = nn.Linear(output, rows, bias, **options)
        self.hr = nn.Linear(hidden_size, output, False, **options) if proj_size > 0 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters again, as PyTorch's modules do."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.own_weights():
            nn.init.uniform_(parameter, -bound, bound)

    def own_weights(self) -> list[Tensor]:
        """Return weights and biases in PyTorch's order."""
        weights = [self.ih.weight, self.hh.weight]
        weights += [self.ih.bias, self.hh.bias] if self.bias else []
        return weights if self.hr is None else [*weights, self.hr.weight]

    def share(self, module: nn.Module, suffix: str = "") -> None:
        """Share the parameters of a PyTorch module whose names end in ``suffix``."""
        for part in ("ih", "hh", "hr"):
            layer = getattr(self, part)
            if layer is not None:
                layer.weight = module._parameters[f"weight_{part}{suffix}"]
                if layer.bias is not None:
                    layer.bias = module._parameters[f"bias_{part}{suffix}"]

    def __getattr__(self, name: str) -> Any:
        found = _PARAMETER.fullmatch(name)
        if found is None:
            return super().__getattr__(name)
        return getattr(getattr(self, found[2]), found[1])

    @classmethod
    def _names_of(cls, module: nn.Module) -> Iterable[str]:
        kinds = ("weight", "bias") if getattr(module, "bias", None) is True else ("weight",)
        return [f"{kind}_{part}" for kind in kinds for part in ("ih", "hh")]

    def step(self, product: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next state, given ``ih`` of the input and the state before."""
        raise NotImplementedError

    def run(
        self, rows: Tensor, sizes: list[int], start: list[Tensor], is_reverse: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs ``[rows, size]`` of all steps, and the last state of each sequence.

        Args:
            rows: The inputs of the first step, then those of the second, and so on: ``[rows,
                features]``.
            sizes: How many sequences have each step. The longest sequences come first, so no size
                exceeds the one before.
            start: The state of all sequences before their first step.
            is_reverse: Whether the sequences are read backwards.
        """
        products = self.ih(rows)  # of all steps at once
        # Autocast may have chosen a dtype that differs from the inputs' dtype.
        state = [one.to(products.dtype) for one in start]
        steps = products.split(sizes)
        return self._run_back(steps, state) if is_reverse else self._run_on(steps, state)

    def _run_on(self, steps: list[Tensor], state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        size = steps[0].shape[0]
        outputs: list[Tensor] = []
        ended: list[list[Tensor]] = []
        for step in steps:
            if step.shape[0] < size:
                size = step.shape[0]
                ended.append([one[size:] for one in state])
                state = [one[:size] for one in state]
            state = self.step(step, state)
            outputs.append(state[0])
        ended.reverse()
        for others in ended:
            state = [torch.cat([state[i], others[i]]) for i in range(len(state))]
        return torch.cat(outputs), state

    def _run_back(self, steps: list[Tensor], start: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        size = steps[-1].shape[0]
        state = [one[:size] for one in start]
        outputs: list[Tensor] = []
        for i in range(len(steps)):
            step = steps[len(steps) - 1 - i]
            if step.shape[0] > size:
                others = [one[size : step.shape[0]] for one in start]
                state = [torch.cat([state[i], others[i]]) for i in range(len(state))]
                size = step.shape[0]
            state = self.step(step, state)
            outputs.append(state[0])
        outputs.reverse()
        return torch.cat(outputs), state

    def _advance(self, input: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next state of a batch or of one sequence; without a state, of zeros."""
        size = self.input_size
        if input.dim() not in (1, 2) or input.shape[-1] != size:
            raise ValueError(
                f"{self.name}: expected input to have the shape [{size}] or [batch, {size}] "
                f"(input_size), but got {list(input.shape)}"
            )
        shape = [self.hidden_size] if input.dim() == 1 else [input.shape[0], self.hidden_size]
        for one in state:
            if list(one.shape) != shape:
                raise ValueError(
                    f"{self.name}: expected hx to have the shape {shape} (hidden_size), "
                    f"but got {list(one.shape)}"
                )
        rows = input.unsqueeze(0) if input.dim() == 1 else input
        product = self.ih(rows)
        if len(state) == 0:
            zeros = torch.zeros(
                [rows.shape[0], self.hidden_size], dtype=product.dtype, device=product.device
            )
            state = [zeros, zeros]
        elif input.dim() == 1:
            state = [one.unsqueeze(0) for one in state]
        state = self.step(product, [one.to(product.dtype) for one in state])
        return [one.squeeze(0) for one in state] if input.dim() == 1 else state

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias}"


def check_sizes(name: str, **sizes: int) -> None:
    """Check that sizes are whole numbers above 0."""
    for argument, size in sizes.items():
        fits = isinstance(size, int) and size > 0
        check(name, fits, f"{argument} to be an int > 0", repr(size))


class LSTMCell(Cell):
    """``torch.nn.LSTMCell`` with a linear layer for each product, so that they can be quantized.

    With ``i, f, g, o`` the quarters of ``ih(x) + hh(h)``: ``c' = sigmoid(f) * c + sigmoid(i) *
    tanh(g)`` and ``h' = sigmoid(o) * tanh(c')``.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the hidden state and of the cell state.
        bias: Whether both layers have a bias.
        device: The device of the parameters.
        dtype: The dtype of the parameters.
        proj_size: If > 0, a linear layer ``hr`` makes this many features of the hidden state. Used
            by :class:`LSTM`; PyTorch's cell has no projection, and ``forward`` takes no state of
            that size.

    Raises:
        ValueError: A size that is not > 0, or a tensor that does not fit.

    Example:
        >>> cell = baraquant.nn.LSTMCell(3, 4)
        >>> h, c = cell(torch.randn(2, 3))
        >>> h.shape, c.shape
        (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    _float = nn.LSTMCell
    gates = 4

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next hidden state and cell state, each ``[batch, hidden_size]``.

        Args:
            input: ``[batch, input_size]`` or ``[input_size]``.
            hx: The two states before; None: zeros.
        """
        state: list[Tensor] = []
        if hx is not None:
            state = [hx[0], hx[1]]
        state = self._advance(input, state)
        return state[0], state[1]

    def step(self, product: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next hidden state and cell state."""
        i, f, g, o = (product + self.hh(state[0])).chunk(4, 1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        if self.hr is not None:
            h = self.hr(h)
        return [h, c]


class _OneState(Cell):
    """The base of ``GRUCell`` and ``RNNCell``, whose only state is the hidden state."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next hidden state, ``[batch, hidden_size]``.

        Args:
            input: ``[batch, input_size]`` or ``[input_size]``.
            hx: The hidden state before; None: zeros.
        """
        state: list[Tensor] = []
        if hx is not None:
            state = [hx]
        return self._advance(input, state)[0]


class GRUCell(_OneState):
    """``torch.nn.GRUCell`` with a linear layer for each product, so that they can be quantized.

    With thirds of ``ih(x)`` and of ``hh(h)``: ``r = sigmoid(x_r + h_r)``, ``z = sigmoid(x_z +
    h_z)``, ``n = tanh(x_n + r * h_n)`` and ``h' = (1 - z) * n + z * h``.

    Everything else is as in :class:`LSTMCell`, whose arguments it has, but for ``proj_size``.

    Example:
        >>> cell = baraquant.nn.GRUCell(3, 4)
        >>> cell(torch.randn(2, 3)).shape
        torch.Size([2, 4])
    """

    _float = nn.GRUCell
    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def step(self, product: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next hidden state."""
        h = state[0]
        x_r, x_z, x_n = product.chunk(3, 1)
        h_r, h_z, h_n = self.hh(h).chunk(3, 1)
        n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
        return [n + (x_z + h_z).sigmoid() * (h - n)]


class RNNCell(_OneState):
    """``torch.nn.RNNCell`` with a linear layer for each product, so that they can be quantized.

    ``h' = tanh(ih(x) + hh(h))``, or ``relu`` of that.

    Args:
        nonlinearity: ``tanh`` or ``relu``; another one is a ValueError.

    Everything else is as in :class:`GRUCell`, whose arguments it has.

    Example:
        >>> cell = baraquant.nn.RNNCell(3, 4, nonlinearity="relu")
        >>> cell(torch.randn(2, 3)).shape
        torch.Size([2, 4])
    """

    _float = nn.RNNCell
    _options = ("bias", "nonlinearity")
    nonlinearity: Final[str]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        is_known = nonlinearity in ("tanh", "relu")
        check("RNNCell", is_known, "nonlinearity to be tanh or relu", repr(nonlinearity))
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def step(self, product: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next hidden state."""
        gate = product + self.hh(state[0])
        return [gate.tanh() if self.nonlinearity == "tanh" else gate.relu()]

    def extra_repr(self) -> str:
        """Return the sizes and the nonlinearity, for ``repr``."""
        return f"{super().extra_repr()}, nonlinearity={self.nonlinearity}"
