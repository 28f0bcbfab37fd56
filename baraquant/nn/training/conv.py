# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions and embeddings in quantization-aware training: their weights are fake-quantized.

In evaluation each computes what :func:`baraquant.qat.convert_` makes of it, to the last bit.
"""

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from ... import ops
from ...configs import Config, QuantConfig
from ...schemes import W8A8, quant_config
from ._quantizers import QuantizesWeight, check_groups

M = TypeVar("M", bound=nn.Module)
_CONSTANTS = (*QuantizesWeight.__constants__, *nn.Conv2d.__constants__)


class _FakeQuantized(QuantizesWeight):
    """What all share: how one is made. Mixed into one of PyTorch's modules."""

    def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_config(W8A8() if config is None else config)

    @classmethod
    def from_float(cls, module: nn.Module, config: Config) -> Self:
        """Return a layer that shares the parameters of ``module``, of the kind it is one of."""
        layer = _like(cls, module)
        layer._set_config(config)
        return layer

    def _set_config(self, config: Config) -> None:
        raise NotImplementedError


class _FakeQuantizedConv(_FakeQuantized):
    """What the convolutions share."""

    def _set_config(self, config: Config) -> None:
        qat = conv_config(quant_config(config))
        if qat.weight.granularity == "per_group":
            raise ValueError(
                "expected a per_tensor or per_channel weight of a convolution, but got per_group"
            )
        self._set_quantizers(qat, qat.activation)

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the rounded input."""
        weight = self._fake_quantized_weight()
        return self._conv_forward(self._rounded_input(input), weight, self.bias)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        activation = self.config.activation
        about = f"weight={self.config.weight}, input={activation or 'float'}"
        return f"{nn.modules.conv._ConvNd.extra_repr(self)}, {about}"


class FakeQuantizedConv1d(_FakeQuantizedConv, nn.Conv1d):  # type: ignore[misc]
    """A ``Conv1d`` whose weight, and input, are fake-quantized; both stay floating.

    A scale per token is not for convolutions (a vector along the last dimension is a stretch of
    space): with such a configuration the input stays as it is.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. All other arguments are those of ``torch.nn.Conv1d``.

    Raises:
        ValueError: A weight per group.
        TypeError: Something that is no configuration.
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedConv2d(_FakeQuantizedConv, nn.Conv2d):  # type: ignore[misc]
    """A ``Conv2d`` whose weight, and input, are fake-quantized; both stay floating.

    A scale per token is not for convolutions (a vector along the last dimension is a stretch of
    space): with such a configuration the input stays as it is.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`. All other arguments are those of ``torch.nn.Conv2d``.

    Raises:
        ValueError: A weight per group.
        TypeError: Something that is no configuration.
    """

    __constants__ = _CONSTANTS
    bias: Tensor | None


class FakeQuantizedEmbedding(_FakeQuantized, nn.Embedding):  # type: ignore[misc]
    """An ``Embedding`` whose rows are fake-quantized; the table stays floating.

    With a scale of the moment for each row (``per_channel``) or for groups of it, only the rows
    that are asked for are looked at.

    Args:
        config: A :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`, of which the weight's part counts. All other arguments
            are those of ``torch.nn.Embedding``.

    Raises:
        ValueError: A group size that does not divide ``embedding_dim``, or a ``max_norm``, which
            rewrites the table.
        TypeError: Something that is no configuration.
    """

    __constants__ = (*QuantizesWeight.__constants__, *nn.Embedding.__constants__, "rounds_rows")
    padding_idx: int | None
    rounds_rows: bool  # those asked for, not the table

    def _set_config(self, config: Config) -> None:
        weight = quant_config(config).weight
        if self.max_norm is not None:
            raise ValueError(f"expected no max_norm, but got {self.max_norm}")
        check_groups(weight, self.embedding_dim, "embedding_dim")
        self._set_quantizers(QuantConfig(weight), None)
        self.rounds_rows = bool(weight.dynamic) and weight.granularity != "per_tensor"
        self.group_size = 0 if weight.group_size is None else weight.group_size
        self.quant_min, self.quant_max = weight.quant_min, weight.quant_max
        self.symmetric = weight.symmetric

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded rows for the indices ``[...]``: ``[..., embedding_dim]``."""
        if self.rounds_rows:
            rows = self._rows(input, self.float_weight())
            return self._round_rows(rows) if self._rounds() else rows
        return self._rows(input, self._fake_quantized_weight())

    def _rows(self, input: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(
            input,
            weight,
            self.padding_idx,
            None,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )

    def _rounds(self) -> bool:
        is_on: bool = self.weight_fake_quant._rounds
        return is_on or not self.training

    def _round_rows(self, rows: Tensor) -> Tensor:
        low, high, symmetric = self.quant_min, self.quant_max, self.symmetric
        if self.group_size > 0:
            return ops.dynamic_fake_quantize_per_group(
                rows, self.group_size, -1, low, high, symmetric=symmetric
            )
        return ops.dynamic_fake_quantize_per_token(rows, low, high, symmetric=symmetric)

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return f"{nn.Embedding.extra_repr(self)}, weight={self.config.weight}"


def conv_config(config: QuantConfig) -> QuantConfig:
    """Return what a convolution makes of a configuration: per tensor inputs, or floating ones."""
    if config.activation is None or config.activation.granularity == "per_tensor":
        return config
    return QuantConfig(config.weight, None, config.observer)


def _like(cls: type[M], module: nn.Module) -> M:
    """Return a module of a subclass that shares everything with ``module`` but its hooks."""
    new: M = object.__new__(cls)
    nn.Module.__init__(new)
    own = vars(new).keys()
    vars(new).update({name: value for name, value in vars(module).items() if name not in own})
    new._parameters.update(module._parameters)
    new.train(module.training)
    return new
