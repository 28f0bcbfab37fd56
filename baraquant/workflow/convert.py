# SPDX-License-Identifier: BSD-3-Clause
"""``convert_``, which converts a prepared and trained model to integers, and how layers are made.

:func:`baraquant.quantize_` makes its layers of prepared ones too.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from .. import ops
from .._table import placed
from ..configs import TensorConfig
from ..nn import FakeQuantizedExperts, FakeQuantizedLinear, QuantizesWeight
from ..nn.shared.observed_range import skipped
from ..nn.shared.rotation import rotate_of
from ..nn.shared.subclassed import successor
from ..nn.training.freeze import check_scale
from ..nn.training.quantizers import Int4Integers, Integers, PackedIntegers
from .computed import drop_hooks, settled
from .layers import Layer, form_of, weights_of
from .passes import Chosen
from .replace import swap, swap_in_turn
from .report import CONVERTED, Report, completed, warn_if_no_faster
from .served import StoredWeight, served_linear
from .transaction import are_kept, changes_model, run_to_end
from .view import Decision, ModelView, Swap, choose_swaps

CALLER = "baraquant.qat.convert_"

# What two layers have in common if they can share the integers of one weight.
_Tie: TypeAlias = tuple[int, int, TensorConfig, str, str]
_Integers: TypeAlias = Integers | Int4Integers


@changes_model
def convert_(model: nn.Module) -> Report:
    """Swap the layers of a prepared model, in place, for quantized layers.

    A layer whose input has a static range but that no batch has reached, while others were reached,
    keeps a floating input; the report says so.

    Each new layer gives the same bits as the prepared layer in evaluation. For a convolution in
    floating point this holds as long as PyTorch chooses the same algorithm. Tied weights stay tied:
    their integers are stored once. An error or an interrupt leaves the model unchanged. If the
    weights take more than 1 GiB, every layer is checked before the first swap, and then they are
    converted one after the other: each prepared layer is freed at once, and an interrupt waits
    until the last is converted.

    Args:
        model: A model that was prepared by :func:`prepare_` and trained.

    Returns:
        A report of what was swapped, what stayed floating, and their sizes; ``print`` shows a
        table.

    Raises:
        ValueError: No layer is prepared, or a scale is unknown (training has seen no batch), NaN or
            infinite. The message has the layer's path.
        TypeError: ``model`` is not a module, or is scripted.

    Warns:
        UserWarning: Layers whose input stays floating, as no batch has reached them, will not be
            faster.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> _ = baraquant.qat.prepare_(model, baraquant.W8A8())
        >>> baraquant.qat.convert_(model).changed
        {'0': 'QuantizedLinear'}
    """
    view = ModelView(model, CALLER)
    unseen = _unseen(view)
    prepared = {  # as they will be converted
        id(module): (kind, module.with_floating_input() if id(module) in unseen else module)
        for module in model.modules()
        if (kind := view.seen[id(module)].prepared_for) is not None
    }
    is_kept = are_kept(weight for _, layer in prepared.values() for weight in weights_of(layer))
    converter = Converter(prepared.values(), keeps=is_kept)

    def decide(module: nn.Module, name: str) -> Decision:
        seen = view.seen[id(module)]
        if seen.prepared_for is None:
            if seen.is_converted:
                return CONVERTED
            has_weights = seen.layer is not None or seen.unknown is not None
            return "it was not prepared" if has_weights else None
        kind, layer = prepared[id(module)]
        new = converter.convert(kind, layer)
        what = about(new, kind, layer) + "".join(map(skipped, module.input_quantizers().values()))
        if id(module) in unseen:
            what += "; its input stays floating, as training never called it"
        return Swap(new if is_kept else layer, what)

    swaps, report = choose_swaps(view, CALLER, decide)
    if not report.changed:
        got = type(model).__name__
        if any(one.is_converted for one in view.seen.values()):
            raise ValueError(f"{CALLER}: expected a prepared model, but {got} is converted already")
        raise ValueError(
            f"{CALLER}: expected a model prepared by baraquant.qat.prepare_, but {got} has no "
            "prepared layer"
        )
    ready = {path: prepared[id(old)] for path, (old, _) in swaps.items()}
    if unseen:  # what preparation could not know
        warn_if_no_faster({p: (one, swaps[p][0].config) for p, (_, one) in ready.items()}, CALLER)
    prepared.clear()
    if is_kept:
        return completed(swap(model, swaps, report), model)
    # From here on nothing fails: each layer has been converted once, and dropped again.
    run_to_end()
    olds = {path: old for path, (old, _) in swaps.items()}
    groups = tied({path: layer for path, (_, layer) in ready.items()})
    swaps.clear()

    def make_group(paths: list[str]) -> dict[str, nn.Module]:
        group = {path: ready.pop(path) for path in paths}
        sharing = Converter(group.values())
        return {path: sharing.convert(*one) for path, one in group.items()}

    return completed(swap_in_turn(model, olds, groups, make_group, report), model)


class Converter:
    """Converts prepared layers; layers with tied weights share the integers.

    Linear layers whose arithmetic is floating pack integers of at most four bits, unless another
    layer shares them as int8.

    Args:
        prepared: The kinds of layers and the prepared ones: all that share their weights with those
            that will be converted, and maybe others.
        keeps: Whether to keep the integers of a weight for the next layer that shares it, and with
            them the prepared layers.
        quantize: Returns a prepared layer's weight as integers.
    """

    def __init__(
        self,
        prepared: Iterable[tuple[Layer, nn.Module]] = (),
        *,
        keeps: bool = True,
        quantize: Callable[[QuantizesWeight], _Integers] | None = None,
    ) -> None:
        self._held = {
            _tie(module)
            for layer, module in prepared
            if isinstance(module, QuantizesWeight) and not _can_pack(layer, module)
        }
        self._keeps, self._quantize = keeps, quantize or integers_of
        self._shared: dict[tuple[_Tie, int | None], StoredWeight] = {}
        self._kept: list[nn.Module] = []  # whose ids are those keys

    def convert(
        self,
        layer: Layer,
        prepared: nn.Module,
        integers: _Integers | None = None,
        smooth: Tensor | None = None,
    ) -> nn.Module:
        """Return what a prepared layer of a kind becomes; without integers, its weight is rounded.

        A linear layer divides its input by ``smooth``, ``[in_features]``.

        Raises:
            ValueError: A scale is unknown or not finite, or a registered kind of layer returns
                another class than it declared.
        """
        if integers is not None:
            check_scale("the weight", integers.scale, prepared.config.scale_dtype)
        with settled(prepared):
            own: StoredWeight | None = None
            if isinstance(prepared, QuantizesWeight):
                given = None if integers is None else self._kept_as(layer, prepared, integers)
                own = self.integers(layer, prepared) if given is None else given
            if smooth is None:
                new = layer.convert(prepared, own)
            else:
                assert own is not None
                new = served_linear(prepared, own, smooth=smooth)
        form = form_of(new)
        if form not in layer.forms or form is None:
            names = " or ".join(form.module.__name__ for form in layer.forms)
            raise ValueError(
                f"expected from_prepared to return a {names}, but it returned a "
                f"{type(new).__name__}"
            )
        form.check_names(new, layer.sizes)
        new = successor(new, prepared, layer.base_of(prepared))
        drop_hooks(new)
        return new

    def integers(self, layer: Layer, module: QuantizesWeight) -> StoredWeight:
        """Return a prepared layer's weight as integers, once for tied weights."""
        if rotate_of(module) > 0 or not self._keeps:  # a rotated weight is not tied
            return self._kept_as(layer, module, self._quantize(module))
        config = module.config.weight
        is_own = config.dynamic and module.weight_fake_quant.is_dynamic
        quantizer = None if is_own else id(module.weight_fake_quant)
        key = _tie(module), quantizer
        if key not in self._shared:
            self._shared[key] = self._kept_as(layer, module, self._quantize(module))
            self._kept.append(module)
        return self._shared[key]

    def _kept_as(self, layer: Layer, module: QuantizesWeight, integers: _Integers) -> StoredWeight:
        """Return integers as the converted layer keeps them: packed, or as they are."""
        if isinstance(integers, Int4Integers) or not _can_pack(layer, module):
            return integers
        if _tie(module) in self._held:
            return integers
        return PackedIntegers(ops.pack_int4(integers.qweight), *integers[1:])


