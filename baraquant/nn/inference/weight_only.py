# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers that store integers, as int8 or packed, and compute in floating point."""

from typing import Any

import torch
from torch import Tensor, nn

from ... import ops
from ...configs import integer_range
from ..shared.fake_quantize import FakeQuantize
from ..shared.product import fixing_bias
from ..shared.rotation import check_block
from ..shared.weight import Shaped
from . import _arguments
from .integers import Dequantizes, unpacked
from .merged import Columns, Slots, State
from .weights import LaysOutWeight


def _rounding_of(rounder: nn.Module) -> tuple[Any, Slots]:
    """Return what is equal for modules that round alike, and where tensors are that have to be."""
    has_hooks = rounder._forward_pre_hooks or rounder._forward_hooks or "forward" in vars(rounder)
    if type(rounder) is not FakeQuantize or rounder.is_observed or has_hooks:
        return id(rounder), []
    options = rounder.mode, rounder._rounds, rounder.symmetric, rounder.scale_dtype
    grid = rounder.granularity, rounder.axis, rounder.group_size
    ends = rounder.quant_min, rounder.quant_max
    return (options, grid, ends), [(rounder._buffers, name) for name in rounder._buffers]


class WeightOnlyLinear(Dequantizes, LaysOutWeight):
    """A linear layer that stores integers and computes in floating point.

    It serves the cases that an integer product cannot compute: weights with a scale for each group,
    weights with zero points, and inputs that stay floating. Of integers of at most four bits
    conversion makes a :class:`WeightOnlyInt4Linear`, unless another layer shares them as int8.
    ``y = linear(input_fake_quant(x), w, bias)`` where ``w`` is the dequantized weight in the dtype
    of the input: :func:`baraquant.ops.weight_only_linear`. The gradient is that of the prepared
    layer.

    Args:
        qweight: int8 ``[out_features, in_features]``.
        weight_scale: float32 (float64 for float64 inputs): ``[out_features]``, or
            ``[out_features, groups]`` with ``group_size``.
        bias: ``[out_features]``, of the dtype of the inputs.
        weight_zero_point: Integer, shaped like ``weight_scale``; None stands for 0.
        group_size: The number of adjacent values of a row of the weight that share a scale.
        input_fake_quant: Rounds the input; None leaves it as it is.
        weight_bits: The width of the weight's integers, 2 to 8. They are always stored as int8.
        dtype: The dtype of ``weight`` when it is read. None: the dtype of the bias, else of the
            scale.
        transposed: Whether ``weight`` reads as ``[in_features, out_features]``, the layout of
            transformers' ``Conv1D``.
        rotate: The block of :func:`baraquant.ops.hadamard`, by which the weight is rotated and the
            input is to be, before it is rounded. None: no rotation.

    Raises:
        ValueError: A shape, width or block does not fit.
        TypeError: The weight is not int8, the scale is not float32 or float64, the zero point is
            not an integer tensor, or the dtype is not floating.

    Example:
        >>> weight = torch.tensor([[1, -2, 3, 4]], dtype=torch.int8)
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> layer = baraquant.nn.WeightOnlyLinear(weight, scale, group_size=2)
        >>> layer(torch.ones(1, 4))
        tensor([[1.2500]])
    """

    __constants__ = ("in_features", "out_features", "rotate")

    def __init__(
        self,
        qweight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        weight_zero_point: Tensor | None = None,
        group_size: int | None = None,
        input_fake_quant: FakeQuantize | None = None,
        weight_bits: int = 8,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        super().__init__()
        _arguments.check_weight("WeightOnlyLinear", qweight, bias)
        self.out_features, self.in_features = qweight.shape
        self.group_size, self.weight_bits = group_size, weight_bits
        self._store(qweight, weight_scale, bias, weight_zero_point, input_fake_quant, dtype)
        self.set_layout(transposed)
        self.rotate = check_block("WeightOnlyLinear", rotate, self.in_features)

    def _own_output(self, input: Tensor) -> Tensor:
        bias = self.bias
        if bias is not None and bias.dtype != input.dtype:
            bias = bias.to(input.dtype)
        bias = fixing_bias(bias, input, self.out_features)
        return ops.weight_only_linear(
            self.input_fake_quant(self._rotated(input)),
            self._integers(),
            self.weight_scale,
            bias,
            weight_zero_point=self.weight_zero_point,
            group_size=self.group_size,
        )

    def dequantized_weight(self) -> Tensor:
        """Return the dequantized weight, before any rotation."""
        return self._rotated(self._dequantized(self.dtype))

    def extra_repr(self) -> str:
        """Return the shapes and the scheme, for ``repr``."""
        return f"{nn.Linear.extra_repr(self)}, {self._scheme()}{self.rotate_repr()}"

    def _merge_state(self) -> State:
        own, rounder = self._parameters, self._modules["input_fake_quant"]
        weight = own, "packed" if "packed" in own else "qweight"
        others = (self._buffers, "weight_scale"), (own, "weight_zero_point"), (own, "bias")
        options = self.in_features, self.rotate, self.group_size
        if rounder is None or type(rounder) is nn.Identity:
            return State(options, [weight, *others], [])
        rounding, inputs = _rounding_of(rounder)
        return State((*options, rounding), [weight, *others], inputs, is_fixed=False)

    def _merged_outputs(self, columns: Columns, input: Tensor) -> list[Tensor]:
        weights, scales, zero_points, biases = columns
        rows = self.input_fake_quant(self._rotated(input))
        biases = biases and [bias.to(input.dtype) for bias in biases]
        outputs: list[Tensor] = torch.ops.baraquant._weight_only_linears(
            rows, weights, scales, biases, zero_points, self.group_size
        )
        return outputs


class WeightOnlyInt4Linear(WeightOnlyLinear):
    """A :class:`WeightOnlyLinear` whose weights of at most four bits take half a byte each.

    ``y = linear(input_fake_quant(x), w, bias)`` where ``w`` is the dequantized weight in the dtype
    of the input: :func:`baraquant.ops.weight_only_linear`, which reads the packed numbers. The
    output and the gradient have the bits of the layer that :meth:`as_int8` returns.

    Reading ``qweight`` unpacks the integers: int8 ``[out_features, in_features]``. A state dict of
    a :class:`WeightOnlyLinear`, which has ``qweight``, loads too.

    Args:
        packed: uint8 ``[out_features, ceil(in_features / 2)]``: the integers plus 8, two in a byte,
            as :func:`baraquant.ops.pack_int4` returns them.
        in_features: Size of each input.
        weight_bits: The width of the weight's integers, 2 to 4. Each takes four bits.

    The other arguments and the errors are those of :class:`WeightOnlyLinear`.

    Example:
        >>> packed = baraquant.ops.pack_int4(torch.tensor([[1, -2, 3, 4]], dtype=torch.int8))
        >>> scale = torch.tensor([[0.5, 0.25]])
        >>> kind = baraquant.nn.WeightOnlyInt4Linear
        >>> layer = kind(packed, scale, in_features=4, group_size=2)
        >>> layer(torch.ones(1, 4))
        tensor([[1.2500]])
    """

    # TorchScript reads the annotations of the class itself alone.
    packed: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None
    group_size: int | None

    def __init__(
        self,
        packed: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None = None,
        *,
        in_features: int,
        weight_zero_point: Tensor | None = None,
        group_size: int | None = None,
        input_fake_quant: FakeQuantize | None = None,
        weight_bits: int = 4,
        dtype: torch.dtype | None = None,
        transposed: bool = False,
        rotate: int | None = None,
    ) -> None:
        nn.Module.__init__(self)
        name = "WeightOnlyInt4Linear"
        _arguments.check_packed(name, packed, in_features, weight_bits, bias)
        self.out_features, self.in_features = packed.shape[0], in_features
        self.group_size, self.weight_bits = group_size, weight_bits
        shape = self.out_features, in_features
        self._store(packed, weight_scale, bias, weight_zero_point, input_fake_quant, dtype, shape)
        self.set_layout(transposed)
        self.rotate = check_block(name, rotate, in_features)

    @property
    def qweight(self) -> Tensor:
        """The integers, int8 ``[out_features, in_features]``, unpacked at each read."""
        return unpacked(self.packed, self.in_features)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def as_int8(self) -> WeightOnlyLinear:
        """Return a :class:`WeightOnlyLinear` with the same bits, which shares the other tensors."""
        rounder = self.input_fake_quant
        layer = WeightOnlyLinear(
            self.qweight,
            self.weight_scale,
            self.bias,
            weight_zero_point=self.weight_zero_point,
            group_size=self.group_size,
            input_fake_quant=None if isinstance(rounder, nn.Identity) else rounder,
            weight_bits=self.weight_bits,
            dtype=self.dtype,
            transposed=self.transposed,
            rotate=self.rotate or None,
        )
        layer.train(self.training)
        return layer

    def _integers(self) -> Tensor:
        return self.packed

    def _shaped_as_weight(self) -> Shaped:
        return self._shape_alone(self.packed.device)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        old, new = f"{prefix}qweight", f"{prefix}packed"
        if old in state and new not in state:
            why = self._why_not_packed(state[old])
            if why is not None:
                lists[-1].append(f"{old}: {why}")
                return
            state = {**state, new: ops.pack_int4(state[old].contiguous())}
            del state[old]
        super()._load_from_state_dict(state, prefix, metadata, strict, *lists)

    def _why_not_packed(self, integers: Any) -> str | None:
        """Return why a tensor of a state dict cannot be this layer's ``qweight``, or None."""
        shape = [self.out_features, self.in_features]
        if not isinstance(integers, Tensor) or integers.dtype != torch.int8:
            got = integers.dtype if isinstance(integers, Tensor) else type(integers).__name__
            return f"expected int8, to be packed, but got {got}"
        if list(integers.shape) != shape:
            return f"expected the shape {shape}, but got {list(integers.shape)}"
        if integers.is_meta or integers.numel() == 0:
            return None
        low, high = integer_range(self.weight_bits)
        least, most = (int(end) for end in torch.aminmax(integers))
        if least >= low and most <= high:
            return None
        return (
            f"expected integers in [{low}, {high}], to be packed, but got {least} to {most}; load "
            f"them into a WeightOnlyLinear, which as_int8() returns"
        )
