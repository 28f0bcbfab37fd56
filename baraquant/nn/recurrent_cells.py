# SPDX-License-Identifier: BSD-3-Clause
"""``LSTMCell``, ``GRUCell`` and ``RNNCell`` made of linear layers, so that they can be quantized.

A cell has the layers ``ih``, for the input, and ``hh``, for the hidden state; in an ``LSTM`` with
``proj_size`` also ``hr``, for the projection. PyTorch's ``weight_ih`` is ``ih.weight`` here, and so
on; PyTorch's names can be read too.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from ._recurrent_cell import Cell


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
        super().__init__(input_size, hidden_size, bias, device, dtype, proj_size)

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


class GRUCell(Cell):
    """``torch.nn.GRUCell`` with a linear layer for each product, so that they can be quantized.

    With thirds of ``ih(x)`` and of ``hh(h)``: ``r = sigmoid(x_r + h_r)``, ``z = sigmoid(x_z +
    h_z)``, ``n = tanh(x_n + r * h_n)`` and ``h' = (1 - z) * n + z * h``.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the hidden state.
        bias: Whether both layers have a bias.
        device: The device of the parameters.
        dtype: The dtype of the parameters.

    Raises:
        ValueError: A size that is not > 0, or a tensor that does not fit.

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

    def step(self, product: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next hidden state."""
        h = state[0]
        x_r, x_z, x_n = product.chunk(3, 1)
        h_r, h_z, h_n = self.hh(h).chunk(3, 1)
        n = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
        return [n + (x_z + h_z).sigmoid() * (h - n)]


class RNNCell(Cell):
    """``torch.nn.RNNCell`` with a linear layer for each product, so that they can be quantized.

    ``h' = tanh(ih(x) + hh(h))``, or ``relu`` of that.

    Args:
        input_size: Features of the input.
        hidden_size: Features of the hidden state.
        bias: Whether both layers have a bias.
        nonlinearity: ``tanh`` or ``relu``.
        device: The device of the parameters.
        dtype: The dtype of the parameters.

    Raises:
        ValueError: A size that is not > 0, another nonlinearity, or a tensor that does not fit.

    Example:
        >>> cell = baraquant.nn.RNNCell(3, 4, nonlinearity="relu")
        >>> cell(torch.randn(2, 3)).shape
        torch.Size([2, 4])
    """

    _float = nn.RNNCell
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
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(
                f"RNNCell: expected nonlinearity to be tanh or relu, but got {nonlinearity!r}"
            )
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    @classmethod
    def _options_of(cls, cell: nn.Module) -> dict[str, Any]:
        return {"bias": cell.bias, "nonlinearity": cell.nonlinearity}

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

    def step(self, product: Tensor, state: list[Tensor]) -> list[Tensor]:
        """Return the next hidden state."""
        gate = product + self.hh(state[0])
        return [gate.tanh() if self.nonlinearity == "tanh" else gate.relu()]

    def extra_repr(self) -> str:
        """Return the sizes and the nonlinearity, for ``repr``."""
        return f"{super().extra_repr()}, nonlinearity={self.nonlinearity}"
