# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the layers of a float model to quantize, and prepares a layer for each.

Where a call has a dictionary of configurations, its keys are path patterns of :mod:`fnmatch`
(``"encoder.*"``) or types (``nn.Embedding``). The first match counts. The value None leaves the
layer floating, and so does a layer without a match.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias

from torch import nn

from .._table import placed, some
from ..configs import Config, QuantConfig, TensorConfig
from ..nn.recurrent_cells import Cell
from ..nn.shared.subclassed import successor
from ..nn.training.quantizers import QuantizesWeight
from ..schemes import Algorithm, quant_config, scheme_of
from .computed import compute_as, plain
from .layers import Layer, layer_of_converted
from .passes import Chosen, pass_of
from .report import CONVERTED, FILTERED, FLOATING, PREPARED, UNMATCHED, Report
from .start import Starts
from .unpack import Unpacked, is_packed
from .view import Decision, FilterFn, ModelView, Swap, choose_swaps


class Filter:
    """Calls a filter once for each module and name, also those of parts of unpacked modules."""

    def __init__(self, filter_fn: FilterFn) -> None:
        self._filter_fn = filter_fn
        self._answers: dict[tuple[int, str], bool] = {}

    def __call__(self, module: nn.Module, name: str) -> bool:
        """Return the answer of the filter."""
        key = id(module), name
        if key not in self._answers:
            answer = self._filter_fn(module, name)
            try:
                self._answers[key] = bool(answer)
            except (ValueError, RuntimeError) as error:  # of arrays and tensors of several elements
                kind = type(answer).__name__
                raise TypeError(
                    f"filter_fn: expected True or False for {name}, but got a {kind}: {error}"
                ) from error
        return self._answers[key]

    def warn_if_useless(self, caller: str) -> None:
        """Warn if the filter has taken each layer that it was asked for."""
        if self._answers and all(self._answers.values()):
            names = sorted({name for _, name in self._answers})
            warnings.warn(
                f"{caller}: expected filter_fn to leave out a layer, but it takes all of "
                f"{some(names, 5)}",
                stacklevel=5,
            )


def filter_of(filter_fn: FilterFn | None) -> Any:
    """Return a filter that is called once for each layer.

    A value that is not a function is returned unchanged; its use raises an error.
    """
    return Filter(filter_fn) if callable(filter_fn) else filter_fn


