# SPDX-License-Identifier: BSD-3-Clause
"""``sensitivity``: measures the output error of each layer under each configuration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...configs import QuantConfig
from ...nn.shared.precision import compute_dtype
from ..calibration.observers import OutputErrors
from ..calibration.run import Calibration, Run, State, evaluating
from ..convert import Maker
from ..layers import inside, layer_of, weights_of
from ..passes import calibrate_inputs
from ..quantize import after_training, check_module
from ..report import FILTERED
from ..select import Rules, Selector, filter_of, nothing_to
from ..serialization.packing import Counter
from ..serialization.save import add_constants
from ..transaction import in_one_transaction, keep, undone
from ..unpack import Unpacked, unpack_modules
from ..view import FilterFn, check_is_module
from .groups import FLOAT, Groups, check_together, named_configs
from .report import LayerSensitivity, Sensitivity, common_names

_CHUNK = 1 << 22  # elements of an output at a time, so that the temporaries stay small


class Errors(OutputErrors):
    """The squared errors of some layers' outputs, and last the square of the float layer's."""

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module]) -> None:
        super().__init__(len(layers) + 1, weights_of(module)[0].device)
        self._module, self._layers = module, layers
        # A layer of a user's own class may keep something from one call to the next.
        self.keeps_state = type(module).__module__.partition(".")[0] != "torch"

    def state(self) -> State:
        """Return what the layers hold now."""
        return State([self._module, *self._layers])

    def compare(
        self, index: int, got: list[Tensor], wanted: list[Tensor], is_finite: Tensor
    ) -> None:
        """Add the squared error of one layer."""
        for one, other in zip(got, wanted, strict=True):
            dtype = compute_dtype(other.dtype)
            parts = one.reshape(-1).split(_CHUNK), other.reshape(-1).split(_CHUNK)
            for part, same in zip(*parts, strict=True):
                part, same = (tensor.to(self.errors.device, dtype) for tensor in (part, same))
                self.add(index, part, same, is_finite)

    def add_square(self, wanted: list[Tensor], is_finite: Tensor) -> None:
        """Add the square of the output."""
        self.compare(len(self._layers), list(map(torch.zeros_like, wanted)), wanted, is_finite)

    def add_call(
        self, call: Callable[[], list[Tensor]], wanted: list[Tensor], before: State
    ) -> None:
        """Add the errors of one call of the whole model, with one layer quantized at a time.

        ``call`` calls the model again with the same inputs, and returns its floating outputs. Those
        of the float model, called in the state ``before``, are ``wanted``.
        """
        is_finite = self.begin(*wanted).to(self.errors.device)
        for index, layer in enumerate(self._layers):
            before.restore()
            with undone():  # the module computes what the layer does; its hooks stay
                keep(vars(self._module))
                vars(self._module)["forward"] = layer.forward
                got = call()
            self.compare(index, got, wanted, is_finite)
        self.add_square(wanted, is_finite)

    def relative(self) -> list[float]:
        """Return the relative error of each layer; infinite or NaN if it is not finite."""
        *errors, square = self.errors.tolist()
        return [0.0 if error == 0 else error / square if square else math.inf for error in errors]


class LayerErrors(Errors):
    """The errors of one layer's output; each call starts from what the float layer's held."""

    _before: State | None = None

    def before_call(self) -> None:
        """Note the state before a call."""
        if self.keeps_state:
            self._before = self.state()

    def observe_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Add the errors of one call of the float layer."""
        wanted = floats(output)
        if not wanted:
            return
        before, self._before = self._before, None
        after = None if before is None else self.state()
        is_finite = self.begin(*floats((args, kwargs)), *wanted)
        for index, layer in enumerate(self._layers):
            if before is not None:
                before.restore()
            # Hooks of the float layer have changed its input already, and its output not yet.
            self.compare(index, floats(layer.forward(*args, **kwargs)), wanted, is_finite)
        if after is not None:
            after.restore()
        self.add_square(wanted, is_finite)