def _tie(module: QuantizesWeight) -> _Tie:
    config = module.config
    tie = module.transposed_groups, config.weight, config.scale_dtype, module.master
    return _weight_of(module), *tie


def _weight_of(module: nn.Module) -> int:
    """Return the id of a layer's parameter; that of the layer if it rounds something else."""
    is_plain = isinstance(module, QuantizesWeight) and not module.adapters
    weight = module._parameters.get("weight") if is_plain else None
    return id(module) if weight is None else id(weight)


def tied(prepared: Mapping[str, nn.Module]) -> list[list[str]]:
    """Return the paths of prepared layers in lists of those that share a weight."""
    groups: dict[int, list[str]] = {}
    for path, module in prepared.items():
        groups.setdefault(_weight_of(module), []).append(path)
    return list(groups.values())


def about(new: nn.Module, layer: Layer, prepared: nn.Module, algorithm: str = "") -> str:
    """Return what a report says of a converted layer: also of its algorithm and rounded input."""
    block = rotate_of(new)
    rotated = f", rotate={block}" if block > 0 else ""
    is_told = layer.keeps_input and prepared.config.conv_inputs
    rounded = f", input={prepared.config.activation}" if is_told else ""
    return type(new).__name__ + rotated + algorithm + rounded


def _can_pack(layer: Layer, module: nn.Module) -> bool:
    """Whether a prepared layer becomes a linear layer that takes packed integers of four bits."""
    return layer.is_linear and not module.is_integer and module.config.weight.bits <= 4


