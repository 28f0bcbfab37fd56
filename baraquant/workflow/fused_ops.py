# SPDX-License-Identifier: BSD-3-Clause
"""``use_fused_ops_``: swaps norms and activations for modules that call the fused family's ops."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from .. import nn as bnn
from ..nn.shared.subclassed import MisfitError, is_close, take_over, tried
from .replace import put, replace_modules
from .report import Report
from .select import Filter, filter_of
from .transaction import changes_model
from .view import Decision, FilterFn, ModelView, Swap, choose_swaps

_CALLER = "baraquant.use_fused_ops_"
FUSED = (bnn.RMSNorm, bnn.LayerNorm, bnn.GELU, bnn.GatedMLP)
# The names of the three linear layers in the modules that a GatedMLP may replace.
_MLP_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps")
# How near the result of another package's module has to be.
_EXACT = 1e-7
_CLOSE = 1e-5  # of a norm, which may compute in float32 whatever it is given


@changes_model
def use_fused_ops_(model: nn.Module, filter_fn: FilterFn | None = None) -> Report:
    """Swap the norms and activations of a model, in place, for modules whose bits are defined.

    * LayerNorm and RMSNorm become :class:`baraquant.nn.LayerNorm` and
      :class:`baraquant.nn.RMSNorm`,
    * GELU becomes :class:`baraquant.nn.GELU`,
    * a module that computes ``down(silu(gate(x)) * up(x))``, such as Llama's, becomes a
      :class:`baraquant.nn.GatedMLP`.

    Modules of other packages count if they compute the same in a trial on random numbers: those of
    transformers, and RMSNorms that multiply by ``1 + weight``. The new modules share the parameters
    and have the same names in the state dict.

    Then a norm or an activation gives the same bits in training, in evaluation and fused with the
    quantization of what it computes: :class:`baraquant.graph.Fuse` does that under
    ``torch.compile``, and a ``GatedMLP`` by itself. The results differ from those of the modules
    before in their last bits, so call it before training, or evaluate the model again. It may come
    before or after :func:`baraquant.qat.prepare_`, :func:`baraquant.qat.convert_` and
    :func:`baraquant.quantize_`, which do not touch these modules. :func:`baraquant.save` notes
    them, and :func:`baraquant.load_` swaps them again.

    An error of any kind, also an interrupt, leaves the model unchanged.

    Args:
        model: The model; the root itself is not swapped.
        filter_fn: ``filter_fn(module, name)`` says whether to swap a module; None swaps all.

    Returns:
        A report of what was swapped, and of the norms that were left out and why; ``print`` shows
        it.

    Raises:
        ValueError: There is nothing to swap, or the model is wrapped for several processes.
        TypeError: ``model`` is not a module or is scripted, or ``filter_fn`` is not a function.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
        >>> baraquant.use_fused_ops_(model).changed
        {'1': 'GELU', '2': 'LayerNorm'}
    """
    chosen_by = filter_of(filter_fn)
    report = swap_for_fused(model, _CALLER, chosen_by)
    if report.changed and isinstance(chosen_by, Filter):
        chosen_by.warn_if_useless(_CALLER)
    if not report.changed:
        raise ValueError(
            f"{_CALLER}: expected a model with a LayerNorm, an RMSNorm, a GELU or a gated MLP to "
            f"swap, but {type(model).__name__} has none{report.reasons()}"
        )
    return report


def swap_for_fused(model: nn.Module, caller: str, filter_fn: FilterFn | None = None) -> Report:
    """Swap what can be swapped, which may be nothing."""
    return replace_modules(model, caller, _decide, filter_fn, _is_candidate)


def swap_fused(model: nn.Module, caller: str, paths: set[str]) -> None:
    """Swap the modules at some paths for those of the fused ops, or raise a ValueError."""

    def decide(module: nn.Module, name: str) -> Decision:
        return _decide(module, name) if name in paths else None

    swaps = choose_swaps(ModelView(model, caller), caller, decide)[0] if paths else {}
    put(model, swaps.values())
    at = dict(model.named_modules(remove_duplicate=False))
    for path in sorted(paths - swaps.keys()):
        if not isinstance(at.get(path), FUSED):
            got = type(at[path]).__name__ if path in at else "no such module"
            raise ValueError(
                f"{path}: expected a norm, a GELU or a gated MLP, which use_fused_ops_ has "
                f"swapped, but the model has {got}"
            )


def _is_candidate(module: nn.Module) -> bool:
    if isinstance(module, FUSED):
        return False
    return _is_norm(module) or _is_gelu(module) or _mlp_names(module) is not None


def _decide(module: nn.Module, name: str) -> Decision:
    if not _is_candidate(module):
        return None
    if "forward" in vars(module) or parametrize.is_parametrized(module):
        return "its forward was replaced, or its parameters are computed"
    if _is_norm(module):
        made = _norm(module)
    elif _is_gelu(module):
        made = _gelu(module)
    else:
        made = _gated_mlp(module)
    if isinstance(made, nn.Module):
        take_over(made, module)
        return Swap(made, type(made).__name__)
    return made


# ---- Norms --------------------------------------------------------------------------------------


def _is_norm(module: nn.Module) -> bool:
    name = type(module).__name__
    return name.endswith(("LayerNorm", "RMSNorm")) and not module._modules


def _norm(module: nn.Module) -> nn.Module | str:
    """Return the norm that takes a module's place, or why there is none."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if set(module._parameters) - {"weight", "bias"} or module._buffers:
        return "it has other parameters than a weight and a bias"
    shape = getattr(module, "normalized_shape", None) if weight is None else weight.shape
    if shape is None or len(shape) != 1:
        return "it normalizes over more than the last dimension"
    eps = next((e for n in _EPS_NAMES if isinstance(e := getattr(module, n, 0), float)), None)
    if eps is None and not isinstance(module, nn.RMSNorm):
        return "its epsilon is not known"
    made: list[nn.Module] = []
    if bias is None:
        made += [bnn.RMSNorm.from_float(module, eps, offset) for offset in (0.0, 1.0)]
    if eps is not None:
        made.append(bnn.LayerNorm.from_float(module, eps))
    for new in made:
        if _is_same_norm(module, new, int(shape[0])):
            return new
    return "it computes something else than a LayerNorm or an RMSNorm"


