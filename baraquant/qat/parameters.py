# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of a model in training: their groups for an optimizer, and which are trained."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from ..nn.training.learned import LearnedFakeQuantize
from ..workflow.view import check_is_module

_WEIGHTS, _VECTORS, _SCALES = "weights", "vectors", "scales"


def parameter_groups(
    model: nn.Module,
    lr: float | Tensor,
    weight_decay: float = 0.01,
    scale_lr: float | Tensor | None = None,
) -> list[dict[str, Any]]:
    """Return the parameters of a model in the groups that an optimizer should treat differently.

    * ``weights``: matrices and kernels, of prepared layers and of others.
    * ``vectors``: norms, biases and everything else with one dimension, without weight decay.
    * ``scales``: learned scales and zero points, with their own learning rate and without weight
      decay, which would pull them towards 0 ("Learned Step Size Quantization", Esser et al. 2020).

    Every parameter is in one group, once where it is tied, frozen ones too. A group without
    parameters is left out. Call it after :func:`prepare_`, which makes the scales, and after
    ``fully_shard``, which replaces parameters.

    Args:
        model: Prepared, or floating for comparison.
        lr: The learning rate of weights and vectors.
        weight_decay: Of the weights.
        scale_lr: The learning rate of scales; None: ``lr``. Their gradients contain the factor of
            the paper, ``1 / sqrt(n * quant_max)``.

    Returns:
        For each group a dictionary of ``name``, ``params``, ``param_names`` (the paths in the
        model), ``lr`` and ``weight_decay``, as ``torch.optim`` takes it.

    Raises:
        TypeError: ``model`` is not a module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> report = baraquant.qat.prepare_(model, baraquant.W4A8(2, learned=True))
        >>> groups = baraquant.qat.parameter_groups(model, 1e-3, scale_lr=1e-4)
        >>> [(group["name"], len(group["params"])) for group in groups]
        [('weights', 1), ('vectors', 1), ('scales', 2)]
        >>> optimizer = torch.optim.AdamW(groups)
    """
    check_is_module(model, "baraquant.qat.parameter_groups")
    found: dict[str, dict[str, Tensor]] = {_WEIGHTS: {}, _VECTORS: {}, _SCALES: {}}
    for name, parameter, kind in _kinds(model):
        found[kind][name] = parameter
    scale_lr = lr if scale_lr is None else scale_lr
    rates = {_WEIGHTS: (lr, weight_decay), _VECTORS: (lr, 0.0), _SCALES: (scale_lr, 0.0)}
    return [
        {
            "name": kind,
            "params": list(named.values()),
            "param_names": list(named),
            "lr": rates[kind][0],
            "weight_decay": rates[kind][1],
        }
        for kind, named in found.items()
        if named
    ]


class FrozenWeights:
    """What :func:`freeze_weights` has frozen; it is a context manager too, which thaws at its end.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> report = baraquant.qat.prepare_(model, baraquant.W4A8(2, learned=True))
        >>> with baraquant.qat.freeze_weights(model):
        ...     model[0].weight.requires_grad
        False
        >>> model[0].weight.requires_grad
        True
    """

    def __init__(self, before: list[tuple[Tensor, bool]]) -> None:
        self._before = before

    def thaw(self) -> None:
        """Let every parameter require a gradient as it did before; a second call does nothing."""
        for parameter, requires_grad in self._before:
            parameter.requires_grad_(requires_grad)
        self._before = []

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Thaw."""
        self.thaw()


def freeze_weights(model: nn.Module) -> FrozenWeights:
    """Let a prepared model train its learned scales and zero points alone.

    All other parameters, also norms, biases and adapters, no longer require a gradient, and lose
    the one that they have, so that no optimizer moves them. Learned scales and zero points require
    one. Training the scales alone is the second phase of "EfficientQAT" (Chen et al. 2024).

    Call it before the model is compiled or wrapped for several processes, as
    DistributedDataParallel looks once at what requires a gradient.

    Args:
        model: Prepared with learned scales.

    Returns:
        An object whose ``thaw()`` undoes it. Until then it keeps the parameters alive.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: The model has no learned scale.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> report = baraquant.qat.prepare_(model, baraquant.W4A8(2, learned=True))
        >>> frozen = baraquant.qat.freeze_weights(model)
        >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        ['0.weight_fake_quant.scale', '0.weight_fake_quant.largest_step']
        >>> frozen.thaw()
    """
    check_is_module(model, "baraquant.qat.freeze_weights")
    kinds = list(_kinds(model))
    if all(kind != _SCALES for _, _, kind in kinds):
        raise ValueError(
            "baraquant.qat.freeze_weights: expected a model with learned scales, but "
            f"{type(model).__name__} has none; prepare it with TensorConfig(..., learned=True), "
            "such as QuantConfig(TensorConfig(4, learned=True)), or with W4A8(32, learned=True)"
        )
    frozen = FrozenWeights([(parameter, parameter.requires_grad) for _, parameter, _ in kinds])
    for _, parameter, kind in kinds:
        parameter.requires_grad_(kind == _SCALES)
        if kind != _SCALES:
            parameter.grad = None
    return frozen


def _kinds(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, str]]:
    """Yield each parameter once, with its first path and its group."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            # Experts have matrices of biases, and norms over several dimensions such weights.
            is_vector = parameter.dim() <= 1 or name.endswith("bias")
            is_vector = is_vector or "Norm" in type(module).__name__
            kind = _VECTORS if is_vector else _WEIGHTS
            kind = _SCALES if isinstance(module, LearnedFakeQuantize) else kind
            yield f"{path}.{name}" if path else name, parameter, kind