def integers_of(module: QuantizesWeight) -> _Integers:
    """Return a prepared layer's weight as integers."""
    config = module.config
    if config.weight.group_factors:
        packed = Int4Integers(*module.weight_fake_quant.pack(module.rows_of_weight()))
        check_scale("the weight", packed.scale, config.scale_dtype)
        return packed
    integers, scale, zero_point = module.quantized_weight()
    check_scale("the weight", scale, config.scale_dtype)
    return Integers(integers, scale, None if config.weight.symmetric else zero_point)


def _unseen(view: ModelView) -> set[int]:
    """Return the ids of layers that no batch has reached, where others have been reached.

    Some models read the weight of a layer and never call it, or call it in some uses alone. Where
    no layer has been reached, training was forgotten: then the first of them is an error.
    """
    static = [
        module
        for module in view.model.modules()
        if isinstance(module, QuantizesWeight) and module.config.is_static
    ]
    unseen = {id(module) for module in static if module.has_unseen_input()}
    return unseen if len(unseen) < len(static) else set()


# ---- Layers of quantize_ ------------------------------------------------------------------------


def swap_layers(model: nn.Module, chosen: dict[str, Chosen], report: Report, caller: str) -> Report:
    """Make layers, those that share a weight together, and swap them; empties ``chosen``.

    If the float weights take much memory, the layers are only tried at first. Then each is made and
    swapped, and its float layer is freed at once: from there on nothing fails.

    Raises:
        ValueError: One cannot be made. The message has its path.
    """
    groups = tied({path: one.prepared for path, one in chosen.items()})
    is_kept = are_kept(weight for one in chosen.values() for weight in one.weights)
    for paths in groups:
        first = Maker((chosen[path] for path in paths), caller, is_trial=not is_kept)
        for path in paths:
            if is_kept:
                chosen[path].made = first.make(path, chosen[path])
            else:
                first.make(path, chosen[path])
    if not is_kept:
        run_to_end()
    abouts = dict.fromkeys(chosen, "")

    def make_group(paths: list[str]) -> dict[str, nn.Module]:
        group = {path: chosen.pop(path) for path in paths}
        maker = Maker(group.values(), caller)
        news: dict[str, nn.Module] = {}
        for path, one in group.items():
            new = news[path] = maker.make(path, one)
            told = "" if one.algorithm is None else one.algorithm.describe(path)
            abouts[path] = about(new, one.layer, one.prepared, told) + one.remark
        return news

    olds = {path: one.module for path, one in chosen.items()}
    # The texts are complete when all layers are made.
    return swap_in_turn(model, olds, groups, make_group, replace(report, changed=abouts))