class _Model:
    """Watches the calls of the whole model, and repeats each with one layer quantized at a time."""

    def __init__(self, model: nn.Module, layers: Mapping[str, Errors]) -> None:
        self._model, self._layers = model, layers
        self._depth = 0
        self._repeats = False
        self._reached: set[str] = set()  # the paths of the layers that the call has reached
        self._inputs: Any = None
        self._state: State | None = None  # before the call
        self.calls = 0

    def watch(self) -> None:
        """Watch until the context of :func:`evaluating` ends."""
        self._model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        self._model.register_forward_hook(self._after)
        for path, one in self._layers.items():
            one._module.register_forward_pre_hook(partial(self._reach, path))

    def _reach(self, path: str, module: nn.Module, args: Any) -> None:
        if not self._repeats:
            self._reached.add(path)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._reached.clear()
            self._inputs = _copied((args, kwargs))  # a call may change them, as a cache
            self._state = self._state_now()

    def _state_now(self) -> State:
        news = [one._layers for one in self._layers.values() if one.keeps_state]
        return State([self._model, *(new for layers in news for new in layers)])

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        wanted = floats(output)
        if not wanted:
            raise ValueError(
                f"{_CALLER}: expected the model to return floating tensors with "
                f"of='output', but got {type(output).__name__}"
            )
        self.calls += 1
        inputs, self._inputs, self._repeats = self._inputs, None, True
        before, self._state, after = self._state, None, self._state_now()
        assert before is not None
        self._depth += 1

        def call() -> list[Tensor]:
            args, kwargs = _copied(inputs)
            return floats(self._model(*args, **kwargs))

        try:
            for path, one in self._layers.items():
                if path in self._reached:
                    one.add_call(call, wanted, before)
        finally:
            after.restore()
            self._depth -= 1
            self._repeats = False


def _copied(inputs: Any) -> Any:
    try:
        return copy.deepcopy(inputs)
    except Exception:  # what cannot be copied is used as it is
        return inputs


def floats(value: Any) -> list[Tensor]:
    """Return the floating tensors with elements in an argument or an output."""
    return [
        leaf.detach()
        for leaf in tree_leaves(value)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 0
    ]


_CALLER = "baraquant.sensitivity"
_NOT_FINITE = "its output is not finite"
_UNREACHED = "the calibration data does not reach it"
_NONE_FITS = "no configuration fits all layers that get the same one"


@in_one_transaction
def sensitivity(
    model: nn.Module,
    configs: Sequence[QuantConfig] | Mapping[str, QuantConfig],
    calibration: Calibration,
    *,
    filter_fn: FilterFn | None = None,
    together: Sequence[Sequence[str]] = (),
    of: str = "layer",
    progress: bool = True,
) -> Sensitivity:
    """Measure how much the output of each layer, or of the model, suffers from each configuration.

    The error of a layer is ``sum ||y_q - y||^2 / sum ||y||^2`` over all of its calls, where ``y``
    is the output of the float layer in the float model, and ``y_q`` is the output of the layer that
    :func:`baraquant.quantize_` would make, for the same input. So it is that of the layer that is
    served, and has no part of what the layers before it do. It is 0 if both outputs are 0. The
    result chooses a configuration for each layer within a budget of bytes or bits
    (:meth:`Sensitivity.choose`).

    With ``of="output"`` the error is that of the model's output, ``sum ||m_q - m||^2 / sum
    ||m||^2`` over all floating tensors that the model returns, with this layer alone quantized.
    It shows a layer whose own error looks harmless, and that later layers enlarge. It takes a run
    over the data for each layer and configuration, and holds the float model's outputs for one
    batch. Errors of several layers do not add up exactly; :meth:`Sensitivity.choose` adds them.

    The model is unchanged afterwards, whatever interrupts the call, also what it keeps from one
    call to the next, as a cache in a buffer or an attribute: each call that is measured starts from
    what the float model's call has started from. The memory does not grow with the data: each layer
    keeps one sum for each configuration. Beside the model it holds the integers of all
    configurations, a byte for each weight and configuration.

    Layers that share a tensor get one configuration. A layer that the data does not reach stays
    floating, unless it shares a tensor or is ``together`` with one that it reaches; then it adds no
    error. A layer that no configuration fits stays floating, and so does a configuration's layer
    whose output is not finite.

    Args:
        model: The float model that contains the layers, on any device.
        configs: The configurations to compare, a list or a dictionary from names to them. The names
            of a list say the bits of weights and inputs: ``W4A16 g128``. Static inputs are
            calibrated first, with a run over the data for each such configuration.
        calibration: Typical inputs, as for :func:`baraquant.quantize_`.
        filter_fn: ``filter_fn(module, name)`` says whether to measure a layer, as for
            :func:`baraquant.quantize_`; None measures all. The others stay floating.
        together: Lists of path patterns (by :mod:`fnmatch`). Layers that match one list where the
            wildcards stand for the same get one configuration:
            ``[["*.q_proj", "*.k_proj", "*.v_proj"]]`` for a server that fuses the three.
        of: ``"layer"`` for the error of each layer's own output, ``"output"`` for the model's.
        progress: Whether to show a progress bar, on a terminal and if rich is installed.

    Returns:
        A report; ``print`` shows a table, the layers of the largest errors first.

    Raises:
        ValueError: No layer can be measured; there is no configuration, or the same one twice; one
            is :class:`SmoothQuant`, :class:`AWQ` or :class:`GPTQ`, which take other layers into
            account; no calibration data, none that reaches a layer, or none that is finite for one;
            data that can be read only once, for a static input; a weight is not finite; or a
            pattern matches no layer.
        TypeError: An argument has another type, or the model does not take the first batch.

    Warns:
        UserWarning: Calls with a NaN or an infinity were left out; the warning has the layers and
            the counts.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        >>> batches = [torch.randn(16, 32) for _ in range(4)]
        >>> schemes = [baraquant.W4A16(32), baraquant.W8A8()]
        >>> found = baraquant.sensitivity(model, schemes, batches)
        >>> mapping = found.choose(bits=7.5)
        >>> sorted(map(str, mapping.values())) == sorted(map(str, schemes))
        True
        >>> _ = baraquant.quantize_(model, mapping)
    """
    if of not in ("layer", "output"):
        raise ValueError(f"{_CALLER}: expected of to be 'layer' or 'output', but got {of!r}")
    check_is_module(model, _CALLER)
    named = named_configs(configs, _CALLER)
    patterns = check_together(together, _CALLER)
    run = Run(model, calibration, progress, _CALLER)
    static = [name for name, config in named.items() if config.is_static]
    if static:
        run.check_repeatable(f"{1 + len(static)} times for static inputs ({', '.join(static)})")
    chosen_by = filter_of(filter_fn)
    with evaluating(model):
        parts = unpack_modules(model, _CALLER, chosen_by)  # undone with it
        paths = {key: one.paths for key, one in parts.view.seen.items()}
        measured = _Measured(model, named, paths, of)
        measured.convert(chosen_by, parts, run)
        groups = Groups(measured.layer_paths())
        groups.join_shared(measured.modules)
        groups.join_together(patterns, _CALLER)
        measured.run(run)
        return measured.report(groups)


