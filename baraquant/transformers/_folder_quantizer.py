# SPDX-License-Identifier: BSD-3-Clause
"""The quantizer that loads a folder of compressed-tensors into baraquant's layers.

Before the weights are loaded, each layer that the folder quantizes becomes a slot for its tensors:
transformers casts a tensor to the dtype of what it replaces. A slot has a buffer for each tensor
of the file, of its shape and dtype, so that integers stay integers and scales become float32. When
the last tensor arrives, the slot makes the quantized layer and puts it in its place. Whatever the
folder's configuration and its files do not agree on is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._table import some
from ..export.compressed_tensors.config import CtConfig
from ..export.compressed_tensors.scheme import Scheme
from ..export.compressed_tensors.tensors import build_layer, check_layer, expected_tensors
from ..export.compressed_tensors.ties import ends_of
from ..nn import WeightOnlyInt4Linear
from ..nn.shared.subclassed import with_forward_of
from ..workflow.layers import further_names, layer_of, weights_of
from ..workflow.replace import put_at, take_over
from ..workflow.serialization.tensor_file import Entry, read_header
from ..workflow.view import paths_of, replace_inference_tensors
from ._versions import IS_5, ask_for_missing, mark_loaded, stop_telling
from ._writer import WritesCompressedTensors, note_ties


class Headers:
    """The names, shapes and dtypes of the tensors in some files.

    It is empty where transformers does not say which files it reads (before version 5), or where
    they are in another format.

    Args:
        prefixes: What may stand before a name in the files or in the model alone.
        entries: The tensors by name.
    """

    def __init__(self, prefixes: Iterable[str], entries: dict[str, Entry]) -> None:
        self._prefixes, self._entries = list(prefixes), entries

    @classmethod
    def read(cls, files: Any, base: str, caller: str) -> Headers:
        """Read the headers of some files.

        Args:
            files: Their paths, or None.
            base: The name of the model without its head in the model with a head.
            caller: The public function, for messages.

        Raises:
            ValueError: A file is damaged.
        """
        entries: dict[str, Entry] = {}
        for file in files or ():
            if not str(file).endswith(".safetensors"):
                return cls([], {})
            try:
                entries |= read_header(Path(file), "a safetensors file").tensors
            except ValueError as error:
                raise ValueError(f"{caller}: {Path(file).name}: {error}") from None
        return cls([f"{base}."] if base else [], entries)

    def quantized(self) -> set[str]:
        """Return the paths of the layers whose weights are stored as integers."""
        return _of_integers(self._entries)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name; True if nothing is known."""
        return not self._entries or self._entry(name) is not None

    def check(self, name: str, place: torch.Tensor, caller: str) -> None:
        """Compare a tensor with its place. One under another name is not found, which is no error.

        Raises:
            ValueError: Its shape differs, or it is floating where integers belong.
        """
        entry = self._entry(name)
        if entry is None:
            return
        check_fits(name, entry.shape, entry.dtype, place, caller)

    def _entry(self, name: str) -> Entry | None:
        for prefix in self._prefixes:
            for other in (f"{prefix}{name}", name.removeprefix(prefix)):
                if other in self._entries:
                    return self._entries[other]
        return self._entries.get(name)


def _of_integers(names: Iterable[str]) -> set[str]:
    """Return the paths of the layers that have integers among some tensors."""
    parts = (name.rpartition(".") for name in names)
    return {path for path, _, leaf in parts if leaf in ("weight_packed", "weight_scale")}


def check_fits(
    name: str, got: tuple[int, ...], dtype: torch.dtype, place: torch.Tensor, caller: str
) -> None:
    """Check that a stored tensor has the shape of its place, and is floating if the place is.

    Raises:
        ValueError: It does not fit.
    """
    shape = tuple(place.shape)
    if got != shape and not (got == () and shape == (1,)):
        raise ValueError(
            f"{caller}: {name}: expected the shape {list(shape)} by the model and the scheme, "
            f"but the folder has {list(got)}"
        )
    if dtype.is_floating_point != place.dtype.is_floating_point:
        raise ValueError(
            f"{caller}: {name}: expected {place.dtype} by the scheme, but the folder has {dtype}"
        )


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


CALLER = "from_pretrained"


