# SPDX-License-Identifier: BSD-3-Clause
"""``BaraquantConfig`` and its quantizer, which quantizes while ``from_pretrained`` loads.

transformers 5 asks ``param_needs_quantization`` for each tensor and hands it to the operation that
``get_quantize_ops`` returns; transformers 4.57 hands it to ``create_quantized_param``. Both arrive
at :class:`~baraquant.workflow.stream.Stream`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.quantizers import auto
from transformers.utils.quantization_config import QuantizationConfigMixin

from .._table import some
from ..configs import Config
from ..nn.shared.experts import is_experts
from ..workflow.layers import layer_of, parents
from ..workflow.passes import what_needs_calibration
from ..workflow.report import FILTERED, Report
from ..workflow.select import Rule, Rules
from ..workflow.stream import Stream
from ..workflow.transaction import replace_inference_tensors
from ._versions import ConversionOps, mark_loaded, stop_telling, tell_missing
from ._writer import WritesCompressedTensors, note_ties, unknown_parts

NAME = "baraquant"
CALLER = "BaraquantConfig"


class BaraquantConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How ``from_pretrained`` quantizes a float model while it loads the weights.

    A single scheme quantizes the linear layers (``nn.Linear`` and transformers' ``Conv1D``) except
    the output layer, as transformers' own quantizers do. A dictionary quantizes what its keys
    name, the output layer and embeddings too. The numbers are those of loading the float model and
    calling :func:`baraquant.quantize_`.

    ``model.hf_quantizer.report`` shows what was quantized. ``save_pretrained`` writes the format
    compressed-tensors.

    Args:
        scheme: As ``config`` in :func:`baraquant.quantize_`: a configuration, or a dictionary from
            path patterns or types to configurations. It must do without calibration data.
        modules_to_not_convert: Names of modules that stay floating, with all that they contain:
            the start of a path (``"model.layers.0"``), its end (``"k_proj"``), or a regular
            expression that matches its start. None: for a single scheme the output layer and
            whatever is tied to it; for a dictionary nothing.
        serve: The program that ``save_pretrained`` writes for, as in
            :func:`baraquant.export.to_compressed_tensors`; None checks no program's limits.

    Raises:
        TypeError: An argument has another type.
        ValueError: The scheme needs calibration data, or there is none.

    Example:
        >>> import baraquant.transformers
        >>> from torch import nn
        >>> config = baraquant.transformers.BaraquantConfig(
        ...     {"lm_head": None, "*.mlp.*": baraquant.W4A16(32), nn.Linear: baraquant.W8A8()}
        ... )
        >>> # AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    """

    def __init__(
        self,
        scheme: Config | Mapping[Rule, Config | None],
        modules_to_not_convert: list[str] | tuple[str, ...] | None = None,
        serve: str | None = None,
    ) -> None:
        rules = Rules(scheme, CALLER, trains=False)
        for one in rules.configs():
            what = what_needs_calibration(one)
            if what is not None:
                raise ValueError(
                    f"{CALLER}: expected a scheme that needs no calibration data, but got {what} "
                    f"({one}); load the floating model, then call "
                    "baraquant.quantize_(model, scheme, calibration=...)"
                )
        self.quant_method = NAME
        self.scheme = dict(scheme) if isinstance(scheme, Mapping) else scheme
        self.modules_to_not_convert = _checked_names(modules_to_not_convert)
        self.serve = serve
        # What save_pretrained writes into config.json, once it is known.
        self.written: dict[str, Any] | None = None

    @property
    def is_one(self) -> bool:
        """Whether there is one scheme for all layers."""
        return not isinstance(self.scheme, dict)

    def to_dict(self) -> dict[str, Any]:
        """Return what is written into ``config.json``.

        For a model that is being saved, or has been, this is what compressed-tensors reads.
        """
        if self.written is not None:
            return dict(self.written)
        return {
            "quant_method": NAME,
            "scheme": _as_data(self.scheme),
            "modules_to_not_convert": self.modules_to_not_convert,
            "serve": self.serve,
        }

    to_diff_dict = to_dict  # transformers 4.57 prints a model's configuration with it

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Refuse a ``config.json`` with this configuration: no quantized folder holds it.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"{CALLER}: expected a folder that save_pretrained of a quantized model wrote, but its "
            f"config.json has quant_method {NAME!r}, which only describes a quantization to come; "
            "save the model itself (model.save_pretrained), or remove quantization_config there"
        )


