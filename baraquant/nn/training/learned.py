# SPDX-License-Identifier: BSD-3-Clause
"""``LearnedFakeQuantize``: rounds to a grid whose step and zero point are trained."""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...configs import MASTERS, SCALE_DTYPES, SCALE_RULES
from ..shared.arguments import check, check_choice, check_granularity
from ..shared.by_granularity import ByGranularity
from ..shared.master import check_unrounded, round_master
from ..shared.precision import compute_dtype
from ..shared.range import fitted_qparams, rounded_scale
from ..shared.straight_through import without_gradient
from ._first_batch import check_unwrapped, is_known, is_zero

NAN = float("nan")


class LearnedFakeQuantize(ByGranularity):
    """Rounds its input to a quantization grid, and learns the grid's step by gradient descent.

    ``y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s`` with ``s = abs(scale)``, at least
    the smallest normal number, so that it is always positive. Its gradient is that of "Learned Step
    Size Quantization" (LSQ, Esser et al. 2020) multiplied by their factor
    ``1 / sqrt(n * quant_max)``, where ``n`` is the number of values that share the step. With
    ``symmetric=False`` the zero point is learned too, like the offset of LSQ+ (Bhalgat et al.
    2020).

    The first batch in training, or :meth:`initialize`, sets the parameters:
    ``s = 2 * mean(abs(x)) / sqrt(quant_max)`` as in LSQ, but at most ``max(abs(x)) / quant_max``,
    which clips nothing. With a zero point they are the scale and the zero point of the range of
    ``x``. With ``scale_rule``, which is for weights, they are those that
    :func:`baraquant.quantize_` finds. Before that they are NaN.

    A batch with a NaN or an infinity, such as that of a step which a gradient scaler skips, sets
    nothing: it gives NaN, the buffer ``skipped_batches`` counts it, and the next batch is the
    first. If the first batch holds only zeros, such as the initial state
    of a recurrent layer, the step is 1 until the next batch (compiled code does not check, and
    keeps it). Code that was compiled before the first batch looks at every batch, as each may be
    the first: compile after it. Initialize before the model is wrapped for several processes: each
    process has a different first batch, and FullyShardedDataParallel discards what a forward pass
    writes into a parameter. A copy that averages the parameters (EMA) is made after it, too.

    The parameters are ``scale`` and, if not symmetric, ``zero_point``. They keep their precision
    when the module changes its dtype: they stay float32 in a float16 or bfloat16 module.

    Args:
        granularity: ``per_tensor``, ``per_channel`` or ``per_group``.
        axis: The dimension of the channels (required for ``per_channel``) or of the groups
            (``per_group``; by default the last).
        group_size: The number of adjacent values that share a step (required for ``per_group``).
        shape: The shape of ``scale``: ``[1]`` for ``per_tensor``, ``[channels]`` for
            ``per_channel``, and for ``per_group`` the shape of the input with the number of groups
            along ``axis``.
        quant_min: The smallest integer.
        quant_max: The largest integer, above 0.
        symmetric: True for no zero point.
        per_sample: Whether ``n``, the number of values that share a step, excludes the first
            dimension. Use it for activations, whose gradient is a mean over the batch.
        device: Of the parameters and buffers.
        dtype: Of the parameters: float32 or float64.
        scale_dtype: The dtype that the step is rounded to before each use: ``float32``,
            ``bfloat16`` or ``float16``. The gradient goes straight through, and the parameter
            itself keeps its precision.
        master: The dtype that the parameters are rounded to before each use, ``bfloat16`` or
            ``float16``, as in :class:`baraquant.QuantConfig`; None: none.
        scale_rule: How the first scales are found: ``search``, ``lattice`` or ``max``, as in
            :class:`baraquant.QuantConfig`. None: by the rule of LSQ, for inputs.

    Raises:
        ValueError: A granularity, shape, range, ``scale_dtype``, ``master`` or ``scale_rule`` does
            not fit.

    Example:
        >>> quantizer = baraquant.nn.LearnedFakeQuantize(quant_min=-8, quant_max=7)
        >>> quantizer(torch.tensor([0.6, 3.5, -1.2])).detach()
        tensor([ 0.5000,  3.5000, -1.0000])
        >>> quantizer.scale
        Parameter containing:
        tensor([0.5000], requires_grad=True)
    """

    is_observed: Final[bool]
    symmetric: Final[bool]
    per_sample: Final[bool]
    master: Final[str]
    scale_rule: Final[str | None]
    _kind = "learned"

    def __init__(
        self,
        granularity: str = "per_tensor",
        *,
        axis: int | None = None,
        group_size: int | None = None,
        shape: Sequence[int] = (1,),
        quant_min: int = -128,
        quant_max: int = 127,
        symmetric: bool = True,
        per_sample: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        scale_dtype: str = "float32",
        master: str | None = None,
        scale_rule: str | None = None,
    ) -> None:
        super().__init__()
        check_granularity(granularity, axis, group_size)
        name = self._name = "LearnedFakeQuantize"
        check_choice(name, "scale_dtype", scale_dtype, SCALE_DTYPES)
        if master is not None:
            check_choice(name, "master", master, MASTERS)
        if scale_rule is not None:
            check_choice(name, "scale_rule", scale_rule, SCALE_RULES)
        wanted = "granularity to be per_tensor, per_channel or per_group"
        check(name, granularity != "per_token", wanted, repr(granularity))
        is_grid, ends = quant_min < quant_max and quant_max > 0, f"{quant_min} and {quant_max}"
        check(name, is_grid, "quant_min < quant_max and quant_max > 0", ends)
        fits = {"per_tensor": list(shape) == [1], "per_channel": len(shape) == 1}
        expected = "[1]" if granularity == "per_tensor" else "one dimension"
        wanted = f"shape to have {expected} for {granularity}"
        check(name, fits.get(granularity, True), wanted, list(shape))
        self.is_observed = False
        self.scale_dtype = scale_dtype
        self.master = master or ""
        self.scale_rule = scale_rule
        self._set_granularity(granularity, axis, group_size)
        self.quant_min, self.quant_max = quant_min, quant_max
        self.symmetric, self.per_sample = symmetric, per_sample
        self._rounds, self._initialized = True, False
        self._saw_zeros = False  # and nothing else
        unknown = torch.full(tuple(shape), NAN, device=device, dtype=dtype)
        self.scale = nn.Parameter(unknown)
        self.register_parameter("zero_point", None if symmetric else nn.Parameter(unknown.clone()))
        self.register_buffer("skipped_batches", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("saw_zeros", torch.zeros(1, dtype=torch.uint8, device=device))
        self._keep_state(self._kind, unknown.numel(), device)

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded to the grid, in its own shape and dtype."""
        if self.is_teacher():
            return input
        if self.training and (self._saw_zeros or not self._is_initialized()):
            self._initialize_by_first(input)
            if self._saw_zeros:
                # A 0 that depends on the parameters, which may still be written before backward.
                total, zero_point = self.scale.sum(), self.zero_point
                if zero_point is not None:
                    total = total + zero_point.sum()
                return input + (0.0 * total).to(input.dtype)
            # If this batch was skipped, the scale is unknown, and the result is NaN.
            return self._rounded(input) if self._rounds and input.numel() > 0 else input
        return self.round(input) if self._rounds else input

    @torch.jit.export  # type: ignore[untyped-decorator]
    def initialize(self, input: Tensor) -> None:
        """Set scale and zero point from the values of ``input``.

        An empty input changes nothing. Nor do values that share a step and have a NaN or an
        infinity among them; ``skipped_batches`` counts such an input.
        """
        if input.numel() > 0:
            self._start_by(input, False)
            self._note_zeros(False)
            self._note_if_known()

    def _start_by(self, input: Tensor, only_unknown: bool) -> None:
        """Set the parameters, or only those that are unknown, from finite values of ``input``."""
        with torch.no_grad():
            step, zeros = self._first_qparams(self._segments(input.detach()))
            step = step.reshape(self.scale.shape)
            is_new = self._is_new(step, self.scale, only_unknown)
            self.scale.copy_(torch.where(is_new, step, self.scale))
            zero_point = self.zero_point
            if zero_point is not None:
                zeros = zeros.reshape(zero_point.shape).to(zero_point.dtype)
                zero_point.copy_(torch.where(is_new, zeros, zero_point))

    def _first_qparams(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale and the zero point that each row starts with, ``[rows]`` each."""
        low, high, dtype, rule = self.quant_min, self.quant_max, self.scale_dtype, self.scale_rule
        is_symmetric = self.zero_point is None
        if rule is not None:
            step, zeros = fitted_qparams(rows, low, high, is_symmetric, dtype, rule)
            return step.to(self.scale.dtype), zeros
        step, zeros = torch.ops.baraquant._first_learned_qparams(
            rows.to(self.scale.dtype), low, high, is_symmetric, dtype
        )
        return step, zeros

    def _is_new(self, scale: Tensor, known: Tensor, only_unknown: bool) -> Tensor:
        """Return which scales are taken; count the batch if one that is wanted is not finite."""
        is_finite = scale.isfinite()
        is_wanted = known.isnan() if only_unknown else torch.ones_like(is_finite)
        self.skipped_batches.add_((is_wanted & ~is_finite).any())
        return is_wanted & is_finite

    def _note_if_known(self) -> None:
        """Note whether all scales are known; code that is being compiled cannot read it."""
        if torch.jit.is_scripting():
            self._initialized = not bool(self.scale.isnan().any())
        elif not torch.compiler.is_compiling():
            self._initialized = self.scale.is_meta or is_known(self.scale)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def start(self, scale: Tensor, zero_point: Tensor) -> None:
        """Set scale and zero point to given values."""
        with torch.no_grad():
            self.scale.copy_(scale.reshape(self.scale.shape))
            if self.zero_point is not None:
                self.zero_point.copy_(zero_point.reshape(self.scale.shape))
        self._initialized = True

    def _initialize_by_first(self, input: Tensor) -> None:
        only_zeros = False
        if input.numel() == 0:
            return
        if not torch.jit.is_scripting():
            only_zeros = not torch.compiler.is_compiling() and is_zero(input)
            if only_zeros and self._saw_zeros:
                return
            check_unwrapped(self)
        if self._saw_zeros:  # the scales of zeros were none
            with torch.no_grad():
                self.scale.fill_(float("nan"))
            self._initialized = False
        self._start_by(input, True)
        self._note_zeros(only_zeros)
        self._note_if_known()

    def _note_zeros(self, only_zeros: bool) -> None:
        self._saw_zeros = only_zeros
        self.saw_zeros.fill_(int(only_zeros))

    def _is_initialized(self) -> bool:
        """Whether the scale is known. If other code wrote into the parameter, its value decides.

        An average of models (EMA) is a copy that was made before the first batch, and so is a model
        that receives its parameters by broadcast.
        """
        if not torch.jit.is_scripting():  # noqa: SIM102 - TorchScript skips the block
            if not self._initialized and not torch.compiler.is_compiling():
                self._initialized = is_known(self.scale)
        return self._initialized

    @torch.jit.export  # type: ignore[untyped-decorator]
    def round(self, input: Tensor) -> Tensor:
        """Return ``input`` rounded to the current grid, whatever the switches say."""
        if not self._is_initialized():
            if input.numel() == 0:
                return input
            raise RuntimeError(
                "LearnedFakeQuantize: expected a finite batch in training mode, or initialize(), "
                "before anything is rounded: the scale is not known; a copy of the model that "
                "averages its parameters (EMA) has to be made after that first batch"
            )
        return self._rounded(input)

    def _rounded(self, input: Tensor) -> Tensor:
        values = input.numel() // self.scale.numel()
        if self.per_sample and input.dim() > 1:
            values = values // max(input.shape[0], 1)
        factor = float(max(values, 1) * self.quant_max) ** -0.5
        scale, zero_point = self._parameters_of(input.dtype)
        # The second term of this sum is 0 and carries the gradient, so the bits of the value do not
        # change.
        step = scale * factor
        rounded = rounded_scale(without_gradient(scale), self.scale_dtype)
        scale = rounded + (step - without_gradient(step))
        if zero_point is not None:
            step = zero_point * factor
            zero_point = without_gradient(zero_point) + (step - without_gradient(step))
        return self._fake_quantize(input, scale, zero_point, None)

    @torch.jit.export  # type: ignore[untyped-decorator]
    def quantize(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``input`` as int8 integers, with their scale and zero point.

        ``round`` returns these integers dequantized. The range must fit int8.
        """
        if not self._is_initialized():
            self.round(input)  # raises an error
        scale, zero_point = self.calculate_qparams()
        scale = scale.to(compute_dtype(input.dtype))
        return self._quantize(input, scale, zero_point), scale, zero_point

    @torch.jit.export  # type: ignore[untyped-decorator]
    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return the positive scale and the int32 zero point of the current grid."""
        scale, zero_point = self._parameters_of(self.scale.dtype)
        scale = rounded_scale(without_gradient(scale), self.scale_dtype)
        if zero_point is None:
            return scale, torch.zeros_like(scale, dtype=torch.int32)
        zeros = without_gradient(zero_point).round().clamp(self.quant_min, self.quant_max)
        return scale, zeros.nan_to_num(float(self.quant_min)).to(torch.int32)

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def sync_qparams(self, process_group: Any = None) -> None:
        """Give all processes the mean of their scales and zero points, where these are known.

        This is a collective operation: every process of the group must call it.

        Args:
            process_group: The ``torch.distributed`` group; None is the default one.

        Raises:
            RuntimeError: There is no process group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "LearnedFakeQuantize: expected torch.distributed to be initialized for "
                "sync_qparams; call torch.distributed.init_process_group first"
            )
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter is not self.zero_point:
                    parameter.abs_()  # of scales only the absolute value counts
                is_unknown = parameter.isnan().any()
                total = parameter.masked_fill(is_unknown, 0.0)
                count = (~is_unknown).to(total.dtype)
                dist.all_reduce(total, group=process_group)
                dist.all_reduce(count, group=process_group)
                parameter.copy_(total / count)  # NaN if no process knows one

    def extra_repr(self) -> str:
        """Return the arguments that differ between modules, for ``repr``."""
        parts = self._grid_parts()
        parts += [f"symmetric={self.symmetric}", f"scale={list(self.scale.shape)}"]
        parts += [] if self.scale_dtype == "float32" else [f"scale_dtype={self.scale_dtype}"]
        parts += [f"master={self.master}"] if self.master else []
        return ", ".join(parts)

    def _parameters_of(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Return the positive scale and the zero point, for an input of this dtype."""
        compute = compute_dtype(dtype)
        if not torch.jit.is_scripting():
            self._check_precision()
        scale = round_master(self.scale, self.master).to(compute)
        scale = scale.abs().clamp_min(2.0**-126)  # the smallest normal float32
        zero_point = self.zero_point
        if zero_point is not None:
            zero_point = round_master(zero_point, self.master).to(compute)
        return scale, zero_point

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def _check_precision(self) -> None:
        dtype = self.scale.dtype
        check_unrounded(self._name, dtype, compute_dtype(dtype), self.master)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._initialized = is_known(self.scale)
        self._saw_zeros = not self.saw_zeros.is_meta and bool(self.saw_zeros)

    def _complete(self, state: dict[str, Any], prefix: str) -> None:
        super()._complete(state, prefix)
        state.setdefault(f"{prefix}saw_zeros", torch.zeros(1, dtype=torch.uint8))

    def _fill_state(self) -> None:
        super()._fill_state()
        self.saw_zeros.fill_(int(self._saw_zeros))
        self._initialized = False
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(NAN)
