# SPDX-License-Identifier: BSD-3-Clause
"""The bases of layers in training: their fake quantizers, made from a configuration."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ...configs import Config, QuantConfig, TensorConfig
from ...schemes import W8A8
from ..shared.convolution import swap_channels
from ..shared.fake_quantize import FakeQuantize
from ..shared.master import HoldsMaster
from ..shared.precision import compute_dtype
from ..shared.rotation import rotate_of
from ..shared.weight import is_for_torchscript, weight_to_read
from .freeze import frozen, is_unseen
from .int4 import FakeQuantizeInt4
from .learned import LearnedFakeQuantize
from .learned_int4 import LearnedFakeQuantizeInt4
from .ternary import FakeQuantizeTernary

# The weight of each batch in a moving average, the same as in torch.ao's observers.
AVERAGING_CONSTANT = 0.01


class Integers(NamedTuple):
    """A quantized weight: int8, its scale, and its zero point where it has one."""

    qweight: Tensor
    scale: Tensor
    zero_point: Tensor | None


class PackedIntegers(NamedTuple):
    """A quantized weight of at most four bits, as :func:`baraquant.ops.pack_int4` packs it."""

    packed: Tensor
    scale: Tensor
    zero_point: Tensor | None


class Int4Integers(NamedTuple):
    """A quantized weight of 2 to 4 bits, as :class:`FakeQuantizeInt4` packs it."""

    packed: Tensor
    scale: Tensor
    group_factor: Tensor
    group_zero_point: Tensor


class Adapter(Protocol):
    """What adds to the weight and to the bias of a layer before they are rounded."""

    def is_trained(self) -> bool:
        """Whether what it adds has a gradient."""
        ...

    def adapted_weight(self, weight: Tensor) -> Tensor:
        """Return the sum, in the dtype of the weight."""
        ...

    def adapted_bias(self, bias: Tensor) -> Tensor:
        """Return the sum, in the dtype of the bias."""
        ...


class QuantizesWeight(HoldsMaster):
    """A layer whose weight passes through ``weight_fake_quant``.

    The scales and the stored integers belong to the weight with its output channels first. The
    values of a channel are contiguous, and a group is a run of adjacent values.

    The layer itself reads its parameter with :meth:`float_weight`, and quantizes what
    :meth:`weight_to_round` returns: in training, in evaluation and by conversion. That is the
    parameter, and what an adapter adds to it (:mod:`baraquant.peft`). Other code that
    reads ``layer.weight`` gets the parameter in training, and the rounded weight in evaluation,
    which is also what the converted layer returns. If the parameter is rotated, it is rotated back.
    (In TorchScript ``layer.weight`` is always the parameter, and so it is where several processes
    share the parameter, a DTensor.)
    """

    __constants__: tuple[str, ...] = (
        *("fold", "is_grouped", "transposed_groups", "rounds_input", "master"),
    )
    __jit_unused_properties__ = ("weight",)
    __jit_ignored_attributes__ = (*HoldsMaster.__jit_ignored_attributes__, "adapters")
    config: QuantConfig
    weight_fake_quant: nn.Module
    input_fake_quant: nn.Module
    fold: int  # where groups are observed: as rows of this length; else 0
    is_grouped: bool
    transposed_groups: int  # the groups of a transposed convolution; 0 for other layers
    rounds_input: bool
    adapters: tuple[Adapter, ...] = ()  # at most one; in a tuple, so that it is no part of this one

    def set_quantizers(
        self,
        config: QuantConfig,
        activation: TensorConfig | None,
        *,
        positions: int = 1,
        transposed_groups: int = 0,
    ) -> None:
        """Make the fake quantizers.

        Args:
            config: How the weight is quantized, and how a static input is observed.
            activation: How the input is quantized; None leaves it floating.
            positions: The number of values that an output channel has for each of its inputs, which
                is the size of a kernel. A group contains all of them.
            transposed_groups: The groups of a transposed convolution, whose parameter has the input
                channels first; 0 where it has the output channels first.
        """
        self.config, self.master = config, config.master or ""
        self._held_dtype = self.float_weight().dtype
        weight, parameter = config.weight, self.weight_to_round()
        self.transposed_groups = transposed_groups
        self.is_grouped = weight.group_size is not None
        size = None if weight.group_size is None else weight.group_size * positions
        self.fold = 0 if size is None or weight.dynamic or weight.learned else size
        channels = self._channels_first(parameter.detach())
        rows = channels.flatten(1) if self.is_grouped else channels
        self.weight_fake_quant = _of_weight(weight, rows, size, config)
        self.input_fake_quant = _of_activation(activation, config, parameter)
        self.rounds_input = activation is not None

    @property
    def weight(self) -> Tensor:
        """The parameter in training; the rounded weight in evaluation."""
        parameter = self._own_weight()
        # fully_shard finds its parameter by this name, in evaluation too: it is a DTensor.
        is_sharded = hasattr(parameter, "device_mesh")
        is_rotated = rotate_of(self) > 0
        if is_sharded or is_for_torchscript() or (self.training and not is_rotated):
            return parameter
        is_own = self._parameters.get("weight") is parameter
        scaled = parameter if is_own and self.config.weight.dynamic else None
        return weight_to_read(
            self, self._weight_to_read, parameter, parameter.dtype, parameter, scaled
        )

    @weight.setter
    def weight(self, value: Any) -> None:
        # A parameter does not reach this line. A tensor that a hook computes does, as with
        # torch.nn.utils.weight_norm.
        self.__dict__["weight"] = value

    @weight.deleter
    def weight(self) -> None:
        del self.__dict__["weight"]

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _weight_to_read(self) -> Tensor:
        weight = self.float_weight() if self.training else self.fake_quantized_weight()
        return self._in_other_basis(weight)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _in_other_basis(self, weight: Tensor) -> Tensor:
        """Return the weight of the floating layer for the stored one, or the other way round."""
        return weight

    def float_weight(self) -> Tensor:
        """Return the floating weight that is trained, in evaluation too."""
        # In TorchScript the attribute is the parameter itself.
        if torch.jit.is_scripting():  # noqa: SIM108 - TorchScript compiles one of the branches
            weight = self.weight
        else:
            weight = self._own_weight()
        return weight

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _own_weight(self) -> Tensor:
        weight = self._parameters.get("weight")
        if weight is not None:
            return weight
        if type(self).weight is not QuantizesWeight.weight:
            return self.weight  # a parametrization computes it
        if "parametrizations" in self._modules and "weight" in self.parametrizations:
            return self.parametrizations["weight"]()  # one that the float layer had
        if "weight" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no weight")
        return self.__dict__["weight"]

    def weight_to_round(self) -> Tensor:
        """Return the weight that is quantized, with its gradient.

        It is the parameter as the optimizer holds it, with what an adapter adds, rounded to the
        configuration's ``master``.
        """
        weight = self.float_weight()
        if not torch.jit.is_scripting():
            weight = self._adapted_weight(weight)
        return self._rounded_master(weight)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def set_adapter(self, adapter: Adapter | None) -> None:
        """Let an adapter add to the weight and the bias before they are rounded; None ends that."""
        self.adapters = () if adapter is None else (adapter,)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _adapted_weight(self, weight: Tensor) -> Tensor:
        for adapter in self.adapters:
            weight = adapter.adapted_weight(weight)
        return weight

    def is_trained(self) -> bool:
        """Whether the weight that is quantized, or a learned scale, has a gradient."""
        is_trained: bool = self.float_weight().requires_grad
        if not torch.jit.is_scripting():
            is_trained = is_trained or self._trains_more()
        return is_trained

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _trains_more(self) -> bool:
        return any(adapter.is_trained() for adapter in self.adapters) or has_trained_scale(
            self.weight_fake_quant, self.input_fake_quant
        )

    def is_teacher(self) -> bool:
        """Whether the layer computes in floating point, as :func:`baraquant.qat.teacher` asks."""
        is_teacher: bool = self.weight_fake_quant.is_teacher()
        return is_teacher

    def bias_to_add(self) -> Tensor | None:
        """Return the bias, rounded to the configuration's ``master`` as the weight is."""
        bias = self._own_bias()
        if not torch.jit.is_scripting():
            bias = self._adapted_bias(bias)
        return None if bias is None else self._rounded_master(bias)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _adapted_bias(self, bias: Tensor | None) -> Tensor | None:
        for adapter in self.adapters if bias is not None else ():
            bias = adapter.adapted_bias(bias)
        return bias

    def _own_bias(self) -> Tensor | None:
        """Return the bias to compute with; a layer on several processes has a part of it."""
        return self.bias

    def quantized_weight(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weight as it will be stored: int8, with its scale and its zero point.

        The integers have the output channels first, unlike the parameter of a transposed
        convolution. Scale and zero point are of shape ``[channels]``, or ``[channels, groups]`` for
        groups.
        """
        weight = self._channels_first(self.weight_to_round().detach())
        integers, scale, zero_point = self.weight_fake_quant.quantize(self._as_rows(weight))
        integers = integers.reshape(weight.shape).contiguous()
        channels = weight.shape[0]
        if self.fold > 0:
            shape = [channels, scale.numel() // channels]
            scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
        elif scale.dim() < 2 and scale.numel() == 1:
            scale = scale.reshape(1).expand(channels).contiguous()
            zero_point = zero_point.reshape(1).expand(channels).contiguous()
        return integers, scale, zero_point

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def frozen_input(self) -> FakeQuantize | None:
        """Return the module that rounds the input of the converted layer; None if there is none.

        Raises:
            ValueError: The range is not known yet, or a scale is NaN or infinite.
        """
        return frozen(self.input_fake_quant)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def has_unseen_input(self) -> bool:
        """Whether the input has a range that no batch has set yet."""
        return self.rounds_input and is_unseen(self.input_fake_quant)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def with_floating_input(self) -> Self:
        """Return a layer that shares all with this one, but leaves its input floating."""
        layer = object.__new__(type(self))  # a parametrized module refuses copy.copy
        layer.__dict__.update(self.__dict__)
        layer.__dict__["_modules"] = dict(self._modules)
        layer.config = self.config.with_floating_input()
        layer.input_fake_quant = nn.Identity()
        layer.rounds_input = False
        return layer

    def fake_quantized_weight(self) -> Tensor:
        """Return the rounded weight, in the shape of the parameter, with its gradient."""
        weight = self._rounded_channels_first()
        if self.transposed_groups > 0:
            weight = swap_channels(weight, self.transposed_groups).contiguous()
        return weight

    def _rounded_channels_first(self) -> Tensor:
        weight = self._channels_first(self.weight_to_round())
        if self.transposed_groups > 0:
            weight = weight.contiguous()
        rows = self._as_rows(weight)
        quantizer = self.weight_fake_quant
        # Only the forward of a quantizer minds its switches.
        rows = quantizer(rows) if self.training or self.is_teacher() else quantizer.round(rows)
        return rows.reshape(weight.shape) if self.is_grouped or self.fold > 0 else rows

    def _channels_first(self, weight: Tensor) -> Tensor:
        groups = self.transposed_groups
        return swap_channels(weight, groups) if groups > 0 else weight

    def rows_of_weight(self) -> Tensor:
        """Return the weight with its channels first, and as a matrix if groups need one."""
        weight = self._channels_first(self.weight_to_round().detach())
        return weight.flatten(1) if self.is_grouped else weight

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def rounding_error(self) -> Tensor:
        """Return the weight, with its gradient, minus the rounded one, which has none."""
        rows = self._as_rows(self._channels_first(self.weight_to_round()))
        return rows - self.weight_fake_quant.round(rows.detach()).detach()

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def input_quantizers(self) -> dict[str, nn.Module]:
        """Return the fake quantizers of inputs by the names of these attributes."""
        return {"input_fake_quant": self.input_fake_quant} if self.rounds_input else {}

    def _as_rows(self, weight: Tensor) -> Tensor:
        """Return a weight that has its channels first in the shape that its quantizer takes."""
        if self.fold > 0:
            return weight.reshape(-1, self.fold)
        return weight.flatten(1) if self.is_grouped else weight

    def rounded_input(self, input: Tensor) -> Tensor:
        """Return the rounded input, with its gradient."""
        if not self.rounds_input:
            return input
        if self.training or self.is_teacher():
            return self.input_fake_quant(input)
        return self.input_fake_quant.round(input)


class DropIn(QuantizesWeight):
    """A mixin for a PyTorch module: its constructor takes PyTorch's arguments and ``config``."""

    def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_config(W8A8() if config is None else config)

    @classmethod
    def from_float(cls, module: nn.Module, config: Config) -> Self:
        """Return a layer of the same kind as ``module`` that shares its parameters."""
        layer: Self = object.__new__(cls)
        nn.Module.__init__(layer)
        own = vars(layer).keys()  # such as its hooks
        news = {name: value for name, value in vars(module).items() if name not in own}
        layer.__dict__.update(news)
        layer._parameters.update(module._parameters)
        layer.train(module.training)
        layer._set_config(config)
        return layer

    def _set_config(self, config: Config) -> None:
        raise NotImplementedError


def has_trained_scale(*quantizers: nn.Module) -> bool:
    """Whether a scale or a zero point is learned."""
    return any(scale.requires_grad for one in quantizers for scale in one.parameters())


def check_groups(config: TensorConfig, features: int, name: str) -> None:
    """Check that groups divide a dimension."""
    size = config.group_size
    if size is not None and (size > features or features % size != 0):
        raise ValueError(f"expected group_size to divide {name} ({features}), but got {size}")


def _of_weight(
    config: TensorConfig, weight: Tensor, size: int | None, scheme: QuantConfig
) -> FakeQuantize | FakeQuantizeInt4 | LearnedFakeQuantize:
    """Return the quantizer of a weight ``[channels, ...]``; of a matrix for groups of ``size``.

    ``config`` is how the weight is quantized; of ``scheme`` only the rules for scales count.
    """
    scale_dtype = scheme.scale_dtype
    if config.learned:
        return _learned_of_weight(config, weight, size, scheme)
    made: FakeQuantize | FakeQuantizeInt4
    if config.group_factors and size is not None:
        made = FakeQuantizeInt4(size, symmetric=config.symmetric, bits=config.bits)
        made.to(weight.device)
        return made
    granularity, grid = str(config.granularity), _grid_of(config)
    if config.dynamic:
        axis = 0 if granularity == "per_channel" else None
        where: dict[str, Any] = {"granularity": granularity, "axis": axis, "group_size": size}
        if config.ternary:
            made = FakeQuantizeTernary(scale_dtype=scale_dtype, **where)
        else:
            made = FakeQuantize(mode="dynamic", scale_dtype=scale_dtype, **where, **grid)
        made.to(weight.device)
        return made
    scales = weight.numel() // size if size is not None else weight.shape[0]
    where = {"granularity": "per_channel", "axis": 0, "channels": scales}
    observed = FakeQuantize(
        mode="observed",
        averaging_constant=1.0,  # the current weight, until the observer is disabled
        scale_dtype=scale_dtype,
        **({} if granularity == "per_tensor" else where),
        **grid,
    )
    observed.to(weight.device, compute_dtype(weight.dtype))
    with torch.no_grad():
        observed(weight if size is None else weight.reshape(-1, size))
    return observed


def _learned_of_weight(
    config: TensorConfig, weight: Tensor, size: int | None, scheme: QuantConfig
) -> LearnedFakeQuantize:
    granularity = str(config.granularity)
    channels, groups = weight.shape[0], 1 if size is None else weight.shape[-1] // size
    learned: LearnedFakeQuantize
    kept = {**_kept_as(weight, scheme), "scale_rule": scheme.scale_rule}
    if config.group_factors and size is not None:
        how: dict[str, Any] = {"symmetric": config.symmetric, "bits": config.bits}
        learned = LearnedFakeQuantizeInt4(size, shape=(channels, groups), **how, **kept)
    else:
        shapes = {"per_tensor": (1,), "per_channel": (channels,), "per_group": (channels, groups)}
        learned = LearnedFakeQuantize(
            granularity,
            axis=0 if granularity == "per_channel" else None,
            group_size=size,
            shape=shapes[granularity],
            scale_dtype=scheme.scale_dtype,
            **_grid_of(config),
            **kept,
        )
    if not weight.is_meta:
        learned.initialize(weight)
    return learned


def _of_activation(config: TensorConfig | None, scheme: QuantConfig, weight: Tensor) -> nn.Module:
    """Return the quantizer of an input; ``config`` says how, and ``scheme`` how it is found."""
    if config is None:
        return nn.Identity()
    grid = _grid_of(config)
    if config.learned:
        return LearnedFakeQuantize(per_sample=True, **grid, **_kept_as(weight, scheme))
    if config.dynamic:
        where: dict[str, Any] = {"granularity": str(config.granularity)}
        dynamic = FakeQuantize(mode="dynamic", group_size=config.group_size, **where, **grid)
        return dynamic.to(weight.device)
    constant = AVERAGING_CONSTANT if scheme.observer == "moving_average" else None
    observed = FakeQuantize(mode="observed", averaging_constant=constant, **grid)
    # Evaluation before the first batch raises an error, and in a graph gives NaN.
    observed.scale.fill_(float("nan"))
    return observed.to(weight.device, compute_dtype(weight.dtype))


def _grid_of(config: TensorConfig) -> dict[str, Any]:
    """Return the arguments of a fake quantizer that say which integers there are."""
    low, high = config.quant_min, config.quant_max
    return {"quant_min": low, "quant_max": high, "symmetric": config.symmetric}


def _kept_as(weight: Tensor, scheme: QuantConfig) -> dict[str, Any]:
    """Return the arguments that say how a learned scale is kept."""
    dtype = compute_dtype(weight.dtype)
    return {"device": weight.device, "dtype": dtype, "master": scheme.master}
