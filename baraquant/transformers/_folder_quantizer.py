# SPDX-License-Identifier: BSD-3-Clause
"""``use_for_compressed_tensors``, and the quantizer that loads a folder into baraquant's layers.

Before the weights are loaded, each layer that the folder quantizes becomes a slot for its tensors:
transformers casts a tensor to the dtype of what it replaces. A slot has a buffer for each tensor
of the file, of its shape and dtype, so that integers stay integers and scales become float32. When
the last tensor arrives, the slot makes the quantized layer and puts it in its place. Whatever the
folder's configuration and its files do not agree on is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers import auto
from transformers.utils.quantization_config import CompressedTensorsConfig as TheirConfig

from .._fields import check_bool
from .._table import placed, some
from ..export.compressed_tensors.config import CtConfig, read_config
from ..export.compressed_tensors.scheme import METHOD, Scheme
from ..export.compressed_tensors.tensors import build_layer, check_layer, expected_tensors
from ..export.compressed_tensors.ties import ends_of
from ..nn import WeightOnlyInt4Linear
from ..nn.shared.subclassed import REGISTERED, successor, take_over, with_forward_of
from ..workflow.layers import further_names, layer_of, weights_of
from ..workflow.replace import put_at
from ..workflow.serialization.disk import open_file
from ..workflow.serialization.tensor_file import Entry, read_header
from ..workflow.transaction import replace_inference_tensors
from ..workflow.view import paths_of
from ._versions import IS_5, ask_for_missing, cast_scales_of_slots, mark_loaded, stop_telling
from ._writer import WritesCompressedTensors, note_ties

CALLER = "from_pretrained"  # the public function, for messages


def _caller_of(model: Any) -> str:
    """Return the public function with the folder that a model comes from, for messages."""
    folder = getattr(getattr(model, "config", None), "_name_or_path", None)
    return f"{CALLER}: {Path(folder).name}" if folder else CALLER


class Headers:
    """The names, shapes and dtypes of the tensors in some files.

    It is empty where transformers does not say which files it reads (before version 5), or where
    they are in another format. The prefix may stand before a name in the files or in the model
    alone.
    """

    def __init__(self, prefix: str, entries: dict[str, Entry]) -> None:
        self._prefix, self._entries = prefix, entries

    @classmethod
    def read(cls, files: Any, config: CtConfig, base: str, caller: str) -> Headers:
        """Read the headers of some files; ``base`` is the name of the model without its head.

        Raises:
            ValueError: A file is damaged.
        """
        entries: dict[str, Entry] = {}
        for file in files or ():
            if not str(file).endswith(".safetensors"):
                return cls("", {})
            with placed(caller, Path(file).name), open_file(file) as opened:
                header = read_header(opened, "a safetensors file")
                config.check_save(header.metadata)
            entries |= header.tensors
        return cls(f"{base}." if base else "", entries)

    def quantized(self) -> set[str]:
        """Return the paths of the layers whose weights are stored as integers."""
        return _of_integers(self._entries)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name; True if nothing is known."""
        return not self._entries or self._entry(name) is not None

    def check(self, name: str, place: torch.Tensor, caller: str) -> None:
        """Compare a tensor with its place; one under another name is not found, which is right."""
        entry = self._entry(name)
        if entry is not None:
            check_fits(f"{caller}: {name}", entry.shape, entry.dtype, place)

    def _entry(self, name: str) -> Entry | None:
        names = f"{self._prefix}{name}", name.removeprefix(self._prefix), name
        return next((self._entries[one] for one in names if one in self._entries), None)


def _of_integers(names: Iterable[str]) -> set[str]:
    """Return the paths of the layers that have integers among some tensors."""
    parts = (name.rpartition(".") for name in names)
    return {path for path, _, leaf in parts if leaf in ("weight_packed", "weight_scale")}


def check_fits(name: str, got: tuple[int, ...], dtype: torch.dtype, place: torch.Tensor) -> None:
    """Check that a stored tensor has the shape of its place, and is floating if the place is."""
    shape = tuple(place.shape)
    if got != shape and not (got == () and shape == (1,)):
        raise ValueError(
            f"{name}: expected the shape {list(shape)} by the model and the scheme, "
            f"but the folder has {list(got)}"
        )
    if dtype.is_floating_point != place.dtype.is_floating_point:
        raise ValueError(
            f"{name}: expected {place.dtype} by the scheme, but the folder has {dtype}"
        )


