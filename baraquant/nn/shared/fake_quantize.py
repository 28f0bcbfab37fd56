# SPDX-License-Identifier: BSD-3-Clause
"""``FakeQuantize``: rounds to a quantization grid, as a module of a network in training."""

from typing import Final

import torch
from torch import Tensor

from ... import ops
from ...configs import SCALE_DTYPES
from ...ops.recompute import unless_recomputing
from . import arguments
from .by_granularity import ByGranularity
from .observed_range import ObservedRange
from .precision import compute_dtype
from .range import is_known, qparams_of_range, rounded_scale, share_of
from .straight_through import without_gradient


class FakeQuantize(ByGranularity, ObservedRange):
    """Rounds its input to a quantization grid; the gradient goes straight through.

    ``mode`` says where the scale and the zero point come from:

    * ``"fixed"``: they are given and do not change. Computes
      :func:`baraquant.ops.fake_quantize_per_tensor` or its sibling for ``granularity``. Buffers:
      ``scale`` and ``zero_point``.
    * ``"dynamic"``: they are computed from the range of each input. Computes
      :func:`baraquant.ops.dynamic_fake_quantize_per_tensor` or its sibling.
    * ``"observed"``: they come from a running range of the inputs, which the module updates in
      training and in evaluation. :meth:`disable_observer` freezes it. Computes
      :func:`baraquant.ops.observe_fake_quantize`. Buffers: ``min_val`` and ``max_val`` (inf and
      -inf before the first input), ``scale``, ``zero_point``, as uint8 ``[1]`` the flags
      ``observer_enabled`` and ``fake_quant_enabled``, and as int64 ``[]`` ``skipped_batches``.

    An observed range ignores an input with a NaN or an infinity, as in a step that a gradient
    scaler skips (per channel: only that channel ignores it). ``skipped_batches`` then goes up by
    one.

    Buffers move with the module and are in its state dict. Floating buffers keep their precision
    when the module changes its dtype: they stay float32 in a float16 or bfloat16 module, as the ops
    require, and are float64 in a float64 module.

    All modes have the buffers ``fake_quant_enabled`` and ``scheme``, which says how the module
    quantizes: a state dict of another scheme is refused. Modules that :meth:`freeze` returns, and
    those of layers for inference, have neither.

    The flags of an observed range are read on the device: a switch takes effect in compiled code
    and in captured CUDA graphs, without recompilation and without a wait for the device. In the
    other modes :meth:`enable_fake_quant` sets a plain bool too: ``torch.compile`` compiles once for
    each value, and a captured CUDA graph keeps the value of its capture.

    Activation checkpointing computes a forward pass again, but the module does not observe it
    again: it rounds with the scale of its last forward pass. If several forward passes come before
    one backward pass, as in a layer that two blocks share, this is the scale of the last one.

    Under ``DistributedDataParallel`` each process sees different data. Call :meth:`sync_qparams`
    before the processes need one common range. Set ``broadcast_buffers=False``: otherwise every
    forward pass replaces the range of each process by the range of the first.

    Args:
        scale: For ``fixed``: a number > 0 (``per_tensor``), or a float32 or float64 tensor in the
            shape that the op of this granularity takes.
        zero_point: For ``fixed``: an integer, or an integer tensor shaped like ``scale``; None
            stands for 0.
        granularity: ``per_tensor``, ``per_channel``, ``per_token`` or ``per_group``; ``observed``
            takes the first two.
        axis: The dimension of the channels (required for ``per_channel``) or of the groups
            (``per_group``; by default the last).
        group_size: The number of adjacent values that share a scale (required for ``per_group``).
        quant_min: The smallest integer of the grid.
        quant_max: The largest integer of the grid.
        save_mask: For ``fixed``, what is kept for the backward pass. True: one bit per element.
            False: the input. None: the input if it is a leaf (a parameter) or a view of one, else
            the bits.
        mode: ``fixed``, ``dynamic`` or ``observed``.
        symmetric: For ``dynamic`` and ``observed``: True puts the zero point in the middle of the
            grid, and the scale covers the largest absolute value. False fits the grid to the range
            of the values, extended to include 0.
        averaging_constant: For ``observed``: None keeps the minimum and the maximum of all inputs.
            A number c in (0, 1] gives a moving average, in which each input has the weight c (1:
            only the last input counts).
        channels: For ``observed`` and ``per_channel``: the input's size along ``axis``.
        scale_dtype: The dtype that every scale is rounded to before it is used: ``float32``,
            ``bfloat16`` or ``float16``, as in :class:`baraquant.QuantConfig`. The scale stays a
            float32 tensor. The zero point of a range is computed with the rounded scale. Groups
            then have to lie along the last dimension, and to divide it.

    Raises:
        ValueError: A mode, granularity, shape, range, number or ``scale_dtype`` does not fit, or an
            argument is given that the mode does not use.
        TypeError: The scale is not float32 or float64, or the zero point is not an integer tensor.

    Example:
        >>> scale = torch.tensor([0.5, 0.25])
        >>> quantizer = baraquant.nn.FakeQuantize(scale, None, "per_channel", axis=0)
        >>> quantizer(torch.tensor([[0.6, 1.5], [0.6, 1.5]]))
        tensor([[0.5000, 1.5000],
                [0.5000, 1.5000]])
        >>> observed = baraquant.nn.FakeQuantize(mode="observed", symmetric=False)
        >>> _ = observed(torch.tensor([-1.0, 0.5])), observed(torch.tensor([1.55]))
        >>> observed.calculate_qparams()
        (tensor(0.0100), tensor(-28, dtype=torch.int32))
    """

    mode: Final[str]
    is_dynamic: Final[bool]  # bools beside `mode`, since TorchScript leaves out the code behind a
    is_observed: Final[bool]  # constant that is false, but not behind a comparison of strings
    save_mask: Final[bool | None]
    symmetric: Final[bool]
    averaging_constant: Final[float | None]
    rounds_scale: Final[bool]
    computes_scale: Final[bool]  # that of a dynamic input; else the op does it
    _has_own_rule = False  # for scales

    def __init__(
        self,
        scale: Tensor | float | None = None,
        zero_point: Tensor | int | None = None,
        granularity: str = "per_tensor",
        *,
        axis: int | None = None,
        group_size: int | None = None,
        quant_min: int = -128,
        quant_max: int = 127,
        save_mask: bool | None = None,
        mode: str = "fixed",
        symmetric: bool = True,
        averaging_constant: float | None = None,
        channels: int | None = None,
        scale_dtype: str = "float32",
    ) -> None:
        super().__init__()
        arguments.check_mode(
            mode,
            symmetric,
            scale=scale,
            zero_point=zero_point,
            save_mask=save_mask,
            averaging_constant=averaging_constant,
            channels=channels,
        )
        arguments.check_granularity(granularity, axis, group_size)
        arguments.check_range(mode, symmetric, quant_min, quant_max)
        self._name = "FakeQuantize"
        arguments.check_choice(self._name, "scale_dtype", scale_dtype, SCALE_DTYPES)
        self.scale_dtype = scale_dtype
        self.rounds_scale = scale_dtype != "float32"
        self.mode = mode
        self.is_dynamic = mode == "dynamic"
        self.is_observed = mode == "observed"
        self.computes_scale = self.is_dynamic and (self.rounds_scale or self._has_own_rule)
        self._set_granularity(granularity, axis, group_size)
        self.quant_min, self.quant_max = quant_min, quant_max
        self.save_mask, self.symmetric = save_mask, symmetric
        # TorchScript takes the type of a constant from its value: 1 would not be accepted as a
        # float.
        self.averaging_constant = None if averaging_constant is None else float(averaging_constant)
        if self.is_observed:
            arguments.check_observed(granularity, channels, averaging_constant)
            self._register_range(() if channels is None else (channels,))
        else:
            self._rounds = True
        if scale is not None:
            scale = rounded_scale(arguments.scale_tensor(scale, granularity), scale_dtype)
            zero_point = arguments.zero_point_tensor(zero_point, scale, quant_min, quant_max)
            self.register_buffer("scale", scale)
            self.register_buffer("zero_point", zero_point)
        scales = 0 if self.is_dynamic else self.scale.numel()
        self._keep_state("ternary" if self._has_own_rule else mode, scales)

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded to the grid, in its own shape and dtype."""
        if self.is_teacher():
            output = input
        elif self.is_observed:
            output = self._observe_and_round(input)
        elif self._rounds:
            output = self.round(input)
        else:
            output = input
        return output

    def _observe_and_round(self, input: Tensor) -> Tensor:
        observer_enabled = self.observer_enabled
        if not torch.jit.is_scripting():
            observer_enabled = unless_recomputing(observer_enabled)
        rounds = self.fake_quant_enabled
        if self.rounds_scale:
            rounds = torch.zeros_like(rounds)  # the op would round with a scale of its own
        axis = self.axis if self.granularity == "per_channel" else None
        output = self._observe(input, observer_enabled, rounds, axis)
        if self.rounds_scale:
            output = self._round_observed(input, observer_enabled)
        return output

    def _observe(
        self, input: Tensor, observer_enabled: Tensor, rounds: Tensor, axis: int | None
    ) -> Tensor:
        return ops.observe_fake_quantize(
            input,
            self.min_val,
            self.max_val,
            self.scale,
            self.zero_point,
            observer_enabled,
            rounds,
            axis,
            self.quant_min,
            self.quant_max,
            symmetric=self.symmetric,
            averaging_constant=self.averaging_constant,
            skipped_batches=self.skipped_batches,
        )

    def _round_observed(self, input: Tensor, observer_enabled: Tensor) -> Tensor:
        scale, zero_point = self.calculate_qparams()
        is_new = (observer_enabled[0] != 0) & is_known(self.min_val, self.max_val)
        self.scale.copy_(torch.where(is_new, scale, self.scale))
        self.zero_point.copy_(torch.where(is_new, zero_point, self.zero_point))
        # The next forward pass may write into the buffers before this one's backward pass.
        output = self._fake_quantize(
            input, self.scale.clone(), self.zero_point.clone(), self.save_mask
        )
        return torch.where(self.fake_quant_enabled[0] != 0, output, input)

    def _qparams_of(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale and the zero point of one input, in the shapes of ``granularity``."""
        compute = compute_dtype(input.dtype)
        rows = self._segments(without_gradient(input)).to(compute)  # [scales, values]
        if rows.shape[1] == 0:
            rows = torch.zeros([rows.shape[0], 1], dtype=compute, device=input.device)
        scale, zero_point = self.qparams_of_rows(rows)
        if self.granularity == "per_tensor":
            return scale[0], zero_point[0]
        if self.granularity == "per_channel":
            return scale, zero_point
        shape = list(input.shape)
        shape[-1] = 1 if self.granularity == "per_token" else shape[-1] // self.group_size
        return scale.reshape(shape), zero_point.reshape(shape)

    def qparams_of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale and the zero point of each row of a matrix, ``[rows]`` each."""
        return self._qparams_of_range(rows.amin(dim=1), rows.amax(dim=1))

    def _qparams_of_range(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        ends = self.quant_min, self.quant_max
        return qparams_of_range(low, high, ends[0], ends[1], self.symmetric, self.scale_dtype)

    def searched_qparams(
        self, rows: Tensor, importance: Tensor | None = None, scale_rule: str = "search"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return those that fit each row best, and whether they are exact, ``[rows]`` each.

        ``csrc/search/weights.h`` and ``lattice.h`` have the formulas.

        Args:
            rows: A matrix.
            importance: What the squared errors are multiplied by, for as many rows as there are, or
                for fewer, which then repeat; None: 1.
            scale_rule: ``search`` or ``lattice``, as in :class:`baraquant.QuantConfig`.
        """
        grid = self.quant_min, self.quant_max, self.symmetric, self.scale_dtype
        qparams: tuple[Tensor, Tensor, Tensor] = torch.ops.baraquant._search_scale(
            rows, *grid, importance, scale_rule
        )
        return qparams

    def fitted(
        self, rows: Tensor, importance: Tensor | None = None, scale_rule: str = "search"
    ) -> tuple["FakeQuantize", float]:
        """Return a fake quantizer with the scales that fit a weight best.

        With it the share of the scales that give the weight's own bits, in [0, 1]. With eight bits
        and none of these it is this quantizer itself.

        Args:
            rows: The weight, ``[N, ...]``: the input of this quantizer, which is dynamic. The
                granularity is ``per_tensor``, ``per_channel`` of axis 0 or ``per_group``.
            importance: What the squared errors of each column are multiplied by, ``[K]``, such as
                the mean square of the input that it is multiplied with, for floating inputs and a
                matrix of rows. None: all columns count alike.
            scale_rule: ``search`` or ``lattice``, as in :class:`baraquant.QuantConfig`.
        """
        shape = {"per_tensor": [], "per_channel": [rows.shape[0]]}.get(
            self.granularity, [rows.shape[0], -1]
        )
        segments = self._segments(rows)
        if importance is not None:
            importance = importance.reshape(-1, segments.shape[1])
        scale, zero_point, is_exact = self.searched_qparams(segments, importance, scale_rule)
        share = share_of(is_exact)
        if share == 0 and self.quant_max - self.quant_min == 255:
            return self, share
        return self._fixed(scale.reshape(shape), zero_point.reshape(shape)), share

    def _fixed(self, scale: Tensor, zero_point: Tensor) -> "FakeQuantize":
        return FakeQuantize(
            scale,
            zero_point,
            self.granularity,
            axis=self.axis if self.granularity in ("per_channel", "per_group") else None,
            group_size=self.group_size or None,
            quant_min=self.quant_min,
            quant_max=self.quant_max,
            save_mask=self.save_mask,
            scale_dtype=self.scale_dtype,
        ).without_state()

    @torch.jit.export  # type: ignore[untyped-decorator]
    def round(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded to the current grid; without observing, and without switches."""
        if self.computes_scale:
            scale, zero_point = self._qparams_of(input)
            output = self._fake_quantize(input, scale, zero_point, self.save_mask)
        elif self.is_dynamic:
            output = self._dynamic_fake_quantize(input, self.symmetric)
        else:
            if self.is_observed:
                self.check_seen()
            output = self._fake_quantize(input, self.scale, self.zero_point, self.save_mask)
        return output

    @torch.jit.export  # type: ignore[untyped-decorator]
    def quantize(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``input`` as int8 integers, with their scale and zero point; nothing is observed.

        ``round`` returns these integers dequantized. The range must fit int8.
        """
        if self.computes_scale:
            scale, zero_point = self._qparams_of(input)
            result = self._quantize(input, scale, zero_point), scale, zero_point
        elif self.is_dynamic:
            result = self._dynamic_quantize(input, self.symmetric)
        else:
            if self.is_observed:
                self.check_seen()
            integers = self._quantize(input, self.scale, self.zero_point)
            result = integers, self.scale, self.zero_point
        return result

    @torch.jit.export  # type: ignore[untyped-decorator]
    def enable_observer(self, enabled: bool = True) -> None:
        """Let the module follow the range of its input, or freeze range and scale."""
        if self.is_observed:
            self.observer_enabled.fill_(int(enabled))
        else:
            raise RuntimeError(
                f"FakeQuantize: expected mode 'observed' for an observer, but got '{self.mode}'"
            )

    @torch.jit.export  # type: ignore[untyped-decorator]
    def disable_observer(self) -> None:
        """Freeze the range, the scale and the zero point."""
        self.enable_observer(False)

    @torch.jit.export  # type: ignore[untyped-decorator]
    def reset_min_max_vals(self) -> None:
        """Forget the range and the skipped batches; the next finite input starts a new range."""
        if self.is_observed:
            self.min_val.fill_(float("inf"))
            self.max_val.fill_(float("-inf"))
            self.skipped_batches.fill_(0)
            self._skipped_together = 0
        else:
            raise RuntimeError(
                f"FakeQuantize: expected mode 'observed' for a range, but got '{self.mode}'"
            )

    @torch.jit.export  # type: ignore[untyped-decorator]
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return the scale and zero point: the given ones, or those of the range so far.

        Before the first input the scale is 1. The mode ``dynamic`` raises RuntimeError, because it
        keeps no scale: :func:`baraquant.ops.choose_qparams_per_tensor` gives those of one input.
        """
        if self.is_observed:
            qparams = self._qparams_of_range(self.min_val, self.max_val)
        elif not self.is_dynamic:
            qparams = self.scale, self.zero_point
        else:
            raise RuntimeError(
                "FakeQuantize: expected mode 'fixed' or 'observed' for a scale, but got 'dynamic', "
                "with which each input has its own"
            )
        return qparams

    def freeze(self) -> "FakeQuantize":
        """Return a module of mode ``fixed`` with copies of this module's scale and zero point.

        It rounds as this module does while its observer is off. The mode ``dynamic`` raises
        RuntimeError, because it keeps no scale.
        """
        if self.is_dynamic:
            self.calculate_qparams()  # raises
        frozen = self._fixed(self.scale, self.zero_point)
        frozen.train(self.training)
        return frozen

    def extra_repr(self) -> str:
        """Return the arguments that differ between modules, for ``repr``."""
        parts = [*([] if self.mode == "fixed" else [self.mode]), *self._grid_parts()]
        if self.mode != "fixed":
            parts.append(f"symmetric={self.symmetric}")
        if self.is_observed:
            parts.append(f"averaging_constant={self.averaging_constant}")
        if not self.is_dynamic:
            parts.append(f"scale={list(self.scale.shape)}")
        if self.rounds_scale:
            parts.append(f"scale_dtype={self.scale_dtype}")
        return ", ".join(parts)
