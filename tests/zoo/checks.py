# SPDX-License-Identifier: BSD-3-Clause
"""What is checked of a cell, but for loading, which another process does (loading.py)."""

import copy
import functools
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from baraquant.nn import QuantizedInt4Linear, StaticQuantizedInt4Linear, WeightOnlyInt4Linear
from baraquant.qat import convert_, prepare_
from baraquant.workflow.report import Report
from tests.support.tiny_transformers import build as tiny
from tests.support.tiny_transformers.models import Inputs
from tests.zoo import gradients
from tests.zoo.architecture import cast
from tests.zoo.cells import NOT_RUN, NOTHING, Cell, Result

# By how much the gradient of an integer model may differ from the prepared one's, relatively.
GRADIENT = {torch.float32: 1e-3, torch.bfloat16: 0.1}
STEPS = 2
VECTORS = "norms, biases and other vectors"
PACKED = (QuantizedInt4Linear, StaticQuantizedInt4Linear, WeightOnlyInt4Linear)


class NothingToQuantizeError(Exception):
    """The scheme fits no layer of the model, and baraquant says why."""


class Examination:
    """The checks of one cell, in the order of a user's steps."""

    def __init__(self, cell: Cell, folder: Path, device: str) -> None:
        self.cell, self.folder, self.device = cell, folder, device
        self.row = cell.row
        self.result = Result(str(cell))
        self.inputs = self._cast(self.row.inputs())
        self.model = self.row.model(cell.torch_dtype, device)
        self.config = cell.column.config(self.model)

    def run(self) -> Result:
        """All checks; an error is the failure of the check that it happened in."""
        started = time.perf_counter()
        try:
            self.wanted = tiny.outputs(self.model, self.inputs)
            self.near = self._outputs(self.model)
            train(copy.deepcopy(self.model), self._train_inputs(), 1)
        except Exception as error:
            if self.cell.dtype == "float32":
                raise
            reason = f"the float model fails in {self.cell.dtype}: {one_line(error)}"
            return Result(str(self.cell), NOT_RUN, reason)
        try:
            self._check("quantized", self._quantized)
            prepared = None
            if self.cell.column.is_trained:
                prepared = self._check("trained", self._trained)
            if prepared is not None:
                self._convert(prepared)
        except NothingToQuantizeError as error:
            return Result(str(self.cell), NOTHING, one_line(error))
        self.result.figures["seconds"] = time.perf_counter() - started
        return self.result

    def _check(self, name: str, step: Callable[[], Any]) -> Any:
        """What the step returns; None, and a failure, where it raises."""
        try:
            value = step()
        except NothingToQuantizeError:
            raise
        except Exception as error:
            self.result.fail(name, described(error))
            return None
        if name not in self.result.failed and name not in self.result.passed:
            self.result.passed.append(name)
        return value

    def _cast(self, inputs: Inputs) -> Inputs:
        return cast(inputs, self.cell.torch_dtype, self.device)

    def _train_inputs(self) -> Inputs:
        return self._cast((self.row.train_inputs or self.row.inputs)())

    def _outputs(self, model: nn.Module) -> list[Tensor]:
        """What is compared with the float model."""
        if self.row.outputs is None:
            return tiny.outputs(model, self.inputs)
        with torch.no_grad():
            return tiny.tensors(self.row.outputs(model, self.inputs))

    def _quantized(self) -> None:
        """`quantize_` alone: near the float model."""
        model = copy.deepcopy(self.model)
        options = {"calibration": [self.inputs, self.inputs], "progress": False}
        report = reported(lambda: baraquant.quantize_(model, self.config, **options))
        share = self.result.figures["share"] = share_of_integers(self.model, model)
        self.result.floating = floating(self.model, report)
        got = self._outputs(model)
        self._save("quantized", model)
        told = f"the report says that a share of {report.share:.6f} is quantized"
        assert abs(report.share - share) <= 1e-6, f"{told}, but it is {share:.6f}"
        near = self.result.figures["cosine"] = cosine(got, self.near)
        least = min(self.cell.column.least_cosine, self.row.least_cosine)
        assert near >= (-1.0 if self.row.is_discrete else least), f"cosine {near:.4f} < {least}"

    def _trained(self) -> nn.Module:
        """`prepare_` and some steps; finite gradients wherever the float model has one."""
        model, plain = copy.deepcopy(self.model), copy.deepcopy(self.model)
        reported(lambda: prepare_(model, self.config))
        inputs = self._train_inputs()
        wanted = train(plain, inputs, 1)
        reached = train(model, inputs, STEPS)
        # The packed projections of torch.nn's attention become projections of their own.
        own = dict(model.named_parameters(remove_duplicate=False))
        lost = [n for n in (wanted - reached) & own.keys() if ".in_proj_" not in n]
        assert not lost, f"no gradient for {', '.join(sorted(lost)[:5])}"
        return model

    def _convert(self, prepared: nn.Module) -> None:
        """The bits of evaluation, gradients and tokens, before `convert_` and after it."""
        evaluated = tiny.outputs(prepared, self.inputs)
        before = None
        if self._has_gradient():
            before = self._check(
                "gradients", lambda: gradients.runs_of(prepared, self.inputs, self.model)
            )
        told = self._tokens(prepared) if self.row.generates else None
        converted = self._check("converted", lambda: self._converted(prepared, evaluated))
        if converted is None:
            return
        if before is not None:
            self._check("gradients", lambda: self._same_gradients(converted, before))
        if told is not None:
            same = functools.partial(self._same_tokens, converted, told)
            self._check("generates", same)
            self._check("merged", lambda: expect_same_merged(converted, self.inputs, same))
        self._save("converted", converted)

    def _has_gradient(self) -> bool:
        """Whether the float model has a gradient in evaluation.

        RWKV writes into its own state, and Reformer asserts that it is trained.
        """
        try:
            gradients.of(copy.deepcopy(self.model), self.inputs, self.model)
        except (RuntimeError, AssertionError) as error:
            self.result.notes.append(f"the float model has no gradient: {one_line(error)[:80]}")
            return False
        return True

    def _converted(self, model: nn.Module, evaluated: list[Tensor]) -> nn.Module:
        reported(lambda: convert_(model))
        expect_same(tiny.outputs(model, self.inputs), evaluated)
        return model

    def _same_gradients(self, model: nn.Module, before: list[dict[str, Tensor]]) -> None:
        after = gradients.of(model, self.inputs, self.model)
        if not before[0].keys() & after.keys():
            self.result.notes.append("no gradient to compare")
        gradients.expect_near(after, before, GRADIENT[self.cell.torch_dtype])

    def _tokens(self, model: nn.Module) -> dict[bool, list[list[int]]] | None:
        """Tokens with a cache and without one, which some float models refuse."""
        caches = [True, False]
        try:
            generated(self.model, self.inputs, caches[1:])
        except (ValueError, TypeError, AttributeError, RuntimeError):
            self.result.notes.append("the float model generates with a cache alone")
            caches = caches[:1]
        return self._check("generates", lambda: generated(model, self.inputs, caches))

    def _same_tokens(self, model: nn.Module, told: dict[bool, list[list[int]]]) -> None:
        tokens = generated(model, self.inputs, [*told])
        assert tokens == told, f"with a cache or not: {tokens}, before {told}"

    def _save(self, kind: str, model: nn.Module) -> None:
        """The file and what the model makes of the inputs, for the process that loads."""

        def save() -> None:
            baraquant.save(model, self.folder / f"{self.cell}.{kind}.safetensors")
            expected = [t.cpu() for t in tiny.outputs(model, self.inputs)]
            torch.save(expected, self.folder / f"{self.cell}.{kind}.expected")

        self._check("saved", save)


