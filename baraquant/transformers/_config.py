# SPDX-License-Identifier: BSD-3-Clause
"""``BaraquantConfig``: what ``from_pretrained`` takes as ``quantization_config``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.utils.quantization_config import QuantizationConfigMixin

from ..configs import Config
from ..workflow.passes import what_needs_calibration
from ..workflow.select import Rule, Rules

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

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the same; transformers 4.57 prints a model's configuration with it."""
        return self.to_dict()

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
