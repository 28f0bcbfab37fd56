# SPDX-License-Identifier: BSD-3-Clause
"""What a module checks before it loads a state dict: PyTorch converts whatever has the shape."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class ChecksState(nn.Module):  # type: ignore[misc]
    """A module that refuses a state that means something else here; it stays as it is then."""

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        reasons = self._why_not_state(state, prefix, metadata)
        errors += reasons
        if not reasons:
            self._complete(state, prefix)
            lists = missing, unexpected, errors
            super()._load_from_state_dict(state, prefix, metadata, strict, *lists)

    def _complete(self, state: dict[str, Any], prefix: str) -> None:
        """Add entries that a state may lack, as that of PyTorch's observers or of floats does."""

    def _why_not_state(
        self, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]
    ) -> list[str]:
        """Return what is wrong with the entries of a state dict that begin with ``prefix``."""
        is_assigned = bool(metadata.get("assign_to_params_buffers", False))
        reasons = []
        for name, own in (*self._parameters.items(), *self._buffers.items()):
            reason = _misfit(own, state.get(prefix + name), is_assigned)
            if reason is not None:
                reasons.append(f"{prefix}{name}: {reason}; load the state of a model made alike")
        return reasons


def _misfit(own: Tensor | None, given: Any, is_assigned: bool) -> str | None:
    """Return why a tensor cannot take the place of one of integers; None if it can."""
    if own is None or own.is_floating_point() or not isinstance(given, Tensor):
        return None
    if given.dtype == own.dtype:
        return None
    if is_assigned or given.is_floating_point() or given.is_complex():
        return f"expected {own.dtype}, but got {given.dtype}"
    if given.is_meta or given.numel() == 0:
        return None
    low, high = torch.iinfo(own.dtype).min, torch.iinfo(own.dtype).max
    least, most = (int(end) for end in torch.aminmax(given.long()))
    if low <= least and most <= high:
        return None
    return f"expected integers in [{low}, {high}], as {own.dtype} has, but got {least} to {most}"
