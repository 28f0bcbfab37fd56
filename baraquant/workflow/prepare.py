# SPDX-License-Identifier: BSD-3-Clause
"""``prepare_``: a float model becomes one that trains for its life as integers."""

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from ..configs import Config, QuantConfig, TensorConfig, qat_config
from ..nn import (
    FakeQuantizedConv1d,
    FakeQuantizedConv2d,
    FakeQuantizedEmbedding,
    FakeQuantizedLinear,
    LearnedFakeQuantize,
    MultiheadAttention,
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    StaticQuantizedLinear,
    WeightOnlyLinear,
)
from .replace import Decision, FilterFn, Report, Swap, replace_modules, take_over, why_not

CALLER = "baraquant.qat.prepare_"
PREPARED = (FakeQuantizedLinear, FakeQuantizedConv1d, FakeQuantizedConv2d, FakeQuantizedEmbedding)
CONVERTED = (
    WeightOnlyLinear,
    QuantizedConv1d,
    QuantizedConv2d,
    QuantizedEmbedding,
    QuantizedLinear,
    StaticQuantizedLinear,
)
FLOAT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.MultiheadAttention)


def prepare_(model: nn.Module, config: Config, filter_fn: FilterFn | None = None) -> Report:
    """Swap the layers of ``model``, in place, for layers of quantization-aware training.

    * ``Linear`` becomes :class:`baraquant.nn.FakeQuantizedLinear`,
    * ``Conv1d`` and ``Conv2d`` become layers whose weights are fake-quantized, and whose inputs are
      where they have one scale (a scale per token is nothing to a convolution),
    * ``Embedding`` becomes a layer whose rows are fake-quantized,
    * ``MultiheadAttention`` becomes :class:`baraquant.nn.MultiheadAttention`, with a
      ``FakeQuantizedLinear`` for each of its four projections in place of packed weights.

    The new layers share their parameters with the old ones: what was tied stays tied, and an
    optimizer that was made before goes on, but for learned scales and the weights of
    ``MultiheadAttention``, which are new parameters. Layers that occur several times are swapped
    once. Hooks are taken over. All is decided before the first swap: an error leaves the model as
    it was. The fused evaluation of ``TransformerEncoder``, which would go past the new layers, is
    switched off.

    A weight that several layers share stays one, with one scale, learned or not. Where one of these
    layers stays floating, the others do too: the model would hold the weight twice. A layer that
    the configuration does not fit (a group size that does not divide its inputs) stays floating.

    Prepare a model before it is compiled, scripted or wrapped for several processes. Scales of
    inputs that are not dynamic come from the first batch in training: until then evaluation is
    refused (learned) or gives NaN (static). Learned ones have to be known before the model is
    wrapped; they are float32, which ``fully_shard`` does not take beside parameters of another
    dtype: keep those float32 too, with ``MixedPrecisionPolicy(param_dtype=torch.bfloat16)``.

    Args:
        model: Holds the layers; its root stays.
        config: :class:`baraquant.QuantConfig`, :class:`baraquant.W8A8` or
            :class:`baraquant.W8A8Static`.
        filter_fn: ``filter_fn(module, name)`` says whether to swap one of these layers; None swaps
            all.

    Returns:
        What was swapped, and what was left out and why.

    Raises:
        ValueError: No layer to swap, as the configuration fits none or for other reasons (the
            message has some), or a model wrapped for several processes.
        TypeError: Something that is no module, no configuration, or scripted.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> print(baraquant.qat.prepare_(model, baraquant.W8A8()))
        0  FakeQuantizedLinear(weight=int8 per_channel symmetric dynamic, \
input=int8 per_token symmetric dynamic)
        1 changed, 0 left out
    """
    try:
        qat = qat_config(config)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{CALLER}: {error}") from None

    preparer = _Preparer(qat)
    if isinstance(model, nn.Module):
        preparer.know(model)
    report = replace_modules(
        model,
        CALLER,
        lambda module, name: preparer.decide(module),
        filter_fn,
        lambda module: isinstance(module, FLOAT),
        keeps_ties=True,
    )
    if not report.changed:
        raise ValueError(f"{CALLER}: {_nothing(model, report)}")
    return report


