# SPDX-License-Identifier: BSD-3-Clause
"""The table of layers: every kind that can be quantized, and how.

:func:`baraquant.qat.prepare_`, :func:`baraquant.qat.convert_`, :func:`baraquant.quantize_`,
:func:`baraquant.save` and :func:`baraquant.load_` read this table. A new kind of layer needs a new
row here, or a call of :func:`baraquant.register_layer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .. import nn as bnn
from ..configs import QuantConfig
from ..nn.shared.experts import form_of as experts_form
from ..nn.shared.experts import is_experts
from ..nn.shared.subclassed import computes_parent, extends_forward, own_names, plain_type
from .computed import names_of_hooks
from .served import (
    TABLE,
    Form,
    entry_of,
    form_of_registered,
    form_of_table,
    served_conv,
    served_embedding,
    served_experts,
    served_linear,
)

# What the ops compute on.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def why_not(module: nn.Module, base: type[nn.Module]) -> str | None:
    """Return why a module of a known kind, such as ``nn.Linear``, cannot be swapped, or None."""
    if isinstance(module, nn.modules.lazy.LazyModuleMixin):
        return "its shape is not known yet: run a batch first"
    if parametrize.is_parametrized(module):
        return "its weight is computed by a parametrization"
    for method in ("forward", "_conv_forward", "__call__"):
        is_own = getattr(type(module), method, None) is not getattr(base, method, None)
        if is_own and not (method == "forward" and _is_known(module, base)):
            return f"{type(module).__name__} has a forward of its own"
    if getattr(type(module), "weight", None) is not getattr(base, "weight", None):
        return f"{type(module).__name__} has a weight of its own"
    if vars(module).keys() & {"forward", "_conv_forward", "_call_impl", "_wrapped_call_impl"}:
        return "its forward was replaced by another"
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed by a hook"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.dtype not in _DTYPES:
        return f"its weight is {weight.dtype}"
    return None


def _is_known(module: nn.Module, base: type[nn.Module]) -> bool:
    """Whether a subclass's forward computes its parent's, or calls it."""
    return computes_parent(module, base) or extends_forward(module, base)


_FORMS = {name: form_of_table(getattr(bnn, name)) for name in TABLE["classes"]}
LINEAR_FORMS = tuple(_FORMS[name] for name in TABLE["layers"]["Linear"])


Convert: TypeAlias = Callable[..., nn.Module]


@dataclass(frozen=True)
class Layer:
    """A kind of layer.

    Attributes:
        float_type: The class of the float modules. None: a subclass of ``Layer`` recognizes them by
            something else, with its own ``name`` and ``matches``.
        training: The class for training, which :func:`baraquant.qat.prepare_` makes with
            ``from_float(module, config)``.
        forms: The classes that conversion may give, and how each is stored.
        convert: ``convert(prepared, integers)`` returns the converted module. ``integers`` are the
            quantized weight; None for a prepared layer that is no ``QuantizesWeight``.
        sizes: The attributes that must be equal in a converted module and the float one: the name
            in the converted one, and the name in the float one.
        why_not: Returns why a float module stays floating with a configuration, or None.
        keeps_input: Whether :func:`baraquant.quantize_` leaves the input floating, unless the
            configuration has ``conv_inputs=True``.
    """

    float_type: type[nn.Module] | None
    training: type[nn.Module]
    forms: tuple[Form, ...]
    convert: Convert
    sizes: Mapping[str, str]
    why_not: Callable[[nn.Module, QuantConfig], str | None] = lambda module, config: None
    keeps_input: bool = False

    @property
    def name(self) -> str:
        """The name of the float class."""
        assert self.float_type is not None
        return self.float_type.__name__

    @property
    def is_linear(self) -> bool:
        """Whether it becomes one of the linear layers, which compute a product with a matrix."""
        return self.forms == LINEAR_FORMS

    def matches(self, module: nn.Module) -> bool:
        """Whether a module is of the float class."""
        assert self.float_type is not None
        return isinstance(module, self.float_type)

    def base_of(self, module: nn.Module) -> type[nn.Module]:
        """Return the class whose forward the layer computes; a subclass may define another one."""
        return type(module) if self.float_type is None else self.float_type

    def own_names(self, module: nn.Module) -> set[str] | None:
        """Return those registered names of a float module that belong to the layer; None: all."""
        return own_names(module, self.base_of(module))

    def why_not_itself(self, module: nn.Module) -> str | None:
        """Return why no configuration can swap a module; None if one can."""
        return why_not(module, self.base_of(module))


def _why_not_embedding(module: nn.Module, config: QuantConfig) -> str | None:
    return None if module.max_norm is None else "its max_norm rewrites the weight"


def _row(
    float_type: type[nn.Module], training: type[Any], convert: Convert, **further: Any
) -> Layer:
    names = TABLE["layers"][float_type.__name__]
    forms = tuple(_FORMS[name] for name in names)
    sizes = {name: name for name in entry_of(names[0])["sizes"]}
    return Layer(float_type, training, forms, convert, sizes, **further)


def _conv(name: str) -> Layer:
    [served] = TABLE["layers"][name]
    convert = partial(served_conv, _FORMS[served].module)
    return _row(getattr(nn, name), getattr(bnn, f"FakeQuantized{name}"), convert, keeps_input=True)


class Experts(Layer):
    """The kind for mixtures of experts, whose weights have a dimension for the expert."""

    name = "module of experts"

    def matches(self, module: nn.Module) -> bool:
        """Whether a module holds experts, by the attributes that transformers gives them."""
        return is_experts(module)

    def own_names(self, module: nn.Module) -> set[str] | None:
        """Return the names of a float module's weights and biases."""
        form = experts_form(module)
        return None if form is None else form.own

    def why_not_itself(self, module: nn.Module) -> str | None:
        """Return why no configuration can swap a module."""
        return bnn.FakeQuantizedExperts.why_not(module)


