# SPDX-License-Identifier: BSD-3-Clause
"""The base of all fake quantizers: their switch, their precision, and what a checkpoint holds.

A training that is resumed from its state dict goes on with the same bits. Beside ranges and learned
scales a state has the switch, ``fake_quant_enabled``, and ``scheme``, which says how the module
quantizes, so that it is not loaded into a model that was prepared otherwise. They are buffers, as
tools for distributed checkpoints know parameters and buffers alone. Layers for inference keep
neither.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from ..._table import shown
from ...granularity import GRANULARITIES
from ...ops.recompute import is_recomputing
from .arguments import SCALES
from .checked_state import ChecksState
from .precision import with_precision

_KINDS = ("fixed", "dynamic", "observed", "ternary", "int4", "learned", "learned int4")
_LEARNED = _KINDS.index("learned")


class Quantizer(ChecksState):
    """A module that rounds its input, and can be switched off.

    Its floating tensors keep their precision when the module changes its dtype.

    There are two switches. ``disable_fake_quant`` is a part of the training, and of its state dict.
    A teacher (:func:`baraquant.qat.teacher`) switches rounding off for a while, in evaluation too.
    """

    __constants__: tuple[str, ...] = ("keeps_state",)
    keeps_state = False  # whether the switch is a buffer too
    _rounds: bool  # an observed range has the buffer alone
    _scheme: list[int]
    # Whether a teacher computes: a plain attribute of the module, which Dynamo guards on.
    _is_teacher: bool = False

    def _keep_state(self, kind: str, scales: int, device: torch.device | str | None = None) -> None:
        """Register what a state dict needs to be resumed; ``scales`` is their number if fixed."""
        self._scheme = [
            _KINDS.index(kind),
            GRANULARITIES.index(self.granularity),
            *(self.quant_min, self.quant_max, int(self.symmetric), self.group_size, scales),
        ]
        scheme = torch.tensor(self._scheme, dtype=torch.int32, device=device)
        self.register_buffer("scheme", scheme)
        self.keeps_state = True
        self._is_teacher = False
        if not self.is_observed:
            enabled = torch.ones(1, dtype=torch.uint8, device=device)
            self.register_buffer("fake_quant_enabled", enabled)

    def without_state(self) -> Self:
        """Forget what only a training needs, for a layer of inference; return the module."""
        self._buffers.pop("scheme", None)
        if not self.is_observed:
            self.keeps_state = False
            self._buffers.pop("fake_quant_enabled", None)
        return self

    @torch.jit.export  # type: ignore[untyped-decorator]
    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Let the module round its input, or pass it through unchanged (an observer continues)."""
        if self.keeps_state:
            self.fake_quant_enabled.fill_(int(enabled))
        if not self.is_observed:
            self._rounds = enabled

    @torch.jit.export  # type: ignore[untyped-decorator]
    def disable_fake_quant(self) -> None:
        """Pass the input through unchanged; an observer continues."""
        self.enable_fake_quant(False)

    def is_teacher(self) -> bool:
        """Whether a teacher computes, so that nothing is rounded or observed.

        A recomputation of activation checkpointing belongs to the student, whenever it comes.
        """
        if torch.jit.is_scripting():
            return False
        return self._is_teacher and (torch.compiler.is_compiling() or not is_recomputing())

    @torch.jit.unused  # type: ignore[untyped-decorator]
    def set_teacher(self, token: object, is_on: bool) -> None:
        """Enter or leave a teacher, which ``token`` stands for.

        The switch is on while there is a token. Other threads, and the garbage collector within
        this call, may enter and leave as well: whoever writes last has compared both.
        """
        tokens: set[object] = self.__dict__.setdefault("_teachers", set())
        (tokens.add if is_on else tokens.discard)(token)
        while self._is_teacher != bool(tokens):
            self._is_teacher = bool(tokens)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: it is no teacher."""
        state = {**self.__dict__, "_is_teacher": False}
        state.pop("_teachers", None)
        return state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every conversion of a module (half(), to(dtype), cuda(), ...) calls this.
        buffers = {name: b for name, b in self._buffers.items() if b is not None}
        parameters = {name: p.data for name, p in self._parameters.items() if p is not None}
        super()._apply(fn, recurse)
        for name, old in buffers.items():
            self._buffers[name] = with_precision(old, self._buffers[name])
        for name, old in parameters.items():
            parameter = self._parameters[name]
            if parameter.dtype not in SCALES:
                parameter.data = with_precision(old, parameter.data)
                parameter.grad = None
        if "scheme" in buffers and buffers["scheme"].is_meta:
            self._fill_state()
        return self

    def _fill_state(self) -> None:
        """Write the buffers that have a twin on the host, as memory that was empty has none."""
        self.scheme.copy_(torch.tensor(self._scheme, dtype=torch.int32))
        if not self.is_observed:
            self.fake_quant_enabled.fill_(int(self._rounds))

    def _why_not_state(self, state: Any, prefix: str, metadata: Any) -> list[str]:
        reasons = super()._why_not_state(state, prefix, metadata)
        given = state.get(f"{prefix}scheme")
        if reasons or "scheme" not in self._buffers:
            return reasons
        if given is None:
            return self._why_not_zero_point(state.get(f"{prefix}zero_point"), prefix)
        if not isinstance(given, Tensor) or given.is_meta:  # PyTorch refuses what is no tensor
            return []
        found = given.flatten().tolist()
        if found == self._scheme:
            return []
        got = _described(found)
        return [
            f"{prefix}scheme: expected the state of a fake quantizer that is "
            f"{_described(self._scheme)}, but got that of one that is {got}; prepare the model "
            "with the configuration that the state comes from, then load it"
        ]

    def _why_not_zero_point(self, zero_point: Any, prefix: str) -> list[str]:
        """Return why the zero point of a state without a scheme is none of this module."""
        if not isinstance(zero_point, Tensor) or zero_point.is_meta or self._scheme[0] >= _LEARNED:
            return []
        low, high = self.quant_min, self.quant_max
        if self.is_observed and self.symmetric:
            low = high = (low + high + 1) // 2
        if bool(((zero_point >= low) & (zero_point <= high)).all()):
            return []
        return [
            f"{prefix}zero_point: expected a zero point in [{low}, {high}], as the module is "
            f"{_described(self._scheme)}, but got {int(zero_point.min())} to "
            f"{int(zero_point.max())}; prepare the model with the configuration that the state "
            "comes from, then load it"
        ]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Clones, so that a module with two paths has an entry for each. Of tensors that share
        # memory safetensors stores one, and wants the others to be missed, which `_complete` adds.
        for name in ("scheme", *(() if self.is_observed else ("fake_quant_enabled", "saw_zeros"))):
            if f"{prefix}{name}" in destination:
                destination[f"{prefix}{name}"] = destination[f"{prefix}{name}"].clone()

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state, prefix, *args)
        if self.keeps_state and not (self.is_observed or self.fake_quant_enabled.is_meta):
            self._rounds = bool(self.fake_quant_enabled)

    def _complete(self, state: dict[str, Any], prefix: str) -> None:
        super()._complete(state, prefix)
        if self.keeps_state:
            state.setdefault(f"{prefix}scheme", torch.tensor(self._scheme, dtype=torch.int32))
            # If the module is switched off, the state has to say whether it is.
            if not self.is_observed and self._rounds:
                on = torch.ones(1, dtype=torch.uint8)
                state.setdefault(f"{prefix}fake_quant_enabled", on)


def training_quantizers(module: nn.Module) -> list[Quantizer]:
    """Return the quantizers of prepared layers; those of converted ones keep no state."""
    return [one for one in module.modules() if isinstance(one, Quantizer) and one.keeps_state]


@contextmanager
def without_rounding(quantizers: Sequence[Quantizer]) -> Iterator[None]:
    """Let quantizers give back their inputs, until this and all other such blocks have ended."""
    token = object()
    try:
        for quantizer in quantizers:
            quantizer.set_teacher(token, True)
        yield
    finally:
        for quantizer in quantizers:
            quantizer.set_teacher(token, False)


def _described(scheme: list[int]) -> str:
    if len(scheme) != 7 or not (0 <= scheme[0] < len(_KINDS) and 0 <= scheme[1] < 4):
        return shown(scheme)
    kind, granularity, low, high, symmetric, group_size, scales = scheme
    words = [_KINDS[kind], GRANULARITIES[granularity], "symmetric" if symmetric else "asymmetric"]
    words += [f"in [{low}, {high}]", *([f"in groups of {group_size}"] if group_size else [])]
    return " ".join([*words, *([f"with {scales} scales"] if scales else [])])