class Maker:
    """Makes the converted layers; layers that share a weight share its integers.

    Args:
        chosen: All layers for which it will make one.
        caller: The public function, for messages.
        is_trial: Whether the layers are only tried: nothing is kept, and no scale is searched for.
            A scale that is searched for is no larger than the one that it starts from, so it is
            finite if that is.
    """

    def __init__(self, chosen: Iterable[Chosen], caller: str, *, is_trial: bool = False) -> None:
        self._caller, self._searches = caller, not is_trial
        # No method of its own, which would keep it, and with it the layers.
        self._shares: dict[int, float] = {}  # of exact scales, by the ids of weights
        self._rounded = functools.partial(_rounded, searches=not is_trial, shares=self._shares)
        prepared = ((one.layer, one.prepared) for one in chosen)
        self._converter = Converter(prepared, keeps=not is_trial, quantize=self._rounded)

    def make(
        self, path: str, one: Chosen, rounding: Callable[[nn.Module], _Integers] | None = None
    ) -> nn.Module:
        """Return the layer that replaces a float one.

        ``rounding`` returns the integers of the prepared layer whose weight is to be rounded; None:
        each number is rounded to the nearest.
        A registered layer may raise anything: the message gets the path.
        """
        if one.made is not None:
            return one.made
        with placed(self._caller, path):
            return self._make(path, one, rounding)

    def _ready(self, path: str, one: Chosen) -> nn.Module:
        """Return the prepared layer whose weight is to be rounded.

        The weight is that of the layer's pass, divided if the layer's own output is, and rotated.
        """
        prepared = _changed(path, one)
        if one.divisor is not None:
            changed = _scaled(prepared, None, one.divisor).to(one.module.weight.dtype)
            config = replace(prepared.config, master=None)  # its parameters were rounded before
            divided = FakeQuantizedLinear.sharing(changed, config, is_rotated=True)
            divided.input_fake_quant = prepared.input_fake_quant
            prepared = successor(divided, prepared, one.layer.base_of(one.module))
        elif one.rotate > 0:
            prepared = prepared.with_rotated_weight()
        return prepared

    def float_rows(self, path: str, one: Chosen) -> tuple[Tensor, Tensor | None]:
        """Return the rows of the weight that is rounded, and the bias beside it.

        They are those of :meth:`nn.QuantizesWeight.rows_of_weight`, and not rounded to the dtype of
        the layer where they are scaled.
        """
        scaled, ready = _scaled_layer(one), self._ready(path, one)
        rows: Tensor = (ready if scaled is None else scaled).rows_of_weight()
        return rows, ready.bias_to_add() if isinstance(ready, FakeQuantizedLinear) else None

    def _make(
        self, path: str, one: Chosen, rounding: Callable[[nn.Module], _Integers] | None
    ) -> nn.Module:
        scaling, importance = one.scaling, one.importance
        smooth = None if scaling is None else scaling.smooth
        integers: _Integers | None = None
        # Before `_ready`: a scaled weight and a divided one are not needed at the same time.
        scaled = _scaled_layer(one)
        if scaled is not None:
            if importance is not None and smooth is not None:
                importance = importance / smooth.to(importance).square()
            integers = self._rounded(scaled, importance)
            del scaled
        prepared = self._ready(path, one)
        if rounding is not None:
            integers = rounding(prepared)
        elif integers is None and importance is not None:  # no other layer shares the weight
            integers = self._rounded(prepared, importance)
        is_fitted = self._searches and prepared.config.fits_scales
        if isinstance(prepared, FakeQuantizedExperts) and is_fitted:
            self._fit_experts(prepared)
        is_kept = scaling is not None and scaling.producer is None
        smooth = smooth if is_kept else None
        new = self._converter.convert(one.layer, prepared, integers, smooth)
        one.remark += _about_lattice(self._shares.get(_weight_of(prepared), 0.0))
        return new

    def _fit_experts(self, prepared: FakeQuantizedExperts) -> None:
        rule, shares = prepared.config.scale_rule, []
        for name, rows in prepared.weight_rows().items():
            fitted, share = getattr(prepared, name).fitted(rows, scale_rule=rule)
            setattr(prepared, name, fitted)
            shares.append(share)
        self._shares[_weight_of(prepared)] = sum(shares) / max(1, len(shares))