class TransformersConv1D(Layer):
    """The kind for transformers' ``Conv1D``, found by its name: transformers is not imported."""

    name = "Conv1D"

    def matches(self, module: nn.Module) -> bool:
        """Whether a module is a ``Conv1D``: its class has that name and those sizes."""
        kind = type(module)
        is_theirs = kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
        return is_theirs and hasattr(module, "nx")


LAYERS: list[Layer] = [
    _row(nn.Linear, bnn.FakeQuantizedLinear, served_linear),
    TransformersConv1D(
        None,
        bnn.FakeQuantizedConv1D,
        LINEAR_FORMS,
        served_linear,
        {"in_features": "nx", "out_features": "nf"},
    ),
    _row(nn.Embedding, bnn.FakeQuantizedEmbedding, served_embedding, why_not=_why_not_embedding),
    Experts(
        None,
        bnn.FakeQuantizedExperts,
        (_FORMS["QuantizedExperts"],),
        lambda prepared, integers: served_experts(prepared),
        {"num_experts": "num_experts"},
    ),
    *(_conv(f"{kind}{dims}d") for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)),
]


def layers() -> list[Layer]:
    """Return all kinds of layers, registered ones first."""
    return LAYERS[::-1]


def layer_of(module: nn.Module) -> Layer | None:
    """Return the kind of a float module; None if it cannot be quantized."""
    if stage_of(module) != (None, None):
        return None
    return next((layer for layer in layers() if layer.matches(module)), None)


def stage_of(module: nn.Module) -> tuple[Layer | None, Form | None]:
    """Return the kind of a prepared module, and how a converted one is stored; None otherwise."""
    kind = plain_type(module)
    layer = next((layer for layer in layers() if layer.training is kind), None)
    forms = (form for layer in layers() for form in layer.forms if form.module is kind)
    return layer, next(forms, None)


def form_of(module: nn.Module) -> Form | None:
    """Return how a converted module is stored; None if it is not one."""
    return stage_of(module)[1]