def examine(cell: Cell, folder: Path, device: str) -> Result:
    """The result of a cell; what there is to load is left in the folder."""
    why_not = cell.row.missing()
    if why_not is not None:
        return Result(str(cell), NOT_RUN, why_not)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Examination(cell, folder, device).run()
    except Exception as error:
        return Result(str(cell)).fail("built", described(error))


def reported(step: Callable[[], Any]) -> Any:
    """The report of a step; it is an error of its own where there is nothing to quantize."""
    try:
        return step()
    except ValueError as error:
        if " has none" in str(error):
            raise NothingToQuantizeError(str(error)) from None
        raise


def train(model: nn.Module, inputs: Inputs, steps: int) -> set[str]:
    """Trains, and returns the names of the parameters that got a gradient.

    Raises:
        AssertionError: A loss or a gradient that is not finite.
    """
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    reached: set[str] = set()
    for _ in range(steps):
        torch.manual_seed(3)  # some models leave out layers at random
        optimizer.zero_grad()
        loss = gradients.loss(model, inputs)
        assert bool(loss.isfinite()), f"the loss is {loss.item()}"
        loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        wrong = [n for n, grad in grads.items() if not bool(grad.isfinite().all())]
        assert not wrong, f"a gradient that is not finite for {', '.join(wrong[:5])}"
        reached |= grads.keys()
        optimizer.step()
    model.eval()
    return reached