class Selector:
    """Chooses the layers of one call.

    Args:
        caller: The public function, for the messages.
        rules: The configurations.
        adapt: Adapts a configuration to a kind of layer.
        check: Raises an error, or returns why a module with its configuration stays floating, or
            None.
        trains: Whether training follows. What it starts from is then kept in learned scales: what
            an :class:`baraquant.Algorithm` finds, and what layers that are quantized already store.
    """

    def __init__(
        self,
        caller: str,
        rules: Rules,
        adapt: Callable[[QuantConfig, Layer], QuantConfig] = lambda config, layer: config,
        check: Callable[[nn.Module, Config], str | None] = lambda module, config: None,
        *,
        trains: bool = False,
    ) -> None:
        self._caller, self._rules, self._adapt, self._check = caller, rules, adapt, check
        self._trains = trains
        self._starts = Starts()
        self._computed: set[int] = set()  # ids of layers whose weight PyTorch computes
        self._sharing: set[int] = set()  # ids of modules that share a parameter
        self._fixed: set[int] = set()  # ids of linear layers that are not rotated
        self._quantizers: dict[tuple[int, int, TensorConfig, str, str], nn.Module] = {}

    def choose(
        self, parts: Unpacked, filter_fn: FilterFn | None
    ) -> tuple[dict[str, Chosen], Report]:
        """Return the layers by their first paths, and a report of what is left out.

        Raises:
            ValueError: A layer cannot take its configuration although a key is the layer's path;
                one weight gets two configurations; a key matches nothing; or
                :func:`.view.choose_swaps` raises it.
        """
        view = parts.view
        configs = self._configs(parts)
        prepared: dict[int, Chosen] = {}
        self._computed = {key for key, one in view.seen.items() if one.is_computed}
        self._sharing = view.sharing()
        # The products of a recurrent cell have weights with names of the cell.
        cells = [module for module in view.model.modules() if isinstance(module, Cell)]
        inner = {id(part) for cell in cells for part in cell.modules()}
        self._fixed = self._computed | self._sharing | inner
        for module in view.model.modules():
            if view.seen[id(module)].prepared_for is not None:
                self._share_quantizer(module, module)

        def decide(module: nn.Module, name: str) -> Decision:
            config, seen = configs.get(id(module)), view.seen[id(module)]
            if isinstance(config, str):
                return config
            layer = layer_of_converted(module) if seen.is_converted else seen.layer
            if config is None or layer is None:
                known = PREPARED if seen.prepared_for else CONVERTED if seen.is_converted else None
                return known or parts.packed.get(id(module), seen.unknown)
            remark = ""
            if seen.is_converted:
                started = self._start(module, layer, config)
                made, remark = (started, "") if isinstance(started, str) else started
            else:
                made = self.prepare(module, layer, config)
            if isinstance(made, str):
                return made
            for weight in seen.weights:
                self._rules.check_tie(weight, name, scheme_of(config))
            is_made = name in parts.before or id(module) in self._computed
            remark += "; its weight was computed by a parametrization or a hook" if is_made else ""
            shares_weight = view.shares_weight(module)
            one = Chosen(module, layer, config, made, shares_weight, remark)
            one.made = module if seen.is_converted else None
            prepared[id(module)] = one
            is_embedding = isinstance(made, nn.Embedding)
            what = f"weight={made.config.weight_str}" if is_embedding else str(made.config)
            return Swap(module, f"{type(made).__name__}({what})")

        _, report = choose_swaps(
            view, self._caller, decide, filter_fn, lambda m: id(m) in configs, keeps_ties=True
        )
        self._rules.check_used(name for key in configs for name in view.seen[key].paths)
        self._check_named(report, view)
        self._rules.warn_if_useless(
            {view.ids[name] for name in report.changed},
            {view.ids[name]: (name, reason) for name, reason in report.left_out.items()},
        )
        if isinstance(filter_fn, Filter):
            filter_fn.warn_if_useless(self._caller)
        chosen = {name: prepared[view.ids[name]] for name in report.changed}
        return chosen, _without_parts(report, parts.repack(set(chosen)))

    def _check_named(self, report: Report, view: ModelView) -> None:
        """Check that no layer stays floating if a key is its path or the path of its parent."""
        for name, reason in report.left_out.items():
            config = self._rules.named.get(view.ids[name])
            if config is not None and reason != FILTERED:
                raise ValueError(
                    f"{self._caller}: {name}: expected a layer that {scheme_of(config)} fits, but "
                    f"{reason}"
                )

    def _configs(self, parts: Unpacked) -> dict[int, Config | str]:
        """Return the configuration of each candidate, or why it has none, by the candidate's id.

        Candidates are what the caller's filter and patterns apply to.
        """
        configs: dict[int, Config | str] = {}
        for module in parts.view.model.modules():
            seen = parts.view.seen[id(module)]
            is_started = self._trains and seen.is_converted
            if seen.layer is not None or is_started or is_packed(module):
                wholes = [parts.whole_of(name) for name in seen.paths]
                with placed(self._caller, seen.paths[0]):
                    configs[id(module)] = self._rules.config_of(module, seen.paths, wholes)
        return configs

    def prepare(self, module: nn.Module, layer: Layer, config: Config) -> nn.Module | str:
        """Return the prepared layer, or why there is none."""
        scheme = self._adapt(scheme_of(config), layer)
        if self._trains and isinstance(config, Algorithm):
            scheme = scheme.with_learned_scales()
        return self.prepare_as(module, layer, config, scheme)

    def prepare_as(
        self, module: nn.Module, layer: Layer, config: Config, scheme: QuantConfig
    ) -> nn.Module | str:
        """Return the prepared layer of a scheme, or why there is none."""
        if id(module) in self._fixed or not layer.is_linear:
            scheme = scheme.with_rotation(0)
        is_computed = id(module) in self._computed
        given = plain(module) if is_computed else module
        reason = (
            layer.why_not_itself(given)
            or layer.why_not(given, scheme)
            or _why_empty(given)
            or self._check(given, config)
        )
        if reason is not None:
            return reason
        try:
            # No weight is rotated before all decisions are made.
            make = layer.training.from_float if scheme.rotate is None else layer.training.sharing
            prepared: nn.Module = make(given, scheme)
        except ValueError as error:
            return f"the configuration does not fit: {error}"
        if type(prepared) is not layer.training:
            raise ValueError(
                f"expected from_float to return a {layer.training.__name__}, but it returned a "
                f"{type(prepared).__name__}"
            )
        self._share_quantizer(prepared, module)
        prepared = successor(prepared, module, layer.base_of(given), plain=given)
        if is_computed:
            compute_as(prepared, module)
        return prepared

    def _start(
        self, module: nn.Module, layer: Layer, config: Config
    ) -> tuple[nn.Module, str] | str:
        """Return a prepared layer that holds what a quantized one stores, and a remark.

        Or return why there is none.
        """
        scheme = scheme_of(config).with_learned_scales()
        if id(module) in self._fixed or not layer.is_linear:
            scheme = scheme.with_rotation(0)
        started = self._starts.prepare(module, layer, scheme)
        if isinstance(started, str):
            return started
        prepared, remark = started
        self._share_quantizer(prepared, module)
        prepared = successor(prepared, module, layer.base_of(module))
        vars(prepared).pop("_merged", None)
        return prepared, remark

    def _share_quantizer(self, prepared: nn.Module, module: nn.Module) -> None:
        """Let layers that share a weight share its learned or observed scale, which is a tensor.

        ``module`` is the place in the model: the float layer, or the prepared one. A weight that
        several layers share is not rotated.
        """
        if not isinstance(prepared, QuantizesWeight) or id(module) not in self._sharing:
            return
        config = prepared.config.weight
        if not config.dynamic and id(module) not in self._computed:
            dtypes = prepared.config.scale_dtype, prepared.master
            key = id(prepared.float_weight()), prepared.transposed_groups, config, *dtypes
            own = prepared.weight_fake_quant
            prepared.weight_fake_quant = self._quantizers.setdefault(key, own)