def form_named(name: str) -> Form | None:
    """Return how modules of a class of this name are stored; None if there is no such class."""
    found = (form for layer in layers() for form in layer.forms if form.module.__name__ == name)
    return next(found, None)


def form_names() -> list[str]:
    """Return the names of all classes of converted modules."""
    return sorted({form.module.__name__ for layer in layers() for form in layer.forms})


def layer_with(form: Form) -> Layer:
    """Return the first kind of layer that may become modules of a form."""
    return next(layer for layer in LAYERS if form in layer.forms)


def layer_of_converted(module: nn.Module) -> Layer | None:
    """Return the kind of layer that a converted module replaces; None if it is not converted."""
    form = form_of(module)
    rows = [layer for layer in LAYERS if form in layer.forms]
    is_conv1d = is_transposed(module)
    return next((row for row in rows if isinstance(row, TransformersConv1D) is is_conv1d), None)


def is_transposed(module: nn.Module) -> bool:
    """Whether a float or converted linear layer has the inputs in the first dimension."""
    if is_converted(module):
        return bool(getattr(module, "transposed", False))
    return isinstance(layer_of(module), TransformersConv1D)


# ---- What modules have besides -------------------------------------------------------------------


def further_names(module: nn.Module) -> set[str]:
    """Return what a layer registers in addition to the tensors of its kind.

    These are the parameters, buffers and modules of a subclass, and those that a user has added.
    """
    if is_prepared(module) or is_converted(module):
        return set(getattr(module, "_further", ()))
    layer = layer_of(module)
    own = None if layer is None else layer.own_names(module)
    if own is None:
        return set()
    registered = {*module._parameters, *module._buffers, *module._modules}
    return registered - own - names_of_hooks(module) - {"parametrizations"}


def inside(modules: Mapping[str, nn.Module]) -> Callable[[str], bool]:
    """Return a function: whether a name is a tensor of one of some layers, float or converted."""
    further = {path: further_names(module) for path, module in modules.items()}
    longest = max(map(len, further), default=0)

    def is_inside(name: str) -> bool:
        for parent in parents(name[: longest + 1]):  # a file may have names of any length
            if parent in further:
                return name[len(parent) + 1 :].split(".")[0] not in further[parent]
        return False

    return is_inside


def is_prepared(module: nn.Module) -> bool:
    """Whether a module is a prepared layer."""
    return stage_of(module)[0] is not None


def is_converted(module: nn.Module) -> bool:
    """Whether a module is a converted layer."""
    return form_of(module) is not None


def is_adapter(module: nn.Module) -> bool:
    """Whether a module is a layer of PEFT's, which holds a layer of the model and what it adds.

    It is found by its name: PEFT is not imported.
    """
    return any(kind.__name__ == "BaseTunerLayer" for kind in type(module).__mro__)


def parts_of_adapters(model: nn.Module) -> set[int]:
    """Return the ids of the modules that adapters have beside the layers of the model."""
    return {
        id(part)
        for adapter in model.modules()
        if is_adapter(adapter)
        for name, child in adapter.named_children()
        if name != "base_layer"
        for part in child.modules()
    }


def unknown_weights(module: nn.Module) -> str | None:
    """Return why a module with weights has no quantized form; None if it has no weights."""
    if isinstance(module, (bnn.LearnedFakeQuantize, parametrize.ParametrizationList)):
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


