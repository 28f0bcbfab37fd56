# SPDX-License-Identifier: BSD-3-Clause
"""``LSTM``, ``GRU`` and ``RNN`` whose products are linear layers, so that they can be quantized.

Each layer and direction is a cell (recurrent_cells.py) in ``cells``: ``l0``, ``l0_reverse``,
``l1``, ... What PyTorch calls ``weight_ih_l0`` is ``cells.l0.ih.weight`` here, and so on; PyTorch's
names can be read too.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from .._docstrings import documented
from .recurrent_cells import Cell, GRUCell, LSTMCell, RNNCell, TakesPlace, check_sizes
from .shared.arguments import check

_PARAMETER = re.compile(r"(weight|bias)_(ih|hh|hr)_(l\d+(?:_reverse)?)")


class Recurrent(TakesPlace):
    """The base of the three. A state is a list: the hidden state, and for an LSTM the cell state.

    Sequences of one length and packed ones are processed alike: first the rows of all first steps,
    then the rows of all second steps, and so on.
    """

    __jit_unused_properties__ = ("all_weights",)
    _options: tuple[str, ...] = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
    _cell: type[Cell]
    # Further arguments of the cells: a subclass sets these attributes before this constructor.
    _own_options: tuple[str, ...] = ()
    name: Final[str]  # of the class, for messages
    mode: Final[str]
    input_size: Final[int]
    hidden_size: Final[int]
    num_layers: Final[int]
    bias: Final[bool]
    batch_first: Final[bool]
    bidirectional: Final[bool]
    proj_size: int
    dropout: float
    state_sizes: list[int]

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
        of_cells = {name: getattr(self, name) for name in self._own_options}
        super().__init__()
        proj_size: int = of_cells.get("proj_size", 0)
        self.name = name = type(self).__name__
        check_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        fits = not isinstance(dropout, bool) and 0 <= dropout <= 1
        check(name, fits, "dropout to lie in [0, 1]", repr(dropout))
        wanted = f"proj_size to lie in [0, {hidden_size}) (hidden_size)"
        check(name, 0 <= proj_size < hidden_size, wanted, proj_size)
        kind, nonlinearity = self._float.__name__, of_cells.get("nonlinearity")
        self.mode = kind if nonlinearity is None else f"{kind}_{nonlinearity}".upper()
        self.input_size, self.hidden_size, self.proj_size = input_size, hidden_size, proj_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        directions = ("", "_reverse") if bidirectional else ("",)
        output = proj_size or hidden_size
        self.state_sizes = [output, hidden_size] if kind == "LSTM" else [output]
        self.cells = nn.ModuleDict()
        for layer in range(num_layers):
            features = input_size if layer == 0 else output * len(directions)
            for direction in directions:
                cell = self._cell(
                    features, hidden_size, bias, device=device, dtype=dtype, **of_cells
                )
                self.cells[f"l{layer}{direction}"] = cell

    def reset_parameters(self) -> None:
        """Initialize all parameters again, as PyTorch's modules do."""
        for cell in self.cells.values():
            cell.reset_parameters()

    def flatten_parameters(self) -> None:
        """Do nothing: there is no fused kernel that needs contiguous weights."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The weights and biases of each layer and direction, in PyTorch's order."""
        return [cell.own_weights() for cell in self.cells.values()]

    def __getattr__(self, name: str) -> Any:
        found = _PARAMETER.fullmatch(name)
        if found is None or found[3] not in self.cells:
            return super().__getattr__(name)
        return getattr(self.cells[found[3]], f"{found[1]}_{found[2]}")

    @classmethod
    def _names_of(cls, module: nn.Module) -> Iterable[str]:
        names: Iterable[str] = getattr(module, "_flat_weights_names", ())
        return names

    def share(self, module: nn.Module) -> None:
        """Share the parameters of PyTorch's module."""
        for name, cell in self.cells.items():
            cell.share(module, f"_{name}")

    def _run(self, input: Tensor, given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the output and the last states; missing states are zeros."""
        if not torch.jit.is_scripting():  # noqa: SIM102 - TorchScript skips the block
            if isinstance(input, PackedSequence):
                return self._run_packed(input, given)
        return self._run_padded(input, given)

    def _run_padded(self, input: Tensor, given: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        if input.dim() not in (2, 3):
            raise ValueError(
                f"{self.name}: expected input to have 2 or 3 dimensions, "
                f"but got {list(input.shape)}"
            )
        is_batched = input.dim() == 3
        if not is_batched:
            input = input.unsqueeze(1)
            given = [one.unsqueeze(1) for one in given]
        elif self.batch_first:
            input = input.transpose(0, 1)
        steps, batch = input.shape[0], input.shape[1]  # [steps, batch, features]
        if steps == 0:
            raise ValueError(f"{self.name}: expected input to have at least one step, but got none")
        start = self._start(given, batch, input)
        rows, last = self._run_cells(input.flatten(0, 1), [batch] * steps, start)
        output = rows.unflatten(0, [steps, batch])
        if not is_batched:
            return output.squeeze(1), [one.squeeze(1) for one in last]
        return output.transpose(0, 1) if self.batch_first else output, last

    def _run_packed(
        self, packed: PackedSequence, given: list[Tensor]
    ) -> tuple[PackedSequence, list[Tensor]]:
        data, batch_sizes, order, back = packed
        sizes = batch_sizes.tolist()
        # The states are in the order of the user's sequences.
        if order is not None:
            given = [one.index_select(1, order) for one in given]
        rows, last = self._run_cells(data, sizes, self._start(given, sizes[0], data))
        if back is not None:
            last = [one.index_select(1, back) for one in last]
        return PackedSequence(rows, batch_sizes, order, back), last

    def _start(self, given: list[Tensor], batch: int, input: Tensor) -> list[Tensor]:
        """Return the states before the first step, ``[cells, batch, size]`` each."""
        if input.shape[-1] != self.input_size:
            raise ValueError(
                f"{self.name}: expected input to have {self.input_size} features (input_size), "
                f"but got {input.shape[-1]}"
            )
        start: list[Tensor] = []
        for i in range(len(self.state_sizes)):
            shape = [len(self.cells), batch, self.state_sizes[i]]
            if len(given) == 0:
                start.append(torch.zeros(shape, dtype=input.dtype, device=input.device))
            elif list(given[i].shape) == shape:
                start.append(given[i])
            else:
                raise ValueError(
                    f"{self.name}: expected the initial state to have the shape {shape} "
                    f"(num_layers * directions, batch, size), but got {list(given[i].shape)}"
                )
        return start

    def _run_cells(
        self, rows: Tensor, sizes: list[int], start: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run rows of steps (:meth:`Cell.run`) through all layers."""
        outputs: list[Tensor] = []
        lasts: list[list[Tensor]] = []
        for index, cell in enumerate(self.cells.values()):
            is_reverse = self.bidirectional and index % 2 == 1
            output, last = cell.run(rows, sizes, [one[index] for one in start], is_reverse)
            outputs.append(output)
            lasts.append(last)
            if is_reverse or not self.bidirectional:  # the layer's last direction
                rows = torch.cat(outputs, 1)
                outputs = outputs[:0]
                if index + 1 < len(self.cells) and self.dropout > 0.0:
                    rows = F.dropout(rows, self.dropout, self.training)
        return rows, [
            torch.stack([last[i] for last in lasts]) for i in range(len(self.state_sizes))
        ]

    def extra_repr(self) -> str:
        """Return the arguments that differ from their defaults, for ``repr``."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {"num_layers": 1, "batch_first": False, "dropout": 0.0, "bidirectional": False}
        defaults |= {"proj_size": 0, "bias": True}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                parts.append(f"{name}={getattr(self, name)}")
        return ", ".join(parts)


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
    _options = (*Recurrent._options, *_own_options)

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
        self.proj_size = proj_size
        sizes = input_size, hidden_size, num_layers
        super().__init__(*sizes, bias, batch_first, dropout, bidirectional, device, dtype)

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
    _options = (*Recurrent._options, *_own_options)
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
        self.nonlinearity = nonlinearity
        sizes = input_size, hidden_size, num_layers
        super().__init__(*sizes, bias, batch_first, dropout, bidirectional, device, dtype)