def _why_empty(module: nn.Module) -> str | None:
    """Return why a layer without a weight to round stays floating; None if it has one."""
    sizes = [p.numel() for name, p in module.named_parameters() if "weight" in name]
    return "its weight has no elements" if sizes and not any(sizes) else None


def _without_parts(report: Report, wholes: set[str]) -> Report:
    """Return a report that names the restored modules, not their parts."""
    left_out: dict[str, str] = {}
    parameters, products = dict(report.parameters), dict(report.multiply_adds)
    for name, reason in report.left_out.items():
        whole = next((path for path in wholes if name.startswith(f"{path}.")), None)
        if whole is None:
            left_out[name] = reason
        else:
            left_out.setdefault(whole, reason)
            for counts in (parameters, products):
                counts[whole] = counts.get(whole, 0) + counts.pop(name, 0)
    return replace(report, left_out=left_out, parameters=parameters, multiply_adds=products)


def nothing_to(verb: str, view: ModelView, report: Report) -> str:
    """Return the message for a model in which nothing can be prepared or quantized."""
    kind = type(view.model).__name__
    if any(one.prepared_for for one in view.seen.values()):
        return f"expected a float model, but {kind} is prepared already"
    if verb != "prepare" and any(one.is_converted for one in view.seen.values()):
        return f"expected a float model, but {kind} is converted already"
    return (
        "expected a model with a Linear, Conv1d, Conv2d, Embedding or another layer to "
        f"{verb}, but {kind} has none{report.reasons()}"
    )


Rule: TypeAlias = str | type[nn.Module]


# ---- Which configuration a layer gets: one for all, or by a dictionary --------------------------