def _scaled_layer(one: Chosen) -> FakeQuantizedLinear | None:
    """Return a layer whose weight is scaled, in the precision of the factors; None: it is not."""
    scaling = one.scaling
    if scaling is None or (scaling.smooth is None and one.divisor is None):
        return None
    config = replace(one.prepared.config, master=None)
    return FakeQuantizedLinear.from_float(
        _scaled(one.prepared, scaling.smooth, one.divisor), config
    )


def _rounded(
    layer: QuantizesWeight,
    importance: Tensor | None = None,
    *,
    searches: bool,
    shares: dict[int, float],
) -> _Integers:
    """Return a prepared layer's weight as integers, with the scales that fit best.

    The share of the scales that give the weight's own bits is put into ``shares``.
    """
    if searches and layer.config.fits_scales:
        fitted, share = layer.weight_fake_quant.fitted(
            layer.rows_of_weight(), importance, layer.config.scale_rule
        )
        layer.weight_fake_quant, shares[_weight_of(layer)] = fitted, share
    return integers_of(layer)


def _about_lattice(share: float) -> str:
    """Return what a report says of a weight that is integers times scales already."""
    if share == 0:
        return ""
    percent = "100" if share == 1 else f"{math.floor(1000 * share) / 10:.1f}"
    return f"; {percent} % of its scales give the weight's own bits"


def _changed(path: str, one: Chosen) -> nn.Module:
    """Return the prepared layer with the weights that its pass gives it."""
    weights = {id(weight) for weight in one.weights}
    news: dict[str, nn.Parameter] = {}
    for name, weight in one.prepared._parameters.items():
        if one.algorithm is None or id(weight) not in weights:
            continue
        given = weight.detach()
        new = one.algorithm.apply(f"{path}.{name}", given)
        if new is given:
            continue
        got, wanted = ((t.shape, t.dtype, t.device) for t in (new, given))
        if got != wanted:
            raise ValueError(
                f"expected apply of {type(one.algorithm).__name__} to return a {name} like the "
                f"given one, {_kind(given)}, but got {_kind(new)}"
            )
        news[name] = nn.Parameter(new.detach(), requires_grad=False)
    if not news:
        return one.prepared
    layer = copy.copy(one.prepared)
    layer.__dict__["_parameters"] = one.prepared._parameters | news
    layer.__dict__["_modules"] = dict(one.prepared._modules)
    return layer


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"


@torch.no_grad()  # type: ignore[untyped-decorator]
def _scaled(layer: FakeQuantizedLinear, smooth: Tensor | None, divisor: Tensor | None) -> nn.Linear:
    """Return a linear layer with inputs times ``smooth [K]``, outputs by ``divisor [N]``."""
    factors = smooth if divisor is None else divisor
    assert factors is not None
    weight, bias = layer.rows_of_weight().to(factors.dtype), layer.bias_to_add()
    if smooth is not None:
        weight = weight * smooth.to(weight.device)
    if divisor is not None:
        divisor = divisor.to(weight.device)
        weight = weight / divisor[:, None]
        bias = None if bias is None else (bias / divisor).to(bias.dtype)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear
