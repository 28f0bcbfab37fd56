# SPDX-License-Identifier: BSD-3-Clause
"""Norms and activations that compute with the ops of the fused family, whose bits are defined.

The same bits come from training, from evaluation, and from the ops that also quantize the result.
:func:`baraquant.use_fused_ops_` swaps the modules of a model for these.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from .. import ops
from .inference.inputs import QuantizedInput
from .inference.linear import QuantizedInt4Linear, QuantizedLinear
from .shared.arguments import check
from .shared.precision import compute_dtype
from .shared.straight_through import makes_graph


def _matching(parameter: Tensor | None, input: Tensor) -> Tensor | None:
    """Return a parameter in a dtype that the norm of an input takes: its own, or float32.

    The norms take parameters of the dtype of the input, and float32 (float64 for float64).
    """
    if parameter is None or parameter.dtype == input.dtype:
        return parameter
    return parameter.to(compute_dtype(input.dtype))


class RMSNorm(nn.RMSNorm):  # type: ignore[misc]
    """``torch.nn.RMSNorm`` by :func:`baraquant.ops.rms_norm`, over the last dimension.

    ``y = x / sqrt(mean(x^2) + eps) * (weight + offset)``, computed in float32 (float64 for float64
    inputs) and rounded once, to the dtype of the input. PyTorch's result differs in the last bits.

    Args:
        normalized_shape: The size of the last dimension.
        eps: What is added to the mean square. None: the epsilon of the dtype that it computes in.
        elementwise_affine: Whether there is a weight.
        offset: Added to the weight; 1.0 in models that store the weight's distance from one, such
            as Gemma.
        device: Of the weight.
        dtype: Of the weight.

    Raises:
        ValueError: ``normalized_shape`` has several dimensions.

    Example:
        >>> norm = baraquant.nn.RMSNorm(4, eps=0.0)
        >>> norm(torch.tensor([[3.0, 4.0, 0.0, 0.0]])).detach()
        tensor([[1.2000, 1.6000, 0.0000, 0.0000]])
    """

    offset: Final[float]

    def __init__(
        self,
        normalized_shape: int,
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        offset: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        _check_one_dimension("RMSNorm", self.normalized_shape)
        self.offset = offset
        if elementwise_affine:
            nn.init.constant_(self.weight, 1 - offset)

    @classmethod
    def from_float(cls, norm: nn.Module, eps: float | None, offset: float = 0.0) -> Self:
        """Return a module that shares the weight of ``norm``."""
        new: Self = _sharing(cls, norm, eps=eps, offset=offset)
        return new

    def forward(self, input: Tensor) -> Tensor:
        """Return the result ``[..., D]`` in the dtype of ``input``."""
        weight = _matching(self.weight, input)
        if self.offset != 0.0 and weight is not None:
            weight = weight.to(compute_dtype(input.dtype)) + self.offset
        eps = self.eps
        if eps is None:  # the distance from 1 to the next number
            eps = 2.0**-52 if input.dtype == torch.float64 else 2.0**-23
        return ops.rms_norm(input, weight, eps)

    def extra_repr(self) -> str:
        """Return the size and the options, for ``repr``."""
        offset = f", offset={self.offset}" if self.offset else ""
        return f"{super().extra_repr()}{offset}"


class LayerNorm(nn.LayerNorm):  # type: ignore[misc]
    """``torch.nn.LayerNorm`` by :func:`baraquant.ops.layer_norm`, over the last dimension.

    ``y = (x - m) / sqrt(mean((x - m)^2) + eps) * weight + bias`` with ``m = mean(x)``, computed in
    float32 (float64 for float64 inputs) and rounded once, to the dtype of the input. PyTorch's
    result differs in the last bits.

    Args:
        normalized_shape: The size of the last dimension.
        eps: What is added to the variance.
        elementwise_affine: Whether there is a weight.
        bias: Whether there is a bias beside the weight.
        device: Of the parameters.
        dtype: Of the parameters.

    Raises:
        ValueError: ``normalized_shape`` has several dimensions.

    Example:
        >>> baraquant.nn.LayerNorm(2, eps=0.0)(torch.tensor([[1.0, 3.0]])).detach()
        tensor([[-1.,  1.]])
    """

    def __init__(
        self,
        normalized_shape: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        _check_one_dimension("LayerNorm", self.normalized_shape)

    @classmethod
    def from_float(cls, norm: nn.Module, eps: float) -> Self:
        """Return a module that shares the parameters of ``norm``."""
        new: Self = _sharing(cls, norm, eps=eps)
        return new

    def forward(self, input: Tensor) -> Tensor:
        """Return the result ``[..., D]`` in the dtype of ``input``."""
        weight, bias = _matching(self.weight, input), _matching(self.bias, input)
        return ops.layer_norm(input, weight, bias, self.eps)


class GELU(nn.GELU):  # type: ignore[misc]
    """``torch.nn.GELU`` by :func:`baraquant.ops.gelu`; float64, which that has not, by PyTorch's.

    Args:
        approximate: ``none`` for the exact function, or ``tanh``.

    Raises:
        ValueError: ``approximate`` has another value.

    Example:
        >>> baraquant.nn.GELU("tanh")(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1588,  0.0000,  0.8412])
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate)
        is_known = approximate in ("none", "tanh")
        check("GELU", is_known, "approximate to be none or tanh", repr(approximate))

    def forward(self, input: Tensor) -> Tensor:
        """Return the result, shaped like ``input`` and of its dtype."""
        if input.dtype == torch.float64:
            return F.gelu(input, approximate=self.approximate)
        return ops.gelu(input, approximate=self.approximate)