def _is_same_norm(module: nn.Module, new: nn.Module, size: int) -> bool:
    """Whether two norms give the same on random numbers, with random parameters."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        numbers: dict[int, Any] = {
            id(p): nn.Parameter(torch.randn(size, dtype=torch.float64), requires_grad=False)
            for p in module._parameters.values()
            if p is not None
        }
        rows = torch.randn(4, size, dtype=torch.float64) * 10
        rows[1] *= 1e-3  # where eps counts
        rows[2] += 3
        wanted = copy.deepcopy(new, dict(numbers)).forward(rows)
        return all(
            _gives(copy.deepcopy(module, dict(numbers)).train(mode), rows, wanted, _CLOSE)
            for mode in (False, True)
        )


def _gives(module: nn.Module, input: Tensor, wanted: Tensor, tolerance: float) -> bool:
    """Whether a module of another package gives some numbers."""
    try:
        got = tried(module.forward, input)
    except MisfitError:  # it is no module as it is known here
        return False
    return is_close(got.double() if isinstance(got, Tensor) else got, wanted, tolerance)


# ---- Activations --------------------------------------------------------------------------------


def _is_gelu(module: nn.Module) -> bool:
    is_plain = not (module._parameters or module._buffers or module._modules)
    return is_plain and "gelu" in type(module).__name__.lower()


def _gelu(module: nn.Module) -> nn.Module | str:
    x = torch.linspace(-12, 12, 481, dtype=torch.float64, device="cpu")
    for approximate in ("none", "tanh"):
        if _gives(module, x, F.gelu(x, approximate=approximate), _EXACT):
            return bnn.GELU(approximate)
    return "it computes another approximation of GELU"


class _Given(nn.Module):  # type: ignore[misc]
    """A layer that returns given numbers, or its input, and notes what it gets."""

    def __init__(self, output: Tensor | None) -> None:
        super().__init__()
        self.output, self.inputs = output, list[Any]()

    def forward(self, input: Tensor) -> Tensor:
        self.inputs.append(input)
        return input if self.output is None else self.output


def _mlp_names(module: nn.Module) -> tuple[str, str, str] | None:
    for names in _MLP_NAMES:
        if all(isinstance(module._modules.get(name), nn.Module) for name in names):
            return names
    return None


def _gated_mlp(module: nn.Module) -> nn.Module | str:
    names = _mlp_names(module)
    assert names is not None
    if module._parameters or module._buffers:
        return "it has parameters beside its three layers"
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("cpu"):
        if not all(_is_gated(module, names, mode) for mode in (False, True)):
            return "its forward is not that of a gated MLP with SiLU"
    return bnn.GatedMLP.from_float(module, names)


def _is_gated(module: nn.Module, names: tuple[str, str, str], mode: bool) -> bool:
    """Whether a module computes a gated MLP, whatever its three layers compute."""
    x, gate, up = (torch.randn(32, 32, dtype=torch.float64) for _ in range(3))
    given = _Given(gate), _Given(up), _Given(None)
    others = {name: copy.deepcopy(m) for name, m in module._modules.items() if name not in names}
    trial = copy.copy(module)
    vars(trial)["_modules"] = {**others, **dict(zip(names, given, strict=True))}
    trial.train(mode)
    if not _gives(trial, x, F.silu(gate) * up, _EXACT):
        return False
    is_once = all(len(layer.inputs) == 1 for layer in given)
    return is_once and all(layer.inputs[0] is x for layer in given[:2])
