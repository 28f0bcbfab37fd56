# SPDX-License-Identifier: BSD-3-Clause
"""Places for the tensors of a quantized layer, while ``from_pretrained`` loads them.

transformers casts a tensor to the dtype of what it replaces. A slot has a buffer for each tensor
of the file, of its shape and dtype, so that integers stay integers and scales become float32. When
the last tensor arrives, the slot makes the quantized layer and puts it in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..export._ct_scheme import Scheme
from ..export._ct_tensors import build_layer, expected_tensors
from ..nn._subclassed import with_forward_of
from ..workflow.layers import further_names, layer_of
from ..workflow.replace import put_at, take_over
from ._files import check_fits
from ._versions import IS_5, mark_loaded

_REGISTERED = ("_parameters", "_buffers", "_modules")


class Slot(nn.Module):  # type: ignore[misc]
    """A place for the tensors of a layer.

    Args:
        model: The model that holds the layer.
        paths: All paths of the layer; the first one for messages.
        scheme: How it is quantized.
        like: The floating layer, on the meta device.
        caller: The public function, for messages.
    """

    def __init__(
        self, model: nn.Module, paths: list[str], scheme: Scheme, like: Any, caller: str
    ) -> None:
        super().__init__()
        # Not registered: the floating layer has no tensors in the file.
        self.__dict__.update(model=model, paths=paths, scheme=scheme, like=like, caller=caller)
        self.arrived: set[str] = set()
        self.absent: set[str] = set()  # which tensors the file lacks (transformers 4.57)
        expected = expected_tensors(scheme, like)
        for name, (shape, dtypes) in expected.items():
            self.register_buffer(name, torch.empty(shape, dtype=dtypes[0], device="meta"))
        bias = like._parameters.get("bias")
        if bias is not None:
            self.register_buffer("bias", torch.empty_like(bias, device="meta"))
        self.wanted = set(self._buffers)
        for kind in _REGISTERED:
            for name in further_names(like) & getattr(like, kind).keys():
                getattr(self, kind)[name] = getattr(like, kind)[name]
        self._non_persistent_buffers_set |= like._non_persistent_buffers_set

    def __setattr__(self, name: str, value: Any) -> None:
        """Take a tensor; the last one makes the layer."""
        super().__setattr__(name, value)
        if name not in self.__dict__.get("wanted", ()) or not _is_loaded(self, name, value):
            return
        self.arrived.add(name)
        if self.arrived >= self.wanted:
            put_at(self.model, self.paths, self.made(self.tensors()))

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Take tensors, as transformers 4.57 hands them over.

        Raises:
            ValueError: A tensor does not fit.
        """
        for name in self.wanted & state_dict.keys():
            value = state_dict[name]
            path = f"{self.paths[0]}.{name}"
            if name not in self.absent:  # else transformers has made it, in any dtype
                check_fits(path, tuple(value.shape), value.dtype, self._buffers[name], self.caller)
            setattr(self, name, value)
        rest = {name: value for name, value in state_dict.items() if name not in self.wanted}
        return super().load_state_dict(rest, *args, **kwargs)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that have arrived."""
        return {name: self._buffers[name] for name in self.arrived}

    def made(self, tensors: dict[str, Tensor]) -> nn.Module:
        """Return the quantized layer of some tensors.

        Raises:
            ValueError: They do not fit the layer or its scheme.
        """
        like = self.like
        for kind in _REGISTERED:
            own = {n: v for n, v in getattr(self, kind).items() if n not in self.wanted}
            getattr(like, kind).update(own)
        layer = layer_of(like)
        assert layer is not None
        new = build_layer(self.paths[0], self.scheme, tensors, like, self.caller)
        new = with_forward_of(new, like, layer.base_of(like))
        take_over(new, like)
        mark_loaded(new)
        return new

    def missing(self) -> list[str]:
        """Return the names of the tensors that have not arrived."""
        return sorted(self.wanted - self.arrived)


def _is_loaded(slot: Slot, name: str, value: Any) -> bool:
    """Whether a value is from the file: transformers also fills places with arbitrary numbers."""
    if not isinstance(value, Tensor) or value.is_meta:
        return False
    return getattr(value, "_is_hf_initialized", False) if IS_5 else name not in slot.absent