class FolderQuantizer(WritesCompressedTensors):
    """Loads a folder of compressed-tensors into baraquant's layers.

    Args:
        quantization_config: The object of ``config.json``.
        parsed: The same, checked.
        allow_missing: Whether transformers may make tensors that the folder lacks.
    """

    caller = CALLER
    requires_calibration = True  # a floating folder cannot be loaded with this configuration

    def __init__(
        self, quantization_config: Any, parsed: CtConfig, allow_missing: bool, **kwargs: Any
    ) -> None:
        super().__init__(quantization_config, **kwargs)
        self._allows_missing = allow_missing
        self._parsed = parsed
        self._slots: dict[str, Slot] = {}
        self._ties: list[tuple[str, str]] = []
        self._headers = Headers([], {})

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Any = None, **kwargs: Any
    ) -> Any:
        names = paths_of(model)
        at = {id(module): module for module in model.modules()}
        for key, paths in names.items():
            scheme = self._scheme(model, paths, at[key])
            if scheme is None:
                continue
            try:
                check_layer(paths[0], scheme, at[key])
            except ValueError as error:
                raise ValueError(f"{CALLER}: {error}") from None
            self._slots[paths[0]] = slot = Slot(model, paths, scheme, at[key], CALLER)
            put_at(model, paths, slot)
        if not self._slots:
            raise ValueError(
                f"{CALLER}: expected a model with layers that the folder quantizes, but no target "
                f"of its config_groups matches a layer of {type(model).__name__}"
            )
        self._headers = Headers.read(checkpoint_files, model.base_model_prefix, CALLER)
        self._check_headers(model)
        self._take_ties(model)
        if not self._allows_missing:
            ask_for_missing(model, self._refuse_missing)
        return model

    def _refuse_missing(self, names: Iterable[str]) -> None:
        slots = {path for slot in self._slots.values() for path in slot.paths}
        missing = sorted(name for name in names if name.rpartition(".")[0] not in slots)
        if missing:
            raise ValueError(
                f"{CALLER}: {some(missing, 3)}: expected in the folder, but it is missing; "
                "use_for_compressed_tensors(allow_missing=True) lets transformers make it"
            )

    def _scheme(self, model: Any, paths: list[str], module: nn.Module) -> Scheme | None:
        """Return the scheme of a module, under the names that it may have in the folder."""
        if not weights_of(module) or not paths[0]:
            return None  # an expression may match containers and norms, which have no weights
        found: dict[str, Scheme] = {}
        for path in paths:
            for name in _names_in_folder(model, path):
                scheme = self._parsed.scheme_of(name, module)
                if scheme is not None:
                    found[path] = scheme
                elif any(self._parsed.schemes.find(name, module)):
                    return None
        if not found:
            return None
        if layer_of(module) is None:
            raise ValueError(
                f"{CALLER}: {paths[0]}: baraquant has no quantized {type(module).__name__}"
            )
        return next(iter(found.values()))

    def _check_headers(self, model: Any) -> None:
        """Compare the headers of the files with the slots, before anything is read.

        Raises:
            ValueError: They contradict each other.
        """
        for path, slot in self._slots.items():
            for name in slot.wanted:
                self._headers.check(f"{path}.{name}", slot._buffers[name], CALLER)
        stored = self._headers.quantized()
        stored -= _of_head(model, stored, stored)
        if len(stored) > sum(len(slot.paths) for slot in self._slots.values()):
            known = {
                name
                for slot in self._slots.values()
                for path in slot.paths
                for name in _names_in_folder(slot.model, path)
            }
            raise _without_slot(min(stored - known or stored))

    def _take_ties(self, model: Any) -> None:
        """Take the ties of slots from transformers, which ties parameters by name."""
        ties = getattr(model, "all_tied_weights_keys", None)
        if ties is None:
            return
        for target, source in list(ties.items()):
            ends = [name.rpartition(".")[0] for name in (target, source)]
            is_slot = [isinstance(model.get_submodule(end), Slot) for end in ends]
            if not any(is_slot):
                continue
            del ties[target]
            self._ties.append((ends[0], ends[1]))
            for name, quantized in zip((target, source), is_slot, strict=True):
                if not quantized and not self._headers.has(name):
                    raise ValueError(
                        f"{CALLER}: {name}: expected it in the folder, as it cannot be tied to "
                        "integers, but it is missing"
                    )

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> Any:
        """Refuse floating numbers where integers belong (transformers 5).

        Raises:
            ValueError: The file has floating numbers for a tensor of integers.
        """
        new = super().get_new_dtype(converter, param, dtype)
        if new is not None and not new.is_floating_point:
            name = ", ".join(getattr(converter, "target_patterns", ()))
            raise ValueError(f"{CALLER}: {name}: expected integers, but the folder has floats")
        return new

    def update_missing_keys(self, model: nn.Module, missing_keys: list[str], prefix: str) -> Any:
        """Note which tensors the files lack (transformers 4.57)."""
        for name in missing_keys:
            path, _, leaf = name.rpartition(".")
            if path in self._slots:
                self._slots[path].absent.add(leaf)
        return missing_keys

    def update_unexpected_keys(self, model: nn.Module, unexpected_keys: list[str]) -> list[str]:
        """Refuse integers that no slot takes (transformers 4.57).

        Raises:
            ValueError: There are such.
        """
        stored = _of_integers(unexpected_keys)
        rest = {path for path in stored if not _is_beside_base(model, path)}
        rest -= _of_head(model, rest, set(self._slots))
        if rest and len(self._headers.quantized()) == 0:
            raise _without_slot(min(rest))
        return unexpected_keys

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        stop_telling(model)
        self._fill_from_ties(model)
        for path, slot in self._slots.items():
            missing = slot.missing()
            if missing:
                raise ValueError(
                    f"{CALLER}: {path}.{missing[0]}: expected it in the folder for {slot.scheme}, "
                    "but it is missing"
                )
        self._slots.clear()
        _share(model)
        note_ties(model)
        replace_inference_tensors(model)
        return model

    def _fill_from_ties(self, model: nn.Module) -> None:
        """Give a slot without tensors those of the layer that it is tied to."""
        for pair in self._ties:
            slots = [self._slots.get(path) for path in pair]
            for slot, other in zip(slots, slots[::-1], strict=True):
                if slot is None or other is None or other.missing() or slot.arrived - {"bias"}:
                    continue
                tensors = {n: t for n, t in other.tensors().items() if n != "bias"}
                new = slot.made({**slot.tensors(), **tensors})
                slot.arrived = set(slot.wanted)
                put_at(model, slot.paths, new)


