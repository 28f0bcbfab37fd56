# SPDX-License-Identifier: BSD-3-Clause
"""``register_layer`` adds a user's own kind of layer to the table of :mod:`.layers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from .. import nn as bnn
from ..configs import QuantConfig
from .forms import form_of_registered
from .layers import LAYERS, Layer, form_named


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
        raise TypeError(f"{where}: expected float_type to be a class of modules, but got "
                        f"{float_type!r}")  # fmt: skip
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
