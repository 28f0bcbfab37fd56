# SPDX-License-Identifier: BSD-3-Clause
"""``LSTM``, ``GRU`` and ``RNN`` whose products are linear layers, so that they can be quantized.

Each layer and direction is a cell (recurrent_cells.py) in ``cells``: ``l0``, ``l0_reverse``,
``l1``, ... What PyTorch calls ``weight_ih_l0`` is ``cells.l0.ih.weight`` here, and so on; PyTorch's
names can be read too.
"""

from typing import Final

import torch
from torch import Tensor, nn

from .._docstrings import documented
from ._recurrent import Recurrent
from .recurrent_cells import GRUCell, LSTMCell, RNNCell

_ARGUMENTS = """
Args:
    input_size: Features of the input.
    hidden_size: Features of $states.
    num_layers: The number of stacked layers.
    $nonlinearity
    bias: Whether the layers ``ih`` and ``hh`` have a bias.
    batch_first: Whether the batch is the first dimension of input and output, else the second.
    dropout: Probability to drop an output of any layer except the last, in training.
    bidirectional: Whether a second direction reads each sequence backwards.
    $proj_size
    device: The device of the parameters.
    dtype: The dtype of the parameters.

Raises:
    ValueError: An argument or the shape of a tensor does not fit.

$example
"""


@documented(
    _ARGUMENTS,
    states="the hidden state and of the cell state",
    nonlinearity="",
    proj_size=(
        "proj_size: If > 0, a linear layer ``hr`` makes this many features of the hidden state."
    ),
)
class LSTM(Recurrent):
    """``torch.nn.LSTM`` with linear layers for its products, so that they can be quantized.

    Arguments, shapes, states and results are PyTorch's. The product with the input is computed once
    for the whole sequence, the product with the hidden state once for each step. There is no fused
    kernel, and ``torch.compile`` unrolls the steps. TorchScript does not take packed sequences.

    Example:
        >>> lstm = baraquant.nn.LSTM(3, 4, num_layers=2, batch_first=True)
        >>> output, (h, c) = lstm(torch.randn(5, 7, 3))
        >>> output.shape, h.shape
        (torch.Size([5, 7, 4]), torch.Size([2, 5, 4]))
    """

    _float = nn.LSTM
    _cell = LSTMCell
    _own_options = ("proj_size",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            "LSTM",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device=device,
            dtype=dtype,
        )

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs of the last layer, and the last hidden and cell states of all layers.

        Args:
            input: ``[steps, batch, input_size]``, with ``batch_first`` ``[batch, steps,
                input_size]``, without a batch ``[steps, input_size]``; or a ``PackedSequence``,
                which makes the output one.
            hx: The states before the first step, ``[num_layers * directions, batch, proj_size or
                hidden_size]`` and ``[num_layers * directions, batch, hidden_size]``; None: zeros.
        """
        given: list[Tensor] = []
        if hx is not None:
            given = [hx[0], hx[1]]
        output, last = self._run(input, given)
        return output, (last[0], last[1])


class _OneState(Recurrent):
    """The base of ``GRU`` and ``RNN``, whose only state is the hidden state."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the outputs of the last layer, and the last hidden states of all layers.

        Args:
            input: ``[steps, batch, input_size]``, with ``batch_first`` ``[batch, steps,
                input_size]``, without a batch ``[steps, input_size]``; or a ``PackedSequence``,
                which makes the output one.
            hx: The states before the first step, ``[num_layers * directions, batch, hidden_size]``;
                None: zeros.
        """
        given: list[Tensor] = []
        if hx is not None:
            given = [hx]
        output, last = self._run(input, given)
        return output, last[0]


@documented(_ARGUMENTS, states="the hidden state", nonlinearity="", proj_size="")
class GRU(_OneState):
    """``torch.nn.GRU`` with linear layers for its products, so that they can be quantized.

    Arguments, shapes, states and results are PyTorch's; the computation is that of :class:`LSTM`.

    Example:
        >>> gru = baraquant.nn.GRU(3, 4, bidirectional=True)
        >>> output, h = gru(torch.randn(7, 5, 3))
        >>> output.shape, h.shape
        (torch.Size([7, 5, 8]), torch.Size([2, 5, 4]))
    """

    _float = nn.GRU
    _cell = GRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            "GRU",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
        )


@documented(
    _ARGUMENTS,
    states="the hidden state",
    nonlinearity="nonlinearity: ``tanh`` or ``relu``.",
    proj_size="",
)
class RNN(_OneState):
    """``torch.nn.RNN`` with linear layers for its products, so that they can be quantized.

    Arguments, shapes, states and results are PyTorch's; the computation is that of :class:`LSTM`.

    Example:
        >>> rnn = baraquant.nn.RNN(3, 4, nonlinearity="relu")
        >>> output, h = rnn(torch.randn(7, 5, 3))
        >>> output.shape, h.shape
        (torch.Size([7, 5, 4]), torch.Size([1, 5, 4]))
    """

    _float = nn.RNN
    _cell = RNNCell
    _own_options = ("nonlinearity",)
    nonlinearity: Final[str]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            f"RNN_{nonlinearity}".upper(),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device=device,
            dtype=dtype,
            nonlinearity=nonlinearity,
        )
        self.nonlinearity = nonlinearity