class _Preparer:
    """Makes the layers in training; those whose weights are tied share what rounds the weight."""

    def __init__(self, config: QuantConfig) -> None:
        self._config = config
        self._quantizers: dict[tuple[int, TensorConfig], nn.Module] = {}

    def know(self, model: nn.Module) -> None:
        """Take notice of the layers that an earlier call has prepared."""
        for module in model.modules():
            if isinstance(module, PREPARED):
                self._share_quantizer(module)

    def decide(self, module: nn.Module) -> Decision:
        """Return the layer that takes the place of a float one, or why there is none."""
        if isinstance(module, PREPARED):
            return "it is prepared already"
        if isinstance(module, CONVERTED):
            return "it is converted already"
        if isinstance(module, nn.MultiheadAttention):
            return self._decide_attention(module)
        for base, new in (
            (nn.Linear, FakeQuantizedLinear),
            (nn.Conv1d, FakeQuantizedConv1d),
            (nn.Conv2d, FakeQuantizedConv2d),
            (nn.Embedding, FakeQuantizedEmbedding),
        ):
            if isinstance(module, base):
                reason = why_not(module, base) or _why_not_with(module, self._config)
                if reason is not None:
                    return reason
                try:
                    swapped = new.from_float(module, self._config)
                except ValueError as error:
                    return f"the configuration does not fit: {error}"
                self._share_quantizer(swapped)
                take_over(swapped, module)
                return Swap(swapped, f"{new.__name__}({_about(swapped)})")
        return unknown_weights(module)

    def _decide_attention(self, module: nn.MultiheadAttention) -> Decision:
        reason = MultiheadAttention.why_not(module)
        if reason is not None:
            return reason
        attention = MultiheadAttention.from_float(module)
        for name, projection in list(attention.named_children()):
            try:
                setattr(attention, name, FakeQuantizedLinear.from_float(projection, self._config))
            except ValueError as error:
                return f"the configuration does not fit {name}: {error}"
        take_over(attention, module)
        return Swap(
            attention, f"MultiheadAttention of FakeQuantizedLinear({_about(attention.out_proj)})"
        )

    def _share_quantizer(self, layer: nn.Module) -> None:
        """Let layers with one weight have one scale for it: learned or observed, it is a tensor."""
        config = layer.config.weight
        if not config.dynamic:
            key = id(layer.float_weight()), config
            layer.weight_fake_quant = self._quantizers.setdefault(key, layer.weight_fake_quant)


def _why_not_with(module: nn.Module, config: QuantConfig) -> str | None:
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "its max_norm rewrites the weight"
    if isinstance(module, (nn.Conv1d, nn.Conv2d)) and config.weight.granularity == "per_group":
        return "a convolution's weight has no groups that share a scale"
    return None


def _about(module: nn.Module) -> str:
    config = module.config
    if isinstance(module, FakeQuantizedEmbedding):
        return f"weight={config.weight}"
    return f"weight={config.weight}, input={config.activation or 'float'}"


def unknown_weights(module: nn.Module) -> str | None:
    """Why a module with weights of its own has no quantized form here; None: it has no weights."""
    if isinstance(module, (LearnedFakeQuantize, parametrize.ParametrizationList)):
        return None  # parts of a layer that has been looked at
    if parametrize.is_parametrized(module):
        return "its weight is computed by a parametrization"
    weights = [
        name
        for name, parameter in module._parameters.items()
        if is_lazy(parameter) or (parameter is not None and parameter.dim() > 1)
    ]
    if not weights:
        return None
    what = "" if next(module.children(), None) is None else f" for {', '.join(weights)}"
    return f"there is no quantized form of {type(module).__name__}{what}"


def _nothing(model: nn.Module, report: Report) -> str:
    kind = type(model).__name__
    if any(isinstance(module, PREPARED) for module in model.modules()):
        return f"expected a float model, but {kind} is prepared already"
    if any(isinstance(module, CONVERTED) for module in model.modules()):
        return f"expected a float model, but {kind} is converted already"
    return (
        "expected a model with a Linear, Conv1d, Conv2d, Embedding or MultiheadAttention to "
        f"prepare, but {kind} has none{report.reasons()}"
    )