class GatedMLP(nn.Module):  # type: ignore[misc]
    """``down(silu(gate(x)) * up(x))``, the feed-forward part of Llama and its relatives.

    The activation is :func:`baraquant.ops.silu_mul`, or PyTorch's for float64. If the three layers
    are :class:`QuantizedLinear` or :class:`QuantizedInt4Linear` and nothing is recorded for a
    gradient, ``x`` is quantized once for ``gate`` and ``up``, and the activation gives integers at
    once; the bits are the same.

    Args:
        gate: A linear layer ``[..., D]`` to ``[..., H]``.
        up: A second one.
        down: A linear layer ``[..., H]`` to ``[..., D]``.
        names: The names of the three layers in the module.

    Example:
        >>> gate, up, down = (torch.nn.Linear(4, 4) for _ in range(3))
        >>> baraquant.nn.GatedMLP(gate, up, down)(torch.ones(2, 4)).shape
        torch.Size([2, 4])
    """

    names: tuple[str, str, str]

    def __init__(
        self,
        gate: nn.Module,
        up: nn.Module,
        down: nn.Module,
        *,
        names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    ) -> None:
        super().__init__()
        self.names = names
        for name, layer in zip(names, (gate, up, down), strict=True):
            self.add_module(name, layer)

    @classmethod
    def from_float(cls, module: nn.Module, names: tuple[str, str, str]) -> Self:
        """Return a module with the layers, and all other attributes, of ``module``."""
        new: Self = _with_attributes_of(cls, module)
        new.names = names
        new._modules.update(module._modules)
        return new

    def forward(self, input: Tensor) -> Tensor:
        """Return the output ``[..., D]``."""
        gate, up, down = (self._modules[name] for name in self.names)
        rows: Any = input
        if _takes_integers(gate, input) and _takes_integers(up, input):
            options = (gate.symmetric, gate.bits, gate.rotate)
            if options == (up.symmetric, up.bits, up.rotate):  # the same integers
                rows = gate.quantize(input)
        left, right = gate(rows), up(rows)
        if left.dtype == torch.float64:  # which the op has not
            return down(F.silu(left) * right)
        if not _takes_integers(down, left) or down.rotate > 0:
            return down(ops.silu_mul(left, right))
        integers = ops.silu_mul_quantize_per_token(
            left,
            right,
            symmetric=down.symmetric,
            quant_min=down.quant_min,
            quant_max=down.quant_max,
        )
        return down(QuantizedInput(*integers, left.dtype))


def _takes_integers(layer: Any, input: Tensor) -> bool:
    """Whether a layer may get integers in place of a floating input.

    Exported programs keep the float ops: AOTInductor cannot hand on the dtype of products of
    integers, and :class:`baraquant.graph.Fuse` fuses the ops with the same bits.
    """
    return (
        not (torch.compiler.is_exporting() or makes_graph())
        and type(layer) in (QuantizedLinear, QuantizedInt4Linear)
        and layer.per_token
        and layer.smooth is None
        and not (layer._forward_pre_hooks or layer._forward_hooks)  # they expect a tensor
        and not (torch.is_grad_enabled() and input.requires_grad)
    )


def _check_one_dimension(name: str, shape: tuple[int, ...]) -> None:
    wanted = "normalized_shape to be the size of the last dimension"
    check(name, len(shape) == 1, wanted, tuple(shape))


def _with_attributes_of(kind: Any, module: nn.Module) -> Any:
    """Return a module without parameters and submodules, with all other attributes of another."""
    new = kind.__new__(kind)
    nn.Module.__init__(new)
    for name, value in vars(module).items():
        if name not in vars(new):
            setattr(new, name, value)
    return new


def _sharing(kind: Any, norm: nn.Module, **attributes: Any) -> Any:
    """Return a norm with the parameters of another one, and with its further attributes."""
    new = _with_attributes_of(kind, norm)
    weight = norm._parameters.get("weight")
    for name in ("weight", "bias") if kind is LayerNorm else ("weight",):
        new.register_parameter(name, norm._parameters.get(name))
    if weight is not None:
        new.normalized_shape = tuple(weight.shape)
    new.elementwise_affine = weight is not None
    for name, value in attributes.items():
        setattr(new, name, value)
    return new