def parents(name: str) -> list[str]:
    """Return the paths that contain a name, the shortest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def weights_of(module: nn.Module) -> list[Tensor]:
    """Return the parameters of a float module that quantization turns into integers."""
    return [
        parameter
        for name, parameter in module._parameters.items()
        if parameter is not None and not is_lazy(parameter)
        if parameter.dim() > 1 and not name.endswith("bias")
    ]


# ---- The kinds of layers of a user --------------------------------------------------------------


def register_layer(
    float_type: type[nn.Module],
    training: type[nn.Module],
    inference: type[nn.Module],
    *,
    options: Sequence[str] = (),
    tensors: Mapping[str, bool] | None = None,
    sizes: Mapping[str, str] | Sequence[str] = (),
    why_not: Callable[[nn.Module, QuantConfig], str | None] | None = None,
) -> None:
    """Register a kind of layer of your own.

    From then on :func:`baraquant.qat.prepare_`, :func:`baraquant.qat.convert_`,
    :func:`baraquant.quantize_`, :func:`baraquant.save` and :func:`baraquant.load_` handle it, in
    this process. A subclass of ``float_type`` that defines its own ``forward`` is not swapped.

    Reports say that such a layer computes in floating point, unless it has an attribute
    ``is_integer`` that is True: in the class for inference, or, where it depends on the
    configuration, in the objects of both classes.

    Args:
        float_type: The float module. Its weight is the parameter ``weight``.
        training: The class for training, a subclass of :class:`baraquant.nn.QuantizesWeight` with a
            class method ``from_float(module, config)`` that shares the module's parameters.
        inference: The class for inference, a subclass of :class:`baraquant.nn.HoldsIntegers` with a
            class method ``from_prepared(prepared, integers)``. ``integers`` has ``qweight``,
            ``scale`` and ``zero_point`` (None if symmetric). The constructor takes its tensors and
            its options as keyword arguments.
        options: The names of the constructor's plain arguments: booleans, integers, strings, lists
            of integers, or None. The module has them as attributes of the same names.
            ``input_fake_quant``, a :class:`baraquant.nn.FakeQuantize` or None, may be listed too.
            ``weight_bits`` and ``dtype`` are always options; do not list them.
        tensors: The names of the constructor's tensors in the state dict, and whether each is
            required. None: ``qweight`` and ``weight_scale`` are required, and ``bias`` is optional.
        sizes: The attributes that must be equal in the float module and the quantized one. If their
            names differ: a mapping from the quantized module's name to the float module's.
        why_not: A function of a float module and a :class:`baraquant.QuantConfig`. It returns the
            reason why the module stays floating with this configuration, or None.

    Raises:
        TypeError: A class does not meet the requirements above.
        ValueError: The class is registered already.

    Example:
        ``docs/guide.md`` has one.
    """
    where = "baraquant.register_layer"
    needed = {
        "training": (training, bnn.QuantizesWeight, "from_float"),
        "inference": (inference, bnn.HoldsIntegers, "from_prepared"),
    }
    # torch.nn.Module itself would claim every module of a model.
    is_module = isinstance(float_type, type) and issubclass(float_type, nn.Module)
    if not is_module or float_type is nn.Module:
        raise TypeError(
            f"{where}: expected float_type to be a class of modules, but got {float_type!r}"
        )
    for name, (kind, base, method) in needed.items():
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise TypeError(
                f"{where}: expected {name} to be a subclass of {base.__name__}, but got {kind!r}"
            )
        if not callable(getattr(kind, method, None)):
            raise TypeError(f"{where}: expected {kind.__name__} to have a class method {method}")
    for layer in LAYERS:
        if layer.float_type is float_type:
            raise ValueError(f"{where}: {float_type.__name__} is registered already")
        if layer.training is training or any(f.module is inference for f in layer.forms):
            raise ValueError(f"{where}: expected classes of its own for {float_type.__name__}, "
                             "but another kind of layer has one of them")  # fmt: skip
    if form_named(inference.__name__) is not None:
        raise ValueError(
            f"{where}: expected a name of its own for {inference.__name__}: it stands in files"
        )
    form = form_of_registered(inference, options, tensors)
    pairs = dict(sizes) if isinstance(sizes, Mapping) else {name: name for name in sizes}
    reason = (lambda module, config: None) if why_not is None else why_not
    LAYERS.append(Layer(float_type, training, (form,), inference.from_prepared, pairs, reason))
