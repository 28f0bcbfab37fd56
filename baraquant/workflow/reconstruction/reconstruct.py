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
from ..report import Report, completed
from ..select import Rule
from ..transaction import changes_model
from ..view import FilterFn, check_is_module
from .batch_cache import Batches, BatchCache
from .blocks import find_blocks, prepared_layers
from .calls import Block, trace
from .finished_blocks import FinishedBlocks, described, digest_of_batches, digest_of_model
from .float_values import FloatValues
from .learned_parameter import learned_parameters
from .learned_scales import has_algorithm, start_scales, with_learned_scales
from .learning import Learning
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
    """DOC"""
    check_is_module(model, _CALLER)
    for name, value, least in (("steps", steps, 1), ("cache_bytes", cache_bytes, 0), ("seed", seed, 0)):
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
    is_kept = isinstance(calibration, Iterable) and not is_one
    return Batches(cache, calibration) if is_kept else calibration


def _prepare(
    model: nn.Module, call: _Call, data: Calibration, cache: BatchCache, floats: FloatValues
) -> Report:
    """Prepare the model with learned scales that are started; keep what this changes."""
    config = with_learned_scales(call.config)
    before = {}
    if has_algorithm(config):
        before = {id(one): cache.put(one) for one in model.parameters()}
    report = prepare_(model, config, call.filter_fn, calibration=data, progress=call.progress)
    floats.keep_changed(model, before)
    if not before:
        start_scales(model)
    return report


def _learn(
    model: nn.Module,
    call: _Call,
    blocks: Sequence[Block],
    streams: Streams,
    floats: FloatValues,
    done: FinishedBlocks | None,
) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Let each block learn; return the errors by paths of blocks, and remarks by paths of layers."""
    paths = {id(module): path for path, module in model.named_modules()}
    holders = Counter(id(one) for m in model.modules() for one in m._parameters.values())
    errors: dict[str, tuple[float, float]] = {}
    remarks: dict[str, str] = {}
    steps = call.learning.steps
    with counting("reconstruction", len(blocks) * steps, call.progress) as advance:
        for index, block in enumerate(blocks):
            layers = prepared_layers(block.module)
            learned, left = learned_parameters(block.module, holders)
            reason = block.why_not()
            found: tuple[float, float] | None = None
            if reason is None and learned:
                floats.keep(one.parameter for one in learned)
                found = None if done is None else done.load(index, block.path, learned)
                if found is None:
                    if streams.enter(index):
                        found = call.learning.learn(streams, index, block.module, learned, advance)
                        if done is not None:
                            done.save(index, block.path, learned, found)
                    else:
                        reason = "a second call with the same inputs has other outputs"
                    streams.leave(index)
            if found is not None:
                errors[block.path] = found
            for path, layer in layers.items():
                why = left.get(path) or (reason and f"of {block.path}, {reason}")
                remarks[paths[id(layer)]] = f"; rounded as found: {why}" if why else ", reconstructed"
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