class Slot(nn.Module):  # type: ignore[misc]
    """A place for the tensors of a layer, which is floating and on the meta device.

    It has all paths of the layer; the first one is for messages.
    """

    def __init__(self, model: nn.Module, paths: list[str], scheme: Scheme, like: Any) -> None:
        super().__init__()
        # Not registered: the floating layer has no tensors in the file.
        self.__dict__.update(model=model, paths=paths, scheme=scheme, like=like)
        self.arrived: set[str] = set()
        self.absent: set[str] = set()  # which tensors the file lacks (transformers 4.57)
        expected = expected_tensors(scheme, like)
        for name, (shape, dtypes) in expected.items():
            self.register_buffer(name, torch.empty(shape, dtype=dtypes[0], device="meta"))
        bias = like._parameters.get("bias")
        if bias is not None:
            self.register_buffer("bias", torch.empty_like(bias, device="meta"))
        self.wanted = set(self._buffers)
        for kind in REGISTERED:
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
        """Take tensors, as transformers 4.57 hands them over, and check that they fit."""
        for name in self.wanted & state_dict.keys():
            value = state_dict[name]
            path = f"{_caller_of(self.model)}: {self.paths[0]}.{name}"
            if name not in self.absent:  # else transformers has made it, in any dtype
                check_fits(path, tuple(value.shape), value.dtype, self._buffers[name])
            setattr(self, name, value)
        rest = {name: value for name, value in state_dict.items() if name not in self.wanted}
        return super().load_state_dict(rest, *args, **kwargs)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that have arrived."""
        return {name: self._buffers[name] for name in self.arrived}

    def made(self, tensors: dict[str, Tensor]) -> nn.Module:
        """Return the quantized layer of some tensors, which have to fit it and its scheme."""
        like = self.like
        for kind in REGISTERED:
            own = {n: v for n, v in getattr(self, kind).items() if n not in self.wanted}
            getattr(like, kind).update(own)
        layer = layer_of(like)
        assert layer is not None
        new = build_layer(self.paths[0], self.scheme, tensors, like, _caller_of(self.model))
        new = successor(new, like, layer.base_of(like))
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


class FolderQuantizer(WritesCompressedTensors):
    """Loads a folder of compressed-tensors into baraquant's layers."""

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
        self._headers = Headers("", {})

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Any = None, **kwargs: Any
    ) -> Any:
        self.caller = _caller_of(model)
        names = paths_of(model)
        for module in [*model.modules()]:
            paths = names[id(module)]
            scheme = self._scheme(model, paths, module)
            if scheme is None:
                continue
            with placed(self.caller):
                check_layer(paths[0], scheme, module)
            self._slots[paths[0]] = slot = Slot(model, paths, scheme, module)
            put_at(model, paths, slot)
        if not self._slots:
            raise ValueError(
                f"{self.caller}: expected a model with layers that the folder quantizes, but no "
                f"target of its config_groups matches a layer of {type(model).__name__}"
            )
        base = model.base_model_prefix
        self._headers = Headers.read(checkpoint_files, self._parsed, base, self.caller)
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
                f"{self.caller}: {some(missing, 3)}: expected in the folder, but it is missing; "
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
        if found and layer_of(module) is None:
            raise ValueError(
                f"{self.caller}: {paths[0]}: baraquant has no quantized {type(module).__name__}"
            )
        return next(iter(found.values()), None)

    def _check_headers(self, model: Any) -> None:
        """Compare the headers of the files with the slots, before anything is read."""
        for path, slot in self._slots.items():
            for name in slot.wanted:
                self._headers.check(f"{path}.{name}", slot._buffers[name], self.caller)
        stored = self._headers.quantized()
        stored -= _of_head(model, stored, stored)
        if len(stored) > sum(len(slot.paths) for slot in self._slots.values()):
            known = {
                name
                for slot in self._slots.values()
                for path in slot.paths
                for name in _names_in_folder(slot.model, path)
            }
            raise _without_slot(min(stored - known or stored), self.caller)

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
                        f"{self.caller}: {name}: expected it in the folder, as it cannot be tied "
                        "to integers, but it is missing"
                    )

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> Any:
        """Refuse floating numbers where integers belong (transformers 5)."""
        new = super().get_new_dtype(converter, param, dtype)
        if new is not None and not new.is_floating_point:
            name = ", ".join(getattr(converter, "target_patterns", ()))
            raise ValueError(f"{self.caller}: {name}: expected integers, but the folder has floats")
        return new

    def update_missing_keys(self, model: nn.Module, missing_keys: list[str], prefix: str) -> Any:
        """Note which tensors the files lack (transformers 4.57)."""
        for name in missing_keys:
            path, _, leaf = name.rpartition(".")
            if path in self._slots:
                self._slots[path].absent.add(leaf)
        return missing_keys

    def update_unexpected_keys(self, model: nn.Module, unexpected_keys: list[str]) -> list[str]:
        """Refuse integers that no slot takes (transformers 4.57)."""
        stored = _of_integers(unexpected_keys)
        rest = {path for path in stored if not _is_beside_base(model, path)}
        rest -= _of_head(model, rest, set(self._slots))
        if rest and len(self._headers.quantized()) == 0:
            raise _without_slot(min(rest), self.caller)
        return unexpected_keys

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        stop_telling(model)
        self._fill_from_ties(model)
        for path, slot in self._slots.items():
            missing = slot.missing()
            if missing:
                raise ValueError(
                    f"{self.caller}: {path}.{missing[0]}: expected it in the folder for "
                    f"{slot.scheme}, but it is missing"
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
    if prefix and not hasattr(model, prefix):
        yield f"{prefix}.{path}"
    elif prefix and path.startswith(f"{prefix}."):
        yield path.removeprefix(f"{prefix}.")


def _without_slot(path: str, caller: str) -> ValueError:
    return ValueError(
        f"{caller}: {path}: the folder holds a quantized layer there, but no target of its "
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
    for name in names:
        one, other = getattr(table, name, None), getattr(head, name, None)
        if one is None and other is None:
            continue
        if one is None or other is None or one.device != other.device or not one.equal(other):
            return
    for name in names:
        setattr(head, name, getattr(table, name))
    if head is not ends[1]:
        take_over(head, ends[1])
        put_at(model, paths_of(model)[id(ends[1])], head)


# ---- How transformers gets to know the quantizer -------------------------------------------------

_CONFIGS = auto.AUTO_QUANTIZATION_CONFIG_MAPPING
_QUANTIZERS = auto.AUTO_QUANTIZER_MAPPING
# What transformers registers for the format.
_THEIRS = _CONFIGS[METHOD], _QUANTIZERS[METHOD]


class FolderConfig(TheirConfig):  # type: ignore[misc]
    """The object ``quantization_config`` of a folder, as it stands there.

    It has the name and the loading options of transformers' class, which may be given to
    ``from_pretrained``, but does not need the package compressed-tensors.

    Attributes:
        written: What ``save_pretrained`` writes into ``config.json``.
    """

    def __init__(self, **given: Any) -> None:
        self.written = given
        self.quant_method = METHOD
        # What an argument of from_pretrained may set. transformers 4.57 has the second one.
        self.dequantize = False
        self.run_compressed = True
        self.use_optimized_inference = False

    def to_dict(self) -> dict[str, Any]:
        """Return the object."""
        return {**self.written, "quant_method": METHOD}

    to_diff_dict = to_dict


# transformers compares the names of the classes.
FolderConfig.__name__ = TheirConfig.__name__


def use_for_compressed_tensors(
    on: bool = True, *, allow_missing: bool = False
) -> AbstractContextManager[Any]:
    """Let ``from_pretrained`` load folders of compressed-tensors as baraquant's layers.

    transformers itself decompresses such weights and imitates the rounding of inputs; baraquant's
    layers multiply the integers. A folder that baraquant wrote gives the bits of the model that it
    was written from. The package compressed-tensors is not needed.

    The call holds for the whole process, until ``use_for_compressed_tensors(False)``, or until the
    end of a ``with`` block. Folders are loaded by transformers' own reader all the same with
    ``quantization_config=CompressedTensorsConfig(dequantize=True)``; in transformers 4.57 it is
    ``run_compressed=False``.

    ``from_pretrained`` then raises a ValueError for folders whose weights are no integers of 2 to 8
    bits, and for folders that are damaged or contradict their configuration. The message has the
    path of the layer.

    Args:
        on: False gives the format back to transformers' own reader.
        allow_missing: True lets transformers make a tensor that a folder lacks, such as a new head
            to be trained, with its initial values and a warning. Tensors of quantized layers must
            be there.

    Returns:
        A context manager that restores the reader that was there before.

    Raises:
        TypeError: An argument is not a bool.

    Example:
        >>> import baraquant.transformers
        >>> with baraquant.transformers.use_for_compressed_tensors():
        ...     pass  # model = AutoModelForCausalLM.from_pretrained(folder)
    """
    check_bool("use_for_compressed_tensors", "on", on)
    check_bool("use_for_compressed_tensors", "allow_missing", allow_missing)
    before = _CONFIGS[METHOD], _QUANTIZERS[METHOD]
    if on:
        cast_scales_of_slots()
    _use((FolderConfig, partial(_reader, allow_missing)) if on else _THEIRS)
    back = ExitStack()
    back.callback(_use, before)
    return back


def _use(reader: tuple[Any, Any]) -> None:
    _CONFIGS[METHOD], _QUANTIZERS[METHOD] = reader


def _reader(allow_missing: bool, config: Any, **kwargs: Any) -> Any:
    """Return the quantizer for a folder, or transformers' own where it is to be dequantized."""
    if getattr(config, "dequantize", False) or not getattr(config, "run_compressed", True):
        theirs = _THEIRS[0].from_dict(config.to_dict())
        theirs.dequantize = True
        theirs.run_compressed = False
        make: Callable[..., Any] = _THEIRS[1]
        return make(theirs, **kwargs)
    if not isinstance(config, FolderConfig):
        raise ValueError(
            f"{CALLER}: expected a folder in the format {METHOD}, but it holds a floating model; "
            "to quantize it while it is loaded, give BaraquantConfig(scheme)"
        )
    parsed = read_config(config.to_dict(), CALLER)
    return FolderQuantizer(config, parsed, allow_missing, **kwargs)
