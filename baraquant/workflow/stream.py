# SPDX-License-Identifier: BSD-3-Clause
"""Quantizes the layers of a model while their weights are loaded, one weight after the other.

The model is built on the meta device. Each weight that arrives becomes integers at once, and the
floating numbers are freed, so that the floating model is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from .._table import placed
from ..configs import Config
from ..nn import QuantizesWeight
from ..schemes import Algorithm
from .convert import Maker, swap_layers
from .layers import weights_of
from .passes import Chosen, as_prepared
from .quantize import after_training, check_module, quantize_
from .replace import put_at
from .report import Report, completed, warn_if_no_faster
from .select import Rule, Rules, Selector, nothing_to
from .transaction import in_one_transaction, keep, undone
from .unpack import Unpacked, is_packed
from .view import FilterFn, ModelView


class Stream:
    """Chooses the layers of a model without data, and quantizes them when their weights arrive.

    It makes the layers that :func:`baraquant.quantize_` makes from the loaded model. Layers that
    hold several weights, such as experts, and weights that never arrive are quantized by
    :meth:`finish`. So is everything in a model with a packed module, such as ``nn.LSTM``: unpacking
    it earlier would rename its tensors; and where an algorithm's pass needs the whole model.

    The model is on the meta device, with its tied weights tied. The configuration needs no
    calibration.

    Raises:
        ValueError: No layer can be quantized, or a key of ``config`` matches no layer.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Config | Mapping[Rule, Config | None],
        caller: str,
        filter_fn: FilterFn,
    ) -> None:
        self._model, self._caller = model, caller
        self._config, self._filter = config, filter_fn
        self._chosen: dict[str, Chosen] = {}
        self._ties: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}  # from each path of a layer to its first one
        rules = Rules(config, caller, trains=False)
        has_pass = any(isinstance(one, Algorithm) for one in rules.configs())
        self._waits = has_pass or any(map(is_packed, model.modules()))
        if self._waits:
            return
        self._selector = Selector(caller, rules, after_training, _check_if_loaded)
        view = ModelView(model, caller)
        self._chosen, self._report = self._selector.choose(Unpacked(view), filter_fn)
        if not self._chosen:
            raise ValueError(f"{caller}: {nothing_to('quantize', view, self._report)}")
        warn_if_no_faster(as_prepared(self._chosen), caller)
        self._paths = {key: one.paths for key, one in view.seen.items()}
        by_weight: dict[int, list[str]] = {}
        for path, one in self._chosen.items():
            if isinstance(one.prepared, QuantizesWeight) and len(one.weights) == 1:
                self._names |= dict.fromkeys(self._paths[id(one.module)], path)
                by_weight.setdefault(id(one.module.weight), []).append(path)
        for group in by_weight.values():
            self._ties |= dict.fromkeys(group, group)

    def takes(self, name: str) -> bool:
        """Whether :meth:`add` quantizes the tensor of this name."""
        path, _, leaf = name.rpartition(".")
        return leaf == "weight" and path in self._names

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor that :meth:`takes` accepts."""
        shape: torch.Size = self._chosen[self._names[name.rpartition(".")[0]]].module.weight.shape
        return shape

    def refuse(self, names: Iterable[str]) -> None:
        """Leave the layers with these tensors to :meth:`finish`, with the layers tied to them."""
        for name in names:
            first = self._names.get(name.rpartition(".")[0])
            for path in () if first is None else self._ties[first]:
                for every in self._paths[id(self._chosen[path].module)]:
                    self._names.pop(every, None)

    def refuse_ties(self) -> None:
        """Leave all layers with tied weights to :meth:`finish`."""
        groups = [group for group in self._ties.values() if len(group) > 1]
        self.refuse(f"{path}.weight" for group in groups for path in group)

    def add(self, name: str, value: Tensor) -> list[str]:
        """Quantize a weight that :meth:`takes` accepts; return the paths of layers that have it.

        The new layers get into the model. Layers with tied weights are quantized when the first of
        their weights arrives. Where the file holds another one with other numbers, the two are not
        tied any more. A weight that is not finite is an error.
        """
        path = self._names[name.rpartition(".")[0]]
        known = self._chosen[path].made
        if known is None:
            news = self._converted(self._ties[path], value)
        else:
            news = self._converted([path], value)
            if _same_integers(news[path], known):
                return [path]
        places = {each: self._paths[id(self._chosen[each].module)] for each in news}
        for each, new in news.items():
            put_at(self._model, places[each], new)
            self._chosen[each].made = new
        return [every for paths in places.values() for every in paths]

    @in_one_transaction
    def finish(self) -> Report:
        """Quantize what has not arrived as a single weight, and return the report."""
        if self._waits:
            return quantize_(self._model, self._config, filter_fn=self._filter, progress=False)
        left_out = dict(self._report.left_out)
        self._tie_again()
        ready: dict[str, Chosen] = {}
        for path, one in self._chosen.items():
            prepared = one.prepared if one.made is not None else self._prepared(path, one)
            if isinstance(prepared, str):
                left_out[path] = prepared
            else:
                ready[path] = replace(one, prepared=prepared)
        self._chosen.clear()
        # What a model has kept of a layer beside its place gets the new one too.
        report = swap_layers(self._model, ready, self._report, self._caller)
        return completed(replace(report, left_out=left_out), self._model)

    @in_one_transaction
    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _converted(self, paths: list[str], value: Tensor) -> dict[str, nn.Module]:
        """Return the new layers of one weight. They share its integers."""
        weight = nn.Parameter(value, requires_grad=False)
        ready: dict[str, Chosen] = {}
        with undone():  # the layer is as empty as before afterwards
            for path in paths:
                module = self._chosen[path].module
                keep(module._parameters)
                module.weight = weight
                prepared = self._prepared(path, self._chosen[path])
                if isinstance(prepared, str):
                    raise ValueError(f"{self._caller}: {path}: {prepared}")
                ready[path] = replace(self._chosen[path], prepared=prepared, made=None)
            maker = Maker(ready.values(), self._caller)
            return {path: maker.make(path, one) for path, one in ready.items()}

    def _prepared(self, path: str, one: Chosen) -> nn.Module | str:
        with placed(self._caller, path):
            return self._selector.prepare(one.module, one.layer, one.config)

    def _tie_again(self) -> None:
        """Tie the weights that have not arrived: the loader gave each of them values of its own."""
        for group in self._ties.values():
            first = self._chosen[group[0]].module
            for path in group[1:]:
                if self._chosen[path].made is None:
                    self._chosen[path].module.weight = first.weight


def _check_if_loaded(module: nn.Module, config: Config) -> str | None:
    if any(weight.is_meta for weight in weights_of(module)):
        return None
    return check_module(module, config)


def _same_integers(one: nn.Module, other: nn.Module) -> bool:
    names = ["qweight", "weight_scale", "weight_zero_point", "group_factor", "group_zero_point"]
    if not hasattr(one, "qweight"):
        names.append("packed")
    pairs = [(getattr(one, name, None), getattr(other, name, None)) for name in names]
    return all(
        mine is theirs
        or (mine is not None and theirs is not None and torch.equal(mine.to(theirs), theirs))
        for mine, theirs in pairs
    )
