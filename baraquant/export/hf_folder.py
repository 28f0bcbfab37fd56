# SPDX-License-Identifier: BSD-3-Clause
"""A folder as the Hugging Face hub has it: config.json, shards, tokenizer files, a model card."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__
from .._packages import need
from .._table import some
from ..workflow.serialization.disk import open_file
from ..workflow.serialization.tensor_file import read_header
from .compressed_tensors.scheme import parse_scheme
from .compressed_tensors.ties import loses_ties

# Files of a source folder that hold weights, or that describe them.
_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json"),
)
# Adapters, and a second copy of the weights under other names, as Mistral's folders have it.
_OTHER_WEIGHTS = ("adapter_", "consolidated")
_OWN = {"config.json", "README.md", ".gitattributes"}


def write_config_json(model: nn.Module, quantization_config: dict[str, Any], folder: Path) -> None:
    """Write config.json: that of the model, if it has one, with the quantization."""
    config: Any = getattr(model, "config", None)
    plain: dict[str, Any] = {}
    if hasattr(config, "to_json_string"):
        plain = json.loads(config.to_json_string(use_diff=False))
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        name = str(dtype or torch.float32).removeprefix("torch.")
        plain |= {"dtype": name, "torch_dtype": name}
        if loses_ties(model):
            for each in (plain, *plain.values()):
                if isinstance(each, dict) and "tie_word_embeddings" in each:
                    each["tie_word_embeddings"] = False
    plain["architectures"] = [type(model).__name__]
    plain["quantization_config"] = quantization_config
    text = json.dumps(plain, indent=2, sort_keys=True)
    (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")
    generation: Any = getattr(model, "generation_config", None)
    if hasattr(generation, "save_pretrained"):
        generation.save_pretrained(folder)


def source_folder(caller: str, model: nn.Module, source: Any) -> Path | None:
    """Return the folder whose tokenizer files are copied: the given one, else the model's."""
    if source is not None:
        path = Path(source)
        if not path.is_dir():
            raise NotADirectoryError(f"{caller}: expected source to be a folder, but got {source}")
        return path
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return Path(name) if isinstance(name, str) and name and Path(name).is_dir() else None


def warn_of_unknown_tensors(
    caller: str, source: Path | None, model: nn.Module, stacklevel: int = 3
) -> list[str]:
    """Say which tensors of the source folder a new one will lack, and return their parts."""
    dropped = [] if source is None else unknown_tensors(source, model)
    if dropped:
        warnings.warn(
            f"{caller}: {source} holds tensors that {type(model).__name__} does not have, and that "
            f"are not written: {', '.join(dropped)}; a server that config.json tells of them will "
            "not find them",
            UserWarning,
            stacklevel=stacklevel,
        )
    return dropped


def unknown_tensors(source: Path, model: nn.Module) -> list[str]:
    """Return the parts of a source folder's tensors that a model has no place for (``mtp``).

    A part is a path up to its first number, or its first word. Names below differ between files
    and models, as those of experts do.
    """
    rename = _renaming(model)
    stored: set[str] = set()
    for path in source.glob("*.safetensors"):
        if not path.name.startswith(_OTHER_WEIGHTS):
            with open_file(path) as file:
                names = read_header(file, "a safetensors file").tensors
            stored |= {_part(rename(name)) for name in names}
    known = {_part(name) for name in model.state_dict()}
    known |= {_part(path) for path, _ in model.named_modules(remove_duplicate=False) if path}
    # Without a common part the names have another prefix: the model is a part of another one.
    return sorted(stored - known) if stored & known else []


def _renaming(model: nn.Module) -> Callable[[str], str]:
    """Return how transformers 5 renames the tensors of a file for a model's class, as ViT's."""
    try:
        from transformers import PreTrainedModel
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key
    except ImportError:
        return lambda name: name
    if not isinstance(model, PreTrainedModel):
        return lambda name: name
    steps = get_model_conversion_mapping(model)
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    renamings = [step for step in steps if not isinstance(step, WeightConverter)]
    return lambda name: str(rename_source_key(name, renamings, converters)[0])


def _part(name: str) -> str:
    words = name.split(".")
    at = next((place for place, word in enumerate(words) if word.isdecimal()), 0)
    return ".".join(words[: at + 1])


def copy_others(source: Path, folder: Path) -> None:
    """Copy what a source folder holds except weights and what has been written."""
    for entry in sorted(source.iterdir()):
        name, target = entry.name, folder / entry.name
        if name.startswith(".") or name in _OWN or name.endswith(_WEIGHTS) or target.exists():
            continue
        if entry.is_file():
            shutil.copyfile(entry, target)
        elif entry.is_dir() and not any(f.name.endswith(_WEIGHTS) for f in entry.rglob("*")):
            shutil.copytree(entry, target, copy_function=_copy)


def _copy(source: str, target: str) -> None:
    open_file(source).close()  # refuses named pipes and devices
    shutil.copyfile(source, target)


def write_card(
    caller: str, model: nn.Module, config: dict[str, Any], folder: Path, dropped: Sequence[str] = ()
) -> None:
    """Write README.md: what is quantized and how, and how to load it."""
    hub = need(caller, "huggingface_hub", "hf")
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or None
    base = None if name is None or Path(name).is_absolute() or Path(name).exists() else name
    formats = sorted({group["format"] for group in config["config_groups"].values()})
    data = hub.ModelCardData(
        base_model=base,
        base_model_relation="quantized" if base else None,
        library_name="transformers",
        tags=["baraquant", "compressed-tensors", *formats],
    )
    dtype = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("dtype")
    text = f"---\n{data.to_yaml()}\n---\n\n{_body(model, config, dtype)}"
    if dropped:
        names = ", ".join(f"`{name}`" for name in dropped)
        text += f"\nNot in this folder, but in the one that the model is from: {names}.\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


_LOADING = """
Written by baraquant {baraquant} with PyTorch {torch} in the format compressed-tensors, which vLLM \
and transformers load:

```python
from vllm import LLM

llm = LLM(model="this/folder"{given})
```

```python
from transformers import {loader}

model = {loader}.from_pretrained("this/folder")
```
"""


def _body(model: nn.Module, config: dict[str, Any], dtype: str | None) -> str:
    kind = type(model)
    loader = kind.__name__ if kind.__module__.startswith("transformers.") else "AutoModel"
    # By default vLLM computes a float32 model in 16 bits, which rounds other inputs.
    given = ', dtype="float32"' if dtype == "float32" else ""
    lines = [f"# {kind.__name__}, quantized by baraquant", ""]
    lines += ["| layers | scheme |", "|---|---|"]
    for name, group in config["config_groups"].items():
        targets, scheme = parse_scheme(name, group, None)
        lines.append(f"| {some([f'`{target}`' for target in targets], 4)} | {scheme} |")
    if config["ignore"]:
        lines += ["", "Floating: " + ", ".join(f"`{path}`" for path in config["ignore"]) + "."]
    lines.append(
        _LOADING.format(baraquant=__version__, torch=torch.__version__, given=given, loader=loader)
    )
    return "\n".join(lines)