def _names_in_folder(model: Any, path: str) -> Iterator[str]:
    """Yield the names that a path may have in the folder of a model with or without a head."""
    yield path
    prefix = model.base_model_prefix
    if not prefix:
        return
    if hasattr(model, prefix):
        if path.startswith(f"{prefix}."):
            yield path.removeprefix(f"{prefix}.")
    else:
        yield f"{prefix}.{path}"


def _without_slot(path: str) -> ValueError:
    return ValueError(
        f"{CALLER}: {path}: the folder holds a quantized layer there, but no target of its "
        "config_groups matches such a layer of the model; it may be ignored by mistake, or "
        "transformers keeps such layers in another form, as it does experts: then load the folder "
        "with baraquant.export.from_compressed_tensors"
    )


def _of_head(model: Any, paths: set[str], stored: set[str]) -> set[str]:
    """Return the paths of the folder's layers that this model does not have by design."""
    prefix = model.base_model_prefix
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    is_base = bool(prefix) and not hasattr(model, prefix)
    has_base = is_base and any(path.startswith(f"{prefix}.") for path in stored)
    return {
        path
        for path in paths
        if any(re.search(pattern, f"{path}.weight") for pattern in ignored)
        or (has_base and not path.startswith(f"{prefix}."))
    }


def _is_beside_base(model: Any, path: str) -> bool:
    """Whether a path lies outside of a base model that is loaded without its head."""
    prefix, first = model.base_model_prefix, path.split(".")[0]
    return bool(prefix) and not hasattr(model, prefix) and first not in {prefix, *model._modules}


def _share(model: nn.Module) -> None:
    """Let equal input and output embeddings have the same integers in memory."""
    ends = ends_of(model)
    names = ("qweight", "weight_scale", "weight_zero_point")
    if len(ends) != 2 or ends[0] is ends[1] or "qweight" not in ends[0]._parameters:
        return
    table, head = ends
    if type(head) is WeightOnlyInt4Linear:
        head = with_forward_of(head.as_int8(), head, nn.Linear)
    pairs: list[tuple[Any, Any]]
    pairs = [(getattr(table, name, None), getattr(head, name, None)) for name in names]
    for one, other in pairs:
        if (one is None) != (other is None):
            return
        if one is not None and (one.device != other.device or not torch.equal(one, other)):
            return
    for name in names:
        setattr(head, name, getattr(table, name))
    if head is not ends[1]:
        take_over(head, ends[1])
        put_at(model, paths_of(model)[id(ends[1])], head)
