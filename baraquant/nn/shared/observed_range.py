# SPDX-License-Identifier: BSD-3-Clause
"""The state of a module that observes a range: start, loading, and union over processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .range import is_known, reduce_range, rounded_scale
from .weight import without_trace

UNSEEN = (
    "expected the range of its input to be known, but it has seen no data: run batches in training "
    "mode first"
)


class ObservedRange(nn.Module):  # type: ignore[misc]
    """A module with buffers for a running range, its scale, two flags and a counter.

    The subclass says with ``is_observed`` whether it has these buffers, and computes the scale.
    """

    min_val: Tensor
    max_val: Tensor
    scale: Tensor
    zero_point: Tensor
    observer_enabled: Tensor
    fake_quant_enabled: Tensor
    skipped_batches: Tensor
    scale_dtype: str
    _skipped_together: int  # of skipped_batches, those that every process has counted
    _is_seen: bool  # whether the scale was found to be known, which is read from the device once

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return scale and zero point of the range."""
        raise NotImplementedError

    def _register_range(self, shape: tuple[int, ...]) -> None:
        self.register_buffer("min_val", torch.full(shape, float("inf"), dtype=torch.float32))
        self.register_buffer("max_val", torch.full(shape, float("-inf"), dtype=torch.float32))
        scale, zero_point = self.calculate_qparams()
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", zero_point)
        # The flags are uint8: DistributedDataParallel broadcasts buffers, and NCCL has no bool.
        self.register_buffer("observer_enabled", torch.ones(1, dtype=torch.uint8))
        self.register_buffer("fake_quant_enabled", torch.ones(1, dtype=torch.uint8))
        self.register_buffer("skipped_batches", torch.zeros((), dtype=torch.int64))
        self._skipped_together = 0
        self._is_seen = False

    def check_seen(self) -> None:
        """Check that the scale of a prepared layer is known, before evaluation rounds with it.

        The values are read until they are known: also by a script, and by a trace, a compiled graph
        or a strict export when it is made. A non-strict export has no values, and a captured graph
        cannot read them.
        """
        if torch.jit.is_scripting():
            if not self._is_seen and not self.scale.is_meta:
                raise_if_unseen(self.scale, self.min_val, self.max_val, self.skipped_batches)
                self._is_seen = True
        elif torch.compiler.is_dynamo_compiling():
            if not _is_seen(self.scale, self.min_val, self.max_val):
                raise ValueError("FakeQuantize: " + UNSEEN)
        # In compiled code the first term decides, so that the second one is no guard.
        elif not torch.compiler.is_compiling() and not self._is_seen and _is_readable(self.scale):
            with without_trace():
                raise_if_unseen(self.scale, self.min_val, self.max_val, self.skipped_batches)
            self._is_seen = True

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def sync_qparams(self, process_group: Any = None) -> None:
        """Give all processes the union of their ranges, and its scale and zero point.

        ``skipped_batches`` becomes the sum over all processes. This is a collective operation:
        every process of the group must call it.

        Args:
            process_group: The ``torch.distributed`` group; None is the default one.

        Raises:
            RuntimeError: A mode other than ``observed``, or no process group.
        """
        if not self.is_observed:
            raise RuntimeError(
                f"FakeQuantize: expected mode 'observed' for sync_qparams, but got '{self.mode}'"
            )
        reduce_range(self.min_val, self.max_val, process_group)
        # Every process has the batches of the last synchronization already.
        new = self.skipped_batches - self._skipped_together
        dist.all_reduce(new, dist.ReduceOp.SUM, group=process_group)
        self.skipped_batches.copy_(new + self._skipped_together)
        self._skipped_together = int(self.skipped_batches)
        known = is_known(self.min_val, self.max_val)
        scale, zero_point = self.calculate_qparams()
        self.scale.copy_(torch.where(known, scale, self.scale))
        self.zero_point.copy_(torch.where(known, zero_point, self.zero_point))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        counter, low = prefix + "skipped_batches", state_dict.get(prefix + "min_val")
        if self.is_observed and low is not None and counter not in state_dict:
            # PyTorch's own observers do not count.
            state_dict[counter] = torch.zeros((), dtype=torch.int64, device=low.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._is_seen = False
        if self.scale_dtype != "float32" and "scale" in self._buffers:
            # The state may be that of a module whose scales were not rounded.
            self._buffers["scale"] = rounded_scale(self.scale, self.scale_dtype)
        if self.is_observed and counter in state_dict and not self.skipped_batches.is_meta:
            self._skipped_together = int(self.skipped_batches)


def skipped(quantizer: nn.Module) -> str:
    """Return a note of how many batches the range of an input ignored; empty if none."""
    skipped_batches = getattr(quantizer, "skipped_batches", None)
    if not isinstance(skipped_batches, Tensor):  # neither an observed range nor a learned scale
        return ""
    return _note(0 if skipped_batches.is_meta else int(skipped_batches))


def _note(count: int) -> str:
    if count == 0:
        return ""
    batches = "1 batch" if count == 1 else f"{count} batches"
    return f"; {batches} with a NaN or infinity took no part in its input's range"


def raise_if_unseen(
    scale: Tensor, min_val: Tensor, max_val: Tensor, skipped_batches: Tensor, message: str = UNSEEN
) -> None:
    """Raise ValueError if no batch has set the scale; TorchScript compiles this too."""
    if not _is_seen(scale, min_val, max_val):
        raise ValueError("FakeQuantize: " + message + _note(int(skipped_batches)))


def _is_seen(scale: Tensor, min_val: Tensor, max_val: Tensor) -> bool:
    """Whether a batch has set the scale; a graph that Dynamo makes holds the answer of then."""
    return scale.is_meta or not (bool(scale.isnan().any()) and bool((min_val > max_val).any()))


# As torch.compiler.assume_constant_result does, which imports TorchDynamo: seconds, for all users.
_is_seen._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_readable(tensor: Tensor) -> bool:
    """Whether the values of a tensor can be read; a trace sees a plain tensor, as eager code."""
    is_plain = type(tensor) is Tensor and not tensor.is_meta
    return is_plain and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
