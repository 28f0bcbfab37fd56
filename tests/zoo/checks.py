# SPDX-License-Identifier: BSD-3-Clause
"""What is checked of a cell, but for loading, which another process does (loading.py)."""

import copy
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import baraquant
from baraquant.qat import convert_, prepare_
from tests.support.tiny_transformers import build as tiny
from tests.support.tiny_transformers.models import Inputs
from tests.zoo import floating, generation, gradients
from tests.zoo.architecture import cast
from tests.zoo.cells import NOT_RUN, NOTHING, Cell, Result

# By how much the gradient of an integer model may differ from the prepared one's, relatively.
GRADIENT = {torch.float32: 1e-3, torch.bfloat16: 0.1}
STEPS = 2


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
        value: Inputs = cast(inputs, self.cell.torch_dtype, self.device)
        return value

    def _train_inputs(self) -> Inputs:
        return self._cast((self.row.train_inputs or self.row.inputs)())

    def _outputs(self, model: nn.Module) -> list[Tensor]:
        """What is compared with the float model."""
        if self.row.outputs is None:
            return tiny.outputs(model, self.inputs)
        with torch.no_grad():
            return tiny.tensors(self.row.outputs(model, self.inputs))

    def _quantize(self, model: nn.Module) -> Any:
        return baraquant.quantize_(
            model, self.config, calibration=[self.inputs, self.inputs], progress=False
        )

    def _quantized(self) -> None:
        """`quantize_` alone: near the float model."""
        model = copy.deepcopy(self.model)
        report = reported(lambda: self._quantize(model))
        self.result.figures["share"] = floating.share(self.model, model)
        self.result.floating = floating.listed(self.model, report)
        got = self._outputs(model)
        self._save("quantized", model)
        if abs(report.share - self.result.figures["share"]) > 1e-6:
            raise AssertionError(
                f"the report says that a share of {report.share:.6f} is quantized, but it is "
                f"{self.result.figures['share']:.6f}"
            )
        self.result.figures["cosine"] = cosine(got, self.near)
        least = min(self.cell.column.least_cosine, self.row.least_cosine)
        least = -1.0 if self.row.is_discrete else least
        if not self.result.figures["cosine"] >= least:
            raise AssertionError(f"cosine {self.result.figures['cosine']:.4f} < {least}")

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
        if lost:
            raise AssertionError(f"no gradient for {', '.join(sorted(lost)[:5])}")
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
            self.result.passed.remove("gradients")
            self._check("gradients", lambda: self._same_gradients(converted, before))
        if told is not None:
            self._check("generates", lambda: self._same_tokens(converted, told))
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

    def _tokens(self, model: nn.Module) -> dict[str, Tensor] | None:
        """Tokens with a cache and without one, where the float model has both."""
        kinds = generation.kinds(self.model, self.inputs)
        if len(kinds) == 1:
            self.result.notes.append("the float model generates with a cache alone")
        return self._check("generates", lambda: generation.tokens(model, self.inputs, kinds))

    def _same_tokens(self, model: nn.Module, told: dict[str, Tensor]) -> None:
        self.result.passed.remove("generates")
        for kind, tokens in generation.tokens(model, self.inputs, list(told)).items():
            if tokens.tolist() != told[kind].tolist():
                raise AssertionError(f"{kind}: {tokens.tolist()}, before {told[kind].tolist()}")

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
        result = Result(str(cell))
        result.fail("built", described(error))
        return result


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
        if not bool(loss.isfinite()):
            raise AssertionError(f"the loss is {loss.item()}")
        loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        wrong = [n for n, grad in grads.items() if not bool(grad.isfinite().all())]
        if wrong:
            raise AssertionError(f"a gradient that is not finite for {', '.join(wrong[:5])}")
        reached |= grads.keys()
        optimizer.step()
    model.eval()
    return reached


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
    if len(got) != len(wanted) or not wanted:
        raise AssertionError(f"{len(wanted)} outputs were expected, but there are {len(got)}")
    for position, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape:
            raise AssertionError(f"output {position}: {tuple(a.shape)}, not {tuple(b.shape)}")
        same = (a == b) | (a.isnan() & b.isnan())
        if not bool(same.all()):
            away = float((a.double() - b.double()).abs().nan_to_num().max())
            count = int((~same).sum())
            raise AssertionError(
                f"output {position}: {count} of {a.numel()} values differ, by up to {away:.3g}"
            )


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def described(error: BaseException) -> str:
    """The error, and for one that was not made here the innermost places."""
    if isinstance(error, AssertionError):
        return one_line(error)
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {one_line(error)} [{places}]"
