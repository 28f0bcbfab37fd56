# SPDX-License-Identifier: BSD-3-Clause
"""Folders of the format compressed-tensors, which vLLM and transformers load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from ..._fields import check_bool
from ..._packages import need
from ...workflow.serialization.disk import check_absent, new_folder
from ...workflow.transaction import changes_model
from ..hf_folder import (
    copy_others,
    source_folder,
    warn_of_unknown_tensors,
    write_card,
    write_config_json,
)
from .model import describe
from .read import load_folder

_TO = "baraquant.export.to_compressed_tensors"
_FROM = "baraquant.export.from_compressed_tensors"


def to_compressed_tensors(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    serve: str | None = "vllm",
    tokenizer: Any = None,
    source: str | os.PathLike[str] | None = None,
    float_embeddings: bool | None = None,
    allow: Iterable[str] = (),
    max_shard_size: str = "5GB",
) -> Path:
    """Write a folder that vLLM, SGLang or transformers load.

    Layers of integers (:func:`baraquant.W8A8`, :func:`baraquant.W8A8Static`) are stored as
    ``int-quantized`` with float32 scales, weight-only layers of 2 to 8 bits as ``pack-quantized``.
    One model may have several schemes. Convolutions whose inputs are floating are written
    dequantized, with the same values. Experts of transformers 5 (Mixtral, Qwen-MoE, DeepSeek and
    others) are written as files of transformers have them, with a layer for each expert and
    projection. :func:`from_compressed_tensors` reads these back; ``from_pretrained`` dequantizes
    weight-only ones with ``CompressedTensorsConfig(dequantize=True)``.

    What a server would compute wrongly or refuse is checked before anything is written. Each rule
    has a name, which the message begins with:

    * ``kernels``: a scheme that vLLM has no kernel for.
    * ``fused_schemes``: layers that vLLM computes as one (``q_proj``, ``k_proj``, ``v_proj``;
      ``gate_proj``, ``up_proj``) have different schemes.
    * ``fused_input_scale``: these layers have different static input scales, of which vLLM takes
      the last. :func:`tie_fused_scales` gives them one.
    * ``static_zero_point``: vLLM on CUDA rebuilds a static zero point by truncation. The scale is
      nudged by up to four units in the last place; if none of these keeps the zero point, this is
      an error.
    * ``shapes``, ``widths``: sizes, groups and widths that vLLM's common kernels do not take.
    * ``half_models``: packed weights in a float32 model, which vLLM converts to 16 bits.
    * ``packed_zero_points``: packed weights with zero points, which transformers fails to load.
    * ``rounded_scales``: the scales of packed weights are not representable in the model's dtype,
      to which the server converts them. ``scale_dtype`` in the configuration makes them so.
    * ``integer_scales``: the same for layers of integers; only transformers converts these.

    SGLang's rules come from its source (``python/sglang/srt/layers/quantization/
    compressed_tensors``); no folder was run in it. Beside ``fused_schemes``, ``shapes`` and
    ``rounded_scales``:

    * ``sglang_kernels``: a scheme that it has no kernel for; experts too.
    * ``static_inputs``, ``input_zero_points``: it ignores static scales and zero points of inputs.
    * ``one_format``: layers of integers beside packed ones: it reads one format for all.
    * ``sixteen_bits``: a model that is neither bfloat16 nor float16.

    Args:
        model: A model from :func:`baraquant.quantize_` or :func:`baraquant.qat.convert_`.
        folder: The folder to write. It must not exist, or be empty; its parent must exist.
        serve: Whose rules are checked: ``"vllm"``, ``"sglang"``, ``"transformers"``, or None for
            none.
        tokenizer: A tokenizer or processor to write too.
        source: The folder of the floating model, from which tokenizer files and the like are
            copied. None: where the model was loaded from, if that is a folder.
        float_embeddings: True writes embeddings dequantized, with the same values. None: True,
            unless ``serve`` is None: vLLM reads quantized ones on GPUs alone, transformers never.
        allow: Names of rules that are not checked.
        max_shard_size: The size of a file, above which several are written.

    Returns:
        The folder.

    Raises:
        ValueError: The format or the server cannot hold a layer, which is named.
        TypeError: ``model`` is not a module, or ``tokenizer`` cannot be written.
        FileExistsError: The folder exists and is not empty.
        OSError: The folder cannot be written.
        ImportError: huggingface_hub is not installed.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        >>> _ = baraquant.quantize_(model, baraquant.W8A8())
        >>> folder = baraquant.export.to_compressed_tensors(model, "served")
        >>> fresh = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
        >>> _ = baraquant.export.from_compressed_tensors(fresh, folder)
        >>> x = torch.randn(3, 32)
        >>> torch.equal(fresh(x), model(x))
        True
    """
    hub = need(_TO, "huggingface_hub", "hf")
    target = Path(folder)
    check_absent(_TO, target.resolve())
    origin = source_folder(_TO, model, source)
    floats = serve is not None if float_embeddings is None else float_embeddings
    tensors, config = describe(model, serve=serve, allow=allow, float_embeddings=floats, caller=_TO)
    dropped = warn_of_unknown_tensors(_TO, origin, model)
    with new_folder(_TO, target) as partial:
        write_config_json(model, config, partial)
        size = max_shard_size  # one file, or shards with an index
        hub.save_torch_state_dict(tensors, partial, max_shard_size=size, metadata={"format": "pt"})
        if tokenizer is not None:
            if not hasattr(tokenizer, "save_pretrained"):
                raise TypeError(
                    f"{_TO}: expected tokenizer to have save_pretrained, but got "
                    f"{type(tokenizer).__name__}"
                )
            tokenizer.save_pretrained(partial)
        if origin is not None:
            copy_others(origin, partial)
        write_card(_TO, model, config, partial, dropped)
    return target


@changes_model
def from_compressed_tensors(
    model: nn.Module | Callable[[], nn.Module],
    folder: str | os.PathLike[str],
    *,
    allow_missing: bool = False,
) -> nn.Module:
    """Load a folder of compressed-tensors into a float model, which becomes a quantized one.

    Reads what baraquant, llm-compressor and transformers write: ``int-quantized``,
    ``naive-quantized`` and ``pack-quantized`` integers of 2 to 8 bits, symmetric or not, by tensor,
    channel or group, with floating, static or dynamic inputs, in one or several files.

    The folder need not be trusted. Everything is checked before the model changes: the headers of
    the files, the index, names, shapes and dtypes against the model, and the values.

    Args:
        model: A float model of the same architecture, in the dtype of the folder's floating
            tensors; it is changed in place. Or a function that builds one, which takes no memory
            for weights that are discarded. A model on the meta device is filled too, on the CPU;
            what only its constructor could compute there is an error.
        folder: The folder.
        allow_missing: True lets a tensor that the folder lacks keep the values that ``model`` has;
            tensors of quantized layers must be there.

    Returns:
        The model.

    Raises:
        ValueError: The folder is damaged, incomplete, of another kind, or does not fit the model.
            The message has the path of the layer or the tensor. The model is unchanged.
        TypeError: ``model`` is neither a module nor a function that returns one.
        OSError: A file is missing or cannot be read.
    """
    check_bool(_FROM, "allow_missing", allow_missing)
    return load_folder(model, Path(folder), _FROM, allow_missing)