class _Kept(Unpacked):
    """Unpacked modules that no choice of layers packs again: the next one needs them too."""

    def repack(self, swapped: set[str]) -> set[str]:
        return set()


@dataclass
class _Measured:
    """The measurement of one model.

    Attributes:
        model: The float model.
        configs: The configurations by their names.
        paths: All paths of each module, by its id.
        of: Whose output is compared: that of each ``"layer"``, or the model's ``"output"``.
        modules: The layers that some configuration fits, by their first paths.
        layers: The converted layers, by the path and the name of the configuration.
        refused: Why a configuration does not fit, by the path and its name.
        left_out: Why a module is not measured, by its path.
        errors: The relative errors, by the path and the name of the configuration.
    """

    model: nn.Module
    configs: dict[str, QuantConfig]
    paths: dict[int, list[str]]
    of: str = "layer"
    modules: dict[str, nn.Module] = field(default_factory=dict)
    layers: dict[str, dict[str, nn.Module]] = field(default_factory=dict)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)

    def convert(self, filter_fn: FilterFn | None, parts: Unpacked, run: Run) -> None:
        """Make the layers of each configuration; if none has any, that is an error."""
        found: dict[str, nn.Module] = {}
        for name, config in self.configs.items():
            rules = Rules(config, _CALLER, trains=False)
            selector = Selector(_CALLER, rules, after_training, check_module)
            kept = _Kept(**vars(parts))
            chosen, report = selector.choose(kept, filter_fn)
            if chosen:
                calibrate_inputs(chosen, run)
            maker = Maker(chosen.values(), _CALLER)
            for path, one in chosen.items():
                found[path] = one.module
                self.layers.setdefault(path, {})[name] = maker.make(path, one)
            for path, reason in report.left_out.items():
                self.refused.setdefault(path, {})[name] = reason
        if not found:
            raise ValueError(f"{_CALLER}: {nothing_to('measure', parts.view, report)}")
        order = [path for path, _ in self.model.named_modules()]
        self.modules = {path: found[path] for path in order if path in found}
        self.left_out = {
            path: "; ".join(dict.fromkeys(reasons.values()))
            for path, reasons in self.refused.items()
            if path not in found
        }

    def layer_paths(self) -> dict[str, list[str]]:
        """Return all paths of each layer by its first one; floating layers are among them."""
        return {
            path: self.paths[id(module)]
            for path, module in self.model.named_modules()
            if path in self.modules or (path in self.left_out and layer_of(module) is not None)
        }

    def run(self, run: Run) -> None:
        """Measure the errors."""
        kind = LayerErrors if self.of == "layer" else Errors
        watchers: dict[str, Any] = {
            path: kind(module, list(self.layers[path].values()))
            for path, module in self.modules.items()
        }
        if self.of == "output":
            of_model = _Model(run.model, watchers)
            of_model.watch()
            run({}, "errors of the output")
            if of_model.calls == 0:
                raise ValueError(
                    f"{_CALLER}: expected the calibration function to call the model itself with "
                    "of='output', whose output is compared"
                )
        else:
            run(watchers, "errors of layers")
        for path, watcher in watchers.items():
            self.errors[path] = {}
            if watcher.unusable() is None:
                continue
            for name, error in zip(self.layers[path], watcher.relative(), strict=True):
                if math.isfinite(error):
                    self.errors[path][name] = error
                else:
                    self.refused.setdefault(path, {})[name] = _NOT_FINITE

    def report(self, groups: Groups) -> Sensitivity:
        """Return the report."""
        group_of = {
            path: number
            for number, group in enumerate(self._usable(groups.sets()))
            for path in group
        }
        if not group_of:
            path = next(iter(self.modules))
            raise ValueError(
                f"{_CALLER}: {path}: expected a layer that can be quantized, but "
                f"{self.left_out[path]}"
            )
        ordered = [path for path in self.modules if path in group_of]
        other_bytes, rest = self._others(ordered)
        counters = {name: Counter(rest) for name in (FLOAT, *self.configs)}
        weights: set[int] = set()
        layers = []
        for path in ordered:
            module, news = self.modules[path], self.layers[path]
            own = {id(weight): weight.numel() for weight in weights_of(module)}
            row = replace(
                self._row(path, group_of[path]),
                parameters=sum(size for one, size in own.items() if one not in weights),
                float_bytes=counters[FLOAT].add_layer(module),
                bytes={name: counters[name].add_layer(new) for name, new in news.items()},
            )
            layers.append(row)
            weights |= own.keys()
        return Sensitivity(self.configs, tuple(layers), self.left_out, other_bytes, self.of)

    def _usable(self, sets: list[list[str]]) -> Iterable[list[str]]:
        """Yield the layers of each group that the data reaches and that a configuration fits."""
        for group in sets:
            rows = [self._row(path, 0) for path in group if path in self.modules]
            if not rows:
                continue
            unfit = [path for path in group if self.left_out.get(path, FILTERED) != FILTERED]
            is_reached = any(row.errors or _NOT_FINITE in row.refused.values() for row in rows)
            if is_reached and not unfit and common_names(rows, self.configs):
                yield [row.path for row in rows]
                continue
            alone = _NOT_FINITE if is_reached else _UNREACHED
            reason = _NONE_FITS if is_reached and len(group) > 1 else alone
            self.left_out |= {row.path: reason for row in rows}

    def _row(self, path: str, group: int) -> LayerSensitivity:
        module = self.modules[path]
        return LayerSensitivity(
            path=path,
            paths=tuple(self.paths[id(module)]),
            kind=type(module).__name__,
            parameters=0,
            float_bytes=0,
            bytes=dict.fromkeys(self.layers[path], 0),
            errors=self.errors[path],
            refused=self.refused.get(path, {}),
            group=group,
        )

    def _others(self, layers: list[str]) -> tuple[int, Counter]:
        """Return the bytes of the tensors that belong to no layer, and their counter."""
        every = [path for layer in layers for path in self.paths[id(self.modules[layer])]]
        is_inside = inside({path: self.model.get_submodule(path) for path in every})
        counter, constants = Counter(), dict[str, Tensor]()
        size = sum(
            counter.add(tensor)
            for name, tensor in self.model.state_dict().items()
            if not is_inside(name)
        )
        add_constants(self.model, constants, is_inside)
        return size + sum(one.numel() * one.element_size() for one in constants.values()), counter
