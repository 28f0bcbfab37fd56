# SPDX-License-Identifier: BSD-3-Clause
"""Every function that writes files: two models for it, and which of them a reader finds.

`at_each_step` calls a function before each operation on the files of a folder.
"""

import copy
import hashlib
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import baraquant
from baraquant.export import onnx as onnx_exporter
from tests.support.compressed_folders import Block, block
from tests.support.optional_packages import package


def digest(parts: Iterable[tuple[str, Any]]) -> str:
    total = hashlib.sha256()
    for name, values in sorted(parts, key=lambda part: part[0]):
        total.update(name.encode())
        total.update(values.tobytes())
    return total.hexdigest()


def state_of(model: nn.Module) -> str:
    """What tells the quantized tensors of a model from those of another one."""
    return digest((name, value.numpy()) for name, value in model.state_dict().items())


@dataclass(frozen=True)
class Writer:
    """A function that writes one file or folder."""

    target: str  # the name of what it writes
    build: Callable[[int], nn.Module]
    write: Callable[[nn.Module, Path], object]
    read: Callable[[Path], str]  # what a reader finds; an error for what is not whole
    replaces: bool = True  # it may replace what it has written before

    def readings(self, models: list[nn.Module], folder: Path) -> list[str]:
        """What a reader finds of each model, each written where nothing was before."""
        found = []
        for number, model in enumerate(models):
            (folder / str(number)).mkdir(parents=True)
            self.write(model, folder / str(number) / self.target)
            found.append(self.read(folder / str(number) / self.target))
        return found


def reading(writer: Writer, path: Path) -> str | None:
    """What a reader finds; None where nothing is."""
    return writer.read(path) if path.exists() else None


def network(seed: int) -> nn.Module:
    """Weights that are large and scales that are small, for files that store these apart."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
    baraquant.quantize_(model, baraquant.W8A8())
    return model


def _floats() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)).eval()


@cache
def llama(seed: int) -> nn.Module:
    transformers = package("transformers")
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 96}
    config = transformers.LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    baraquant.quantize_(model, baraquant.W4A16(32, scale_dtype="float16"))
    return model


def projections(seed: int) -> nn.Module:
    model = block(seed=seed)
    baraquant.quantize_(model, {nn.Linear: baraquant.W8A8(), nn.Embedding: None})
    return model


def names(folder: Path) -> list[str]:
    """What lies in a folder, but for the tokens of writers."""
    return sorted(re.sub("[0-9a-f]{16}", "TOKEN", file.name) for file in folder.iterdir())


def grow_old(folder: Path) -> None:
    """Let what killed writers left be two days old."""
    before = time.time() - 2 * 86400
    for file in folder.iterdir():
        if file.name.endswith(".partial"):
            os.utime(file, (before, before))


def prepared(writer: Writer, folder: Path) -> tuple[Path, list[nn.Module], list[str]]:
    """A path, two models, and what a reader finds of each."""
    models = [writer.build(seed) for seed in (0, 1)]
    found = writer.readings(models, folder / "apart")
    assert found[0] != found[1]
    path = folder / "one" / writer.target
    path.parent.mkdir()
    return path, models, found


# --- ONNX: PyTorch's exporter runs once for each model, as only the writing is of interest here ---

_programs: dict[str, Any] = {}
_real_exporter = onnx_exporter._exported


def _exported_once(model: nn.Module, args: Any, options: Any) -> Any:
    program = _programs.get(state_of(model))
    if program is None:
        program = _programs[state_of(model)] = _real_exporter(model, args, options)
    again = copy.copy(program)
    again.model = program.model.clone()
    return again


@contextmanager
def cached_exporter() -> Iterator[None]:
    onnx_exporter._exported = _exported_once
    try:
        yield
    finally:
        onnx_exporter._exported = _real_exporter


def write_onnx(model: nn.Module, path: Path, external_data: bool = False) -> None:
    package("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.zeros(2, 32)
        baraquant.export.to_onnx(model, (x,), path, external_data=external_data)


def write_onnx_apart(model: nn.Module, path: Path) -> None:
    write_onnx(model, path, external_data=True)


def read_onnx(path: Path) -> str:
    onnx = package("onnx")
    graph = onnx.load(path).graph
    return digest((one.name, onnx.numpy_helper.to_array(one)) for one in graph.initializer)


def read_gguf(path: Path) -> str:
    reader = package("gguf").GGUFReader(path)
    return digest((tensor.name, tensor.data) for tensor in reader.tensors)


def read_file(path: Path) -> str:
    return state_of(baraquant.load_(_floats(), path))


def write_folder(model: nn.Module, path: Path) -> None:
    baraquant.export.to_compressed_tensors(model, path, max_shard_size="12KB")


def read_folder(path: Path) -> str:
    return state_of(baraquant.export.from_compressed_tensors(Block().eval(), path))


WRITERS = {
    "save": Writer("model.safetensors", network, baraquant.save, read_file),
    "to_onnx": Writer("model.onnx", network, write_onnx, read_onnx),
    "to_onnx, weights apart": Writer("model.onnx", network, write_onnx_apart, read_onnx),
    "to_gguf": Writer("model.gguf", llama, baraquant.export.to_gguf, read_gguf),
    "to_compressed_tensors": Writer("served", projections, write_folder, read_folder, False),
}


# --- the steps of a writer ------------------------------------------------------------------------

_EVENTS = {"open", "os.chmod", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
_steps: tuple[Path, Callable[[str], None], int] | None = None
_real_fsync = os.fsync


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    global _steps
    if _steps is None or event not in _EVENTS or isinstance(args[0], int):
        return
    folder, act, thread = steps = _steps
    if threading.get_ident() == thread and os.fsdecode(args[0]).startswith(str(folder)):
        _steps = None  # what `act` itself does is no step
        try:
            act(event)
        finally:
            _steps = steps


def _fsync(descriptor: int) -> None:
    if _steps is not None:
        _on_event("os.rename", (_steps[0],))
    _real_fsync(descriptor)


_installed: list[bool] = []


@contextmanager
def at_each_step(folder: Path, act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of each operation of this thread on files of a folder, before it.

    What `safetensors` does within its own library is not seen.
    """
    global _steps
    if not _installed:
        sys.addaudithook(_on_event)
        _installed.append(True)
    os.fsync, _steps = _fsync, (folder, act, threading.get_ident())
    try:
        yield
    finally:
        os.fsync, _steps = _real_fsync, None