class Rules:
    """The configurations of a call.

    Args:
        config: A configuration, or a dictionary from patterns and types to configurations.
        caller: The public function, for the messages.
        trains: Whether training follows, which not every :class:`baraquant.Algorithm` supports.

    Attributes:
        named: The configurations of layers one of whose paths is itself a key, by the layers' ids:
            they must be quantized.

    Raises:
        TypeError: A value is not a configuration, or a key is neither a pattern nor a type.
        ValueError: There is no configuration, or one that cannot be trained.
    """

    def __init__(self, config: Any, caller: str, *, trains: bool) -> None:
        self._caller = caller
        self._is_one = not isinstance(config, Mapping)
        self._rules: list[tuple[Any, Config | None]] = (
            [("*", config)] if self._is_one else list(config.items())
        )
        self.named: dict[int, Config] = {}
        self._used: set[int] = set()
        self._decided: dict[int, set[int]] = {}  # the ids of the layers that each decides
        self._chosen: dict[int, tuple[str, QuantConfig]] = {}  # by the id of a weight
        if not self._rules:
            raise ValueError(f"{caller}: expected configurations, but got an empty dictionary")
        for key, value in self._rules:
            where = "" if self._is_one else repr(key) if isinstance(key, str) else str(key)
            is_type = isinstance(key, type) and issubclass(key, nn.Module)
            if not isinstance(key, str) and not is_type:
                raise TypeError(
                    f"{caller}: expected a pattern of paths or a type of modules for a key, but "
                    f"got {key!r}"
                )
            if value is None and not self._is_one:
                continue
            with placed(caller, where):
                if not isinstance(value, Algorithm):
                    quant_config(value)
                    continue
                pass_of(value)
                why_not = value.why_not_trained() if trains else None
                if why_not is not None:
                    raise ValueError(why_not)

    def configs(self) -> list[Config]:
        """Return the configurations that a layer could get."""
        return [config for _, config in self._rules if config is not None]

    def config_of(self, module: nn.Module, names: list[str], whole: list[Any]) -> Config | str:
        """Return the configuration of a layer with some paths, or the reason why it has none.

        ``whole`` has the path and the module of the attention, LSTM or similar that contains the
        layer, or None, for each path. It is an error if the paths get different configurations.
        """
        found = [self._index(module, name, part) for name, part in zip(names, whole, strict=True)]
        configs = [None if index is None else self._rules[index][1] for index in found]
        for name, config in zip(names, configs, strict=True):
            if config != configs[0]:
                raise ValueError(
                    f"expected one configuration for a shared module, but {names[0]} gets "
                    f"{configs[0]} and {name} gets {config}"
                )
        if found[0] is None:
            return UNMATCHED
        if configs[0] is None:
            return FLOATING
        paths = {*names, *(part[0] for part in whole if part is not None)}
        keys = {key for key, value in self._rules if value is not None and not self._is_one}
        if paths & keys:
            self.named[id(module)] = configs[0]
        return configs[0]

    def _index(self, module: nn.Module, name: str, whole: Any) -> int | None:
        places = [(name, module), *([whole] if whole is not None else [])]
        first = None
        for index, (key, _) in enumerate(self._rules):
            if any(_matches(key, path, each) for path, each in places):
                self._used.add(index)
                first = index if first is None else first
        if first is not None:
            self._decided.setdefault(first, set()).add(id(module))
        return first

    def check_tie(self, weight: int, name: str, config: QuantConfig) -> None:
        """Check that layers that share a weight quantize it in the same way."""
        other, chosen = self._chosen.setdefault(weight, (name, config))
        of_weight = attrgetter("weight", "scale_rule", "scale_dtype")
        if of_weight(chosen) != of_weight(config):
            raise ValueError(
                f"expected one configuration for a weight that {other} and {name} share, but "
                f"{other} gets {chosen.weight_str}, scale_rule {chosen.scale_rule}, and "
                f"{name} gets {config.weight_str}, scale_rule {config.scale_rule}"
            )

    def check_used(self, names: Iterable[str]) -> None:
        """Check that every pattern and type has matched a layer, of some paths."""
        for index, (key, _) in enumerate(self._rules):
            if index not in self._used and not self._is_one:
                raise ValueError(
                    f"{self._caller}: expected {_told(key)} to match a layer, but it matches none "
                    f"of {some(sorted(names), 5)}"
                )

    def warn_if_useless(self, changed: set[int], left_out: Mapping[int, tuple[str, str]]) -> None:
        """Warn of keys that decide nothing.

        These are keys all of whose layers others match before, and keys whose configuration no
        layer takes. ``changed`` has the ids of the layers that get a configuration, and
        ``left_out`` the path of each other layer and why it stays floating.
        """
        for index, (key, value) in enumerate(self._rules):
            decided = self._decided.get(index, set())
            if self._is_one or (decided and (value is None or decided & changed)):
                continue
            if decided:
                found = [told for one, told in left_out.items() if one in decided]
                reasons = "; ".join(f"{path}: {reason}" for path, reason in found[:3])
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                text = f"to quantize a layer, but all of its layers stay floating ({reasons}{more})"
            else:
                does = "leave out" if value is None else "decide on"
                text = (
                    f"to {does} a layer, but a key before it matches each of its layers; the first "
                    "match counts: move it to the front"
                )
            warnings.warn(f"{self._caller}: expected {_told(key)} {text}", stacklevel=5)


def _told(key: Any) -> str:
    return f"the pattern {key!r}" if isinstance(key, str) else str(key.__name__)


def _matches(key: Any, path: str, module: nn.Module) -> bool:
    if isinstance(key, str):
        return fnmatch.fnmatchcase(path, key)
    return isinstance(module, key)