def _checked_names(names: Any) -> list[str] | None:
    if names is None:
        return None
    if isinstance(names, (list, tuple, set, frozenset)):
        wrong = [name for name in names if not isinstance(name, str) or not name]
        if not wrong:
            return sorted(names) if isinstance(names, (set, frozenset)) else list(names)
        got = f"{wrong[0]!r} in it"
    else:
        got = type(names).__name__
    raise TypeError(
        f"{CALLER}: expected modules_to_not_convert to be a list of names of modules, but got {got}"
    )


def _as_data(scheme: Any) -> Any:
    if not isinstance(scheme, dict):
        return scheme.to_dict()
    return {
        key if isinstance(key, str) else key.__name__: None if one is None else one.to_dict()
        for key, one in scheme.items()
    }


class BaraquantQuantizer(WritesCompressedTensors):
    """Quantizes the layers of a model while its weights are loaded.

    Attributes:
        report: What was quantized, and what was left out and why. None before the model is loaded.
    """

    caller = CALLER
    requires_calibration = False
    requires_parameters_quantization = True  # transformers 4.57 asks for it
    quantization_config: BaraquantConfig

    def __init__(self, quantization_config: BaraquantConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.serve = quantization_config.serve
        self.report: Report | None = None
        self._stream: Stream | None = None
        self._missing: set[str] = set()
        self._kept_paths: set[str] = set()

    def _process_model_before_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        config = self.quantization_config
        kept = self._kept_paths = self._kept(model)

        def takes(module: nn.Module, name: str) -> bool:
            if config.is_one:
                layer = layer_of(module)
                if layer is None or layer.name not in ("Linear", "Conv1D"):
                    return False
            return name not in kept

        _tie(model)
        self._stream = Stream(model, config.scheme, CALLER, takes)
        _untie(model, self._stream)
        tell_missing(model, self._missing.update)
        return model

    def _kept(self, model: Any) -> set[str]:
        """Return the paths of modules that stay floating; a name that matches none is an error."""
        config = self.quantization_config
        names = config.modules_to_not_convert
        if names is None and not config.is_one:
            names = []
        paths = [path for path, _ in model.named_modules() if path]
        for name in names or ():
            if not any(_matches(name, path) for path in paths):
                raise ValueError(
                    f"{CALLER}: expected modules_to_not_convert to name modules of the model, but "
                    f"{name!r} matches none of them, for example not {', '.join(paths[:3])}"
                )
        in_float32 = list(getattr(model, "_keep_in_fp32_modules", None) or ())
        skipped = self.get_modules_to_not_convert(model, names, in_float32)
        kept = {path for path in paths if any(_matches(name, path) for name in skipped)}
        return {path for path in paths if path in kept or not kept.isdisjoint(parents(path))}

    def param_needs_quantization(self, model: nn.Module, param_name: str, **kwargs: Any) -> bool:
        """Whether a tensor of the file is the weight of a layer to quantize."""
        stream = self._stream
        return stream is not None and param_name not in self._missing and stream.takes(param_name)

    def get_quantize_ops(self) -> ConversionOps:
        """Return the operation that quantizes a weight when it arrives (transformers 5)."""
        return QuantizeOnLoad(self)

    def create_quantized_param(
        self, model: nn.Module, param_value: Tensor, param_name: str, target_device: Any, **_: Any
    ) -> None:
        """Quantize a weight when it arrives (transformers 4.57)."""
        assert self._stream is not None
        if "device_mesh" in _:
            raise ValueError(
                f"{CALLER}: expected a model on whole devices, but tensor parallelism splits its "
                "weights; load without tp_plan"
            )
        self._stream.add(param_name, param_value.to(target_device))

    def update_missing_keys(self, model: nn.Module, missing_keys: list[str], prefix: str) -> Any:
        """Note which tensors the file does not hold (transformers 4.57)."""
        self._missing.update(missing_keys)
        return missing_keys

    def take(
        self, model: nn.Module, tensors: dict[str, Any], missing: set[str] | None
    ) -> dict[str, Any]:
        """Quantize those of some tensors that are to be, and return the others.

        A weight that cannot be quantized is returned too: transformers reports a wrong shape, and
        :meth:`Stream.finish` raises any other error, with the path of the layer.
        """
        stream, rest = self._stream, {}
        assert stream is not None
        self._missing = set() if missing is None else missing
        for name, given in tensors.items():
            value = given[0] if isinstance(given, list) else given
            if stream.takes(name) and value.shape != stream.shape(name):
                stream.refuse([name])
            if not stream.takes(name):
                rest[name] = given
                continue
            try:
                paths = stream.add(name, value)
            except (ValueError, TypeError):
                stream.refuse([name])
                rest[name] = given
                continue
            self._missing -= {f"{path}.weight" for path in paths}
            for path in paths:
                mark_loaded(model.get_submodule(path))
        return rest

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        stream, self._stream = self._stream, None
        assert stream is not None
        stop_telling(model)
        report = stream.finish()
        reasons = {
            path: self._why_filtered(path) if reason == FILTERED else reason
            for path, reason in report.left_out.items()
        }
        self.report = replace(report, left_out=reasons)
        self._warn_of_experts(model)
        self._fill_missing(model)
        self.report = replace(self.report, left_out=reasons | unknown_parts(model))
        note_ties(model)
        replace_inference_tensors(model)
        return model

    def _warn_of_experts(self, model: nn.Module) -> None:
        """Say what share stays floating where one scheme leaves experts out."""
        report = self.report
        assert report is not None
        if not self.quantization_config.is_one:
            return
        paths = [path for path in report.left_out if is_experts(model.get_submodule(path))]
        if paths:
            size = sum(report.parameters.get(path, 0) for path in paths)
            warnings.warn(
                f"{CALLER}: one scheme quantizes linear layers alone, and leaves the experts "
                f"{some(paths, 1)} floating: {100 * report.share:.0f} % of the "
                f"parameters are integers, and {100 * size / report.total_parameters:.0f} % belong "
                "to these experts; give a dictionary with a rule for their paths, or load the "
                "floating model and call baraquant.quantize_",
                UserWarning,
                stacklevel=2,
            )

    def _why_filtered(self, path: str) -> str:
        if path not in self._kept_paths:
            return "one scheme for all layers quantizes linear layers alone"
        if self.quantization_config.modules_to_not_convert is None:
            return "transformers keeps it floating: an output layer, or a weight tied to it"
        return "it is in modules_to_not_convert, or kept in float32"

    def _fill_missing(self, model: nn.Module) -> None:
        """Set the biases that the file lacks to 0, as transformers does for a linear layer."""
        assert self.report is not None
        for path in self.report.changed:
            bias = getattr(model.get_submodule(path), "bias", None)
            if isinstance(bias, Tensor) and f"{path}.bias" in self._missing:
                with torch.no_grad():
                    bias.zero_()


class QuantizeOnLoad(ConversionOps):  # type: ignore[misc]
    """The operation of transformers 5 for a weight that is quantized when it arrives."""

    def __init__(self, quantizer: BaraquantQuantizer) -> None:
        self._quantizer = quantizer

    def convert(
        self,
        input_dict: dict[str, Any],
        *args: Any,
        model: Any = None,
        missing_keys: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Quantize the tensors that are to be, and return the others."""
        return self._quantizer.take(model, input_dict, missing_keys)


def register() -> None:
    """Make ``from_pretrained`` know the configuration and its quantizer."""
    auto.AUTO_QUANTIZATION_CONFIG_MAPPING[NAME] = BaraquantConfig
    auto.AUTO_QUANTIZER_MAPPING[NAME] = BaraquantQuantizer


def _matches(name: str, path: str) -> bool:
    """Whether a name of ``modules_to_not_convert`` means a module, by the rule of transformers."""
    try:
        starts = re.match(rf"(?:{name})(?:(?<=\.)|(?=\.|$))", path) is not None
    except re.error:
        starts = False
    return starts or path.endswith(name)


def _tie(model: Any) -> None:
    """Tie the weights, which transformers 5 does only after it has loaded them."""
    for target, source in getattr(model, "all_tied_weights_keys", {}).items():
        path, _, leaf = target.rpartition(".")
        setattr(model.get_submodule(path), leaf, model.get_parameter(source))


def _untie(model: Any, stream: Stream) -> None:
    """Take the ties of layers that are quantized from transformers: the stream knows them.

    Where only one side of a tie is quantized, or another tensor of a layer is tied, such as a bias,
    it waits until transformers has tied the weights.
    """
    ties = getattr(model, "all_tied_weights_keys", None)
    if ties is None:  # transformers 4.57 ties the weights itself, before and after it loads them
        stream.refuse_ties()
        return
    for name in (*ties.keys(), *ties.values()):
        path, _, leaf = name.rpartition(".")
        if leaf != "weight":
            stream.refuse([f"{path}.weight"])
    for target, source in list(ties.items()):
        both = stream.takes(target), stream.takes(source)
        if all(both):
            del ties[target]
        elif any(both):
            stream.refuse([target, source])