def generated(model: nn.Module, inputs: Inputs, caches: list[bool]) -> dict[bool, list[list[int]]]:
    """The tokens that `generate` of transformers gives, with a cache and without one."""
    given: dict[str, Any] = {k: v for k, v in inputs.items() if not k.startswith("decoder_")}
    given |= {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    image = getattr(model.config, "image_token_id", None)
    if image is not None:  # without a cache, one that is generated would need an image
        given["suppress_tokens"] = [image]
    return {cache: model.generate(**given, use_cache=cache).tolist() for cache in caches}


def share_of_integers(plain: nn.Module, quantized: nn.Module) -> float:
    """The number of integers of the quantized weights, as a part of all parameters."""
    integers: dict[int, int] = {}  # by the address of the weight, which several may share
    at = dict(plain.named_modules())
    for path, module in quantized.named_modules():
        # A weight that a parametrization computes has an address for a moment only.
        weight = at[path]._parameters.get("weight") if path in at else None
        if isinstance(module, PACKED):
            kept = module.packed if weight is None else weight
            integers[kept.data_ptr()] = module.out_features * module.in_features
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.dtype in (torch.int8, torch.uint8) and tensor.dim() > 1:
                integers[(tensor if weight is None else weight).data_ptr()] = tensor.numel()
    total = sum(p.numel() for p in plain.parameters())
    return sum(integers.values()) / max(total, 1)


def floating(plain: nn.Module, report: Report) -> dict[str, int]:
    """Numbers of parameters that stay floating, by what they are and why, the largest first."""
    at = dict(plain.named_modules())
    found: Counter[str] = Counter()
    for path, count in report.floating.items():
        reason = report.left_out.get(path)
        kind = type(at[path]).__name__ if path in at else path
        found[VECTORS if reason is None else f"{kind}: {reason}"] += count
    return dict(found.most_common())


def cosine(got: list[Tensor], wanted: list[Tensor]) -> float:
    """The mean of the cosines of all outputs."""
    values = []
    for a, b in zip(got, wanted, strict=True):
        x, y = a.double().flatten(), b.double().flatten()
        keep = y.isfinite()  # masks hold infinities
        x, y = x[keep], y[keep]
        if y.norm() > 0:
            values.append(float(x @ y / (x.norm() * y.norm()).clamp(min=1e-30)))
    return sum(values) / max(len(values), 1)


def expect_same(got: list[Tensor], wanted: list[Tensor]) -> None:
    """Every bit of every output."""
    assert len(got) == len(wanted) > 0, f"{len(got)} outputs, not {len(wanted)}"
    for position, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.shape == b.shape, f"output {position}: {tuple(a.shape)}, not {tuple(b.shape)}"
        wrong = (a != b) & ~(a.isnan() & b.isnan())
        if bool(wrong.any()):
            away = float((a.double() - b.double()).abs().nan_to_num().max())
            told = f"{int(wrong.sum())} of {a.numel()} values differ, by up to {away:.3g}"
            raise AssertionError(f"output {position}: {told}")


def expect_same_merged(model: nn.Module, inputs: Inputs, expect: Callable[[], None]) -> None:
    """What is expected holds with the layers merged that read one input, and apart again.

    They are found by their names, and by what they read.
    """
    for example in (None, inputs):
        try:
            baraquant.merge_linears_(model, example)
        except ValueError as error:
            assert " has none" in str(error), described(error)
        expect()
    baraquant.split_linears_(model)
    expect()


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def described(error: BaseException) -> str:
    """The error, and for one that was not made here the innermost places."""
    if isinstance(error, AssertionError):
        return one_line(error)
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {one_line(error)} [{places}]"
