# SPDX-License-Identifier: BSD-3-Clause
"""``reconstruct_``: quantizes a model block by block, each learning the output of the float one."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..._table import placed
from ...configs import Config
from ..calibration.run import UNREACHED, Calibration, counting, ran
from ..convert import convert_
from ..layers import is_prepared
from ..prepare import prepare_
from ..quantize import check_module
from ..report import Report, completed
from ..select import Rule
from ..transaction import changes_model, unwritable
from ..view import FilterFn, check_is_module
from .batch_cache import BatchCache, Batches
from .blocks import find_blocks, prepared_layers
from .calls import Block, trace
from .finished_blocks import FinishedBlocks, described, digest_of_batches, digest_of_model
from .float_values import FloatValues
from .learned_parameter import learned_parameters
from .learned_scales import has_algorithm, with_learned_scales
from .learning import Learning
from .not_learned import NotLearnedError
from .report import Reconstruction
from .streams import Streams

_CALLER = "baraquant.reconstruct_"


def reconstruct_(
    model: nn.Module,
    config: Config | Mapping[Rule, Config | None],
    *,
    calibration: Calibration,
    blocks: str | Iterable[str] | None = None,
    steps: int = 200,
    lr: float | None = None,
    filter_fn: FilterFn | None = None,
    resume: str | os.PathLike[str] | None = None,
    cache_bytes: int = 1 << 29,
    convert: bool = True,
    progress: bool = True,
    seed: int = 0,
) -> Reconstruction:
    """Quantize a trained model in place, block by block; each learns the float block's output.

    It takes the schemes of :func:`baraquant.quantize_`, makes the same layers, and needs minutes to
    hours where that needs seconds. With 2 to 4 bits it loses much less. First the model is prepared
    as by :func:`baraquant.qat.prepare_`, with learned scales of weights. Then one block after the
    other learns its weights, their scales and zero points, and biases, so that its output is near
    that of the float block: ``sum((q(x) - f(y))^2) / sum(f(y)^2)``, in float32, where ``y`` are the
    block's inputs in the float model, and ``x`` what the quantized blocks before it give. The
    gradient goes straight through the rounding. At last the model is converted.

    A step takes one batch. It moves each weight by its gradient, divided by the root mean square of
    this weight's gradients so far, in units of the grid: the distance of two integers is 1. No
    weight gets further than 1 from its start. Everything else, such as norms and embeddings, stays
    as it is; blocks run in evaluation mode. Where a block has no smaller error at the end than at
    the start, the start is put back: then its weights are rounded to nearest, with scales that are
    found by ``scale_rule``.

    **Blocks.** Without ``blocks`` they are the children of the outermost ``ModuleList``,
    ``Sequential`` or ``ModuleDict`` whose children contain layers to quantize: the decoder layers
    of a language model. Of nested ones it is the children of the inner one: the residual blocks of
    a ResNet. A layer that is itself such a child, as in a plain ``Sequential``, is a block of its
    own, and so is a layer in no block. A block has to be called once in each run of the model, and
    its output is a tensor or a tuple that begins with it. Other blocks keep the start, and so do
    weights that several modules share or that PyTorch computes. The report says why.

    **Memory.** The inputs and the wanted outputs of one block are kept for all batches: up to
    ``cache_bytes`` in memory, the others in files of a temporary folder (``TMPDIR`` says where),
    which is deleted at the end. Beside the model the memory of the device holds one block's
    gradients and four numbers of float32 for each of its weights. Where the input of a block is
    the output of the one before it, the model is not run again; otherwise it runs twice more for
    that block. Blocks of bfloat16 and float16 compute in this dtype, and learn in float32: they
    compute with the learned values rounded to the dtype, and so keep these.

    An error or an interrupt leaves the model as it was, as in :func:`baraquant.qat.prepare_`.

    Args:
        model: A float model; its root has to contain the layers. The device of its parameters is
            where it learns.
        config: A configuration or a dictionary of them, as for :func:`baraquant.quantize_`. A scale
            of weights is learned whether the configuration says so or not. Weights that are
            ``ternary`` have none that is learned.
        calibration: Typical inputs, as for :func:`baraquant.quantize_`; an iterable is gone through
            once. A function has to run the model in the same way each time that it is called.
        blocks: Patterns of the paths of blocks, by :mod:`fnmatch`, such as ``"model.layers.*"``.
            What lies within a module that matches is no block. None: as above.
        steps: The number of steps of each block.
        lr: The learning rate of weights in the first step, in units of the grid; it falls linearly
            to 0. None: ``2 / steps``, with which a weight moves by about 1 if its gradient always
            has the same sign. A scale moves by a tenth of the rate, relative to itself; a zero
            point by the rate; a bias by 3 % of it, in units of a weight's step times the root of
            the number of inputs.
        filter_fn: ``filter_fn(module, name)`` says whether to quantize a layer, as for
            :func:`baraquant.quantize_`; None quantizes all.
        resume: A folder, which is made if it does not exist. Each block that is done is kept there
            (safetensors). A second call with the same arguments goes on after the last of them,
            and on a CPU its result has the same bits as that of one call. The folder
            stays when all is done.
        cache_bytes: How many bytes of inputs and outputs stay in memory.
        convert: Whether to convert the layers to integers. False leaves the model prepared for
            training: with :func:`baraquant.qat.freeze_weights` its scales are trained alone, which
            is the second phase of "EfficientQAT". :func:`baraquant.qat.convert_` converts it later.
        progress: Whether to show a progress bar, on a terminal and if rich is installed.
        seed: What the order of the batches follows from. PyTorch's generators are not used.

    Returns:
        A :class:`baraquant.Reconstruction`: a report as that of :func:`baraquant.quantize_`, with
        the errors of each block before and after.

    Raises:
        ValueError: As :func:`baraquant.qat.prepare_` and :func:`baraquant.qat.convert_` raise it; a
            layer of the model is prepared already; there is no data, or it reaches no block; a
            pattern matches no block; ``calibration`` is a function that runs the model in another
            way at a later call; a number is out of its range; or ``resume`` is the folder of
            another model, configuration, data or learning, or holds a damaged file.
        TypeError: An argument has another type.
        OSError: ``resume`` or a temporary file cannot be read or written to.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        >>> batches = [torch.randn(32, 16) for _ in range(8)]
        >>> scheme = baraquant.W4A16(16)
        >>> report = baraquant.reconstruct_(model, scheme, calibration=batches, steps=50)
        >>> report.changed["2"]
        'WeightOnlyInt4Linear, reconstructed'
        >>> before, after = report.errors["2"]
        >>> after < before
        True

    Sources: "BRECQ" (Li et al. 2021) for blocks, "QDrop" (Wei et al. 2022) for inputs of the
    quantized blocks before, "AutoRound" (Cheng et al. 2023) for learning in units of the grid,
    "EfficientQAT" (Chen et al. 2024) for learning weights and scales together.
    """
    check_is_module(model, _CALLER)
    for name, value, least in (
        ("steps", steps, 1),
        ("cache_bytes", cache_bytes, 0),
        ("seed", seed, 0),
    ):
        _check_int(name, value, least)
    if lr is not None and not (isinstance(lr, (int, float)) and 0 < lr < math.inf):
        raise ValueError(f"{_CALLER}: expected lr to be a finite number above 0, but got {lr!r}")
    learning = Learning(steps, 2 / steps if lr is None else float(lr), seed)
    with tempfile.TemporaryDirectory(prefix="baraquant-") as folder:
        cache = BatchCache(cache_bytes, Path(folder))
        call = _Call(config, calibration, blocks, learning, filter_fn, resume, convert, progress)
        return _reconstruct(model, call, cache)


def _check_int(name: str, value: Any, least: int) -> None:
    if type(value) is not int:
        got = type(value).__name__
        raise TypeError(f"{_CALLER}: expected {name} to be an int, but got {got}")
    if value < least:
        raise ValueError(f"{_CALLER}: expected {name} to be at least {least}, but got {value}")


@dataclass(frozen=True)
class _Call:
    """The arguments of a call, but for the model."""

    config: Config | Mapping[Rule, Config | None]
    calibration: Calibration
    blocks: str | Iterable[str] | None
    learning: Learning
    filter_fn: FilterFn | None
    resume: str | os.PathLike[str] | None
    convert: bool
    progress: bool


@changes_model
def _reconstruct(model: nn.Module, call: _Call, cache: BatchCache) -> Reconstruction:
    if any(map(is_prepared, model.modules())):
        raise ValueError(
            f"{_CALLER}: expected a model without prepared layers, but {type(model).__name__} has "
            "some; reconstruct the float model"
        )
    data = _kept(call.calibration, cache)
    weights = "" if call.resume is None else digest_of_model(model)
    floats = FloatValues(cache)
    report = _prepare(model, call, data, cache, floats)

    def run() -> Iterator[None]:
        return ran(model, data, _CALLER)

    with floats.within(model):
        blocks = trace(model, find_blocks(model, call.blocks, _CALLER), run)
    if blocks and all(block.most == 0 for block in blocks):
        raise ValueError(f"{_CALLER}: {blocks[0].path}: {UNREACHED}")
    done: FinishedBlocks | None = None
    if call.resume is not None:
        how = {"config": described(call.config), **vars(call.learning), "weights": weights}
        how |= {"blocks": [block.path for block in blocks]}
        how |= {"data": digest_of_batches(data) if isinstance(data, Batches) else None}
        done = FinishedBlocks(Path(call.resume), how, _CALLER)
    streams = Streams(model, blocks, cache, floats, run)
    errors, remarks = _learn(model, call, blocks, streams, floats, done)
    if call.convert:
        report = _converted(model, report)
    changed = {path: what + remarks.get(path, "") for path, what in report.changed.items()}
    known = {entry.name: getattr(report, entry.name) for entry in fields(Report)}
    return completed(Reconstruction(**{**known, "changed": changed}, errors=errors), model)


def _kept(calibration: Calibration, cache: BatchCache) -> Calibration:
    """Return data that can be gone through several times; batches are kept, a function is called.

    What is no calibration at all is left to the first run, which has an error for it.
    """
    is_one = isinstance(calibration, (Tensor, Mapping, str, bytes))
    if isinstance(calibration, Iterable) and not is_one:
        batches = Batches(cache, calibration)
        if len(batches) == 0:
            raise ValueError(f"{_CALLER}: expected calibration data, but got no batch")
        return batches
    return calibration


def _prepare(
    model: nn.Module, call: _Call, data: Calibration, cache: BatchCache, floats: FloatValues
) -> Report:
    """Prepare the model with learned scales; keep what this changes."""
    config = with_learned_scales(call.config)
    before = {}
    if has_algorithm(config):
        before = {id(one): cache.put(one, in_memory=False) for one in model.parameters()}
    report = prepare_(model, config, call.filter_fn, calibration=data, progress=call.progress)
    for path, layer in prepared_layers(model).items():
        with placed(_CALLER, path):
            check_module(layer, layer.config)
    floats.keep_changed(model, before)
    return report


def _learn(
    model: nn.Module,
    call: _Call,
    blocks: Sequence[Block],
    streams: Streams,
    floats: FloatValues,
    done: FinishedBlocks | None,
) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Let each block learn; return the errors of blocks and remarks on layers, by their paths."""
    paths = {id(module): path for path, module in model.named_modules()}
    holders = Counter(id(one) for m in model.modules() for one in m._parameters.values())
    fixed = unwritable(model)
    errors: dict[str, tuple[float, float]] = {}
    remarks: dict[str, str] = {}
    steps = call.learning.steps
    with counting("reconstruction", len(blocks) * steps, call.progress) as advance:
        for index, block in enumerate(blocks):
            layers = prepared_layers(block.module)
            learned, left = learned_parameters(block.module, holders, fixed)
            reason = block.why_not()
            found: tuple[float, float] | None = None
            if reason is None and learned:
                floats.keep(one.parameter for one in learned)
                found = None if done is None else done.load(index, block.path, learned)
            if reason is None and learned and found is None:
                try:
                    streams.enter(index)
                    found = call.learning.learn(streams, index, block.module, learned, advance)
                    if done is not None:
                        done.save(index, block.path, learned, found)
                except NotLearnedError as error:
                    reason = str(error)
                streams.leave(index)
            else:
                for _ in range(steps):
                    advance()
            if found is not None:
                errors[block.path] = found
            for path, layer in layers.items():
                why = left.get(path) or (reason and f"of {block.path}, {reason}")
                remarks[paths[id(layer)]] = (
                    f"; rounded as found: {why}" if why else ", reconstructed"
                )
    return errors, remarks


def _converted(model: nn.Module, report: Report) -> Report:
    """Convert the model; return a report with what preparation has left out."""
    converted = convert_(model)
    return replace(
        converted,
        left_out=report.left_out,
        total_parameters=report.total_parameters,
        bytes_before=report.bytes_before,
    )
