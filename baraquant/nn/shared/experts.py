# SPDX-License-Identifier: BSD-3-Clause
"""Experts whose weights are parameters of three dimensions: their layout, and how they run.

transformers declares such classes with ``use_experts_implementation``, which sets attributes that
say how the weights are laid out (:class:`Form`). The classes are recognized by these attributes;
transformers is not imported. Between its two products a class runs its own code (``_apply_gate``,
``act_fn``). This code runs unchanged, on an instance of the class that has no weights.

The rows of both products are sorted by expert. ``offsets`` is int32 ``[E]``: the rows of expert
``e`` end before ``offsets[e]``. Rows after the last offset belong to no expert and give 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from typing_extensions import Self

from ... import ops
from .product import quantized_by

# The dtypes that the ops compute with.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Form:
    """How a class of experts lays out its weights.

    Attributes:
        is_transposed: Whether weights are ``[E, K, N]``, else ``[E, N, K]``.
        has_bias: Whether each weight has a ``<name>_bias``, ``[E, N]``.
        has_gate: Whether the first weight is ``gate_up_proj``, else ``up_proj``.
        has_norm: Whether ``post_expert_norm`` comes after the second product.
        is_routed: Whether the module is given the experts of each token; else the tokens come
            sorted by expert, the same number for each, and each expert's output is returned.
    """

    is_transposed: bool = False
    has_bias: bool = False
    has_gate: bool = True
    has_norm: bool = False
    is_routed: bool = True

    @property
    def up(self) -> str:
        """The name of the first weight."""
        return "gate_up_proj" if self.has_gate else "up_proj"

    @property
    def weights(self) -> tuple[str, str]:
        """The names of both weights."""
        return self.up, "down_proj"

    @property
    def own(self) -> set[str]:
        """The names of all weights and biases."""
        return {name + end for name in self.weights for end in ("", "_bias")}

    def canonical(self, weight: Tensor) -> Tensor:
        """Convert a weight from the layout of the class to ``[E, N, K]``, or back."""
        return weight.transpose(1, 2) if self.is_transposed else weight


# Classes of transformers that do not declare their layout.
_FORMS = {
    "Step3p7Experts": Form(),
    "Llama4TextExperts": Form(is_transposed=True, is_routed=False),
}
# Classes of another kind, and the reason why each stays floating.
_OTHERS = {
    "DbrxExpertGLU": "its weights have two dimensions, and its forward is given slices of them",
    "DbrxExperts": "the weights are those of its mlp",
    "InklingSharedExperts": "it has three weights, and every token goes through all experts",
    "JetMoeParallelExperts": "it is one product, whose caller sorts the tokens",
    "LongcatFlashExperts": "some of its experts hand on their input",
}


def form_of(module: nn.Module) -> Form | None:
    """Return the form of a module of experts, floating or quantized; None for any other module."""
    if isinstance(module, RunsExperts):
        return module.form
    own = vars(module)
    if {"has_gate", "has_bias", "is_transposed"} <= own.keys() and _gate(module) is not None:
        return Form(
            is_transposed=bool(own["is_transposed"]),
            has_bias=bool(own["has_bias"]),
            has_gate=bool(own["has_gate"]),
            has_norm=bool(own.get("has_post_expert_norm", False)),
        )
    return _FORMS.get(type(module).__name__)


def is_experts(module: nn.Module) -> bool:
    """Whether a module holds floating experts of a known form."""
    return not isinstance(module, RunsExperts) and form_of(module) is not None


def why_not(module: nn.Module) -> str | None:
    """Return why a module cannot become experts of :mod:`baraquant.nn`; None if it can."""
    form, kind = form_of(module), type(module).__name__
    if isinstance(module, RunsExperts):
        return f"it is a {kind} already"
    if form is None:
        other = "it does not declare the interface of transformers for experts"
        return _OTHERS.get(kind, other)
    if parametrize.is_parametrized(module):
        return "its weight is computed by a parametrization"
    for method in ("forward", "_apply_gate"):
        if method in vars(module):
            return f"its {method} was replaced by another"
    if kind not in _FORMS and not hasattr(type(module).forward, "__wrapped__"):
        return f"{kind} has a forward of its own"
    for name in form.weights:
        weight = module._parameters.get(name)
        if weight is None:
            return f"its {name} is no parameter"
        if type(weight) is not nn.Parameter:
            return f"its {name} is a {type(weight).__name__}"
        if weight.dtype not in _DTYPES:
            return f"its {name} is {weight.dtype}"
        if form.has_bias and module._parameters.get(f"{name}_bias") is None:
            return f"its {name}_bias is no parameter"
    return _why_not_shapes(form, module)


def _why_not_shapes(form: Form, module: nn.Module) -> str | None:
    up, down = (getattr(module, name) for name in form.weights)
    shapes = f"{form.up} {list(up.shape)} and down_proj {list(down.shape)}"
    if up.dim() != 3 or down.dim() != 3:
        return f"its weights do not have three dimensions: {shapes}"
    up, down = form.canonical(up), form.canonical(down)
    if up.shape[0] != down.shape[0] or up.shape[0] != module.num_experts:
        return f"its weights are not those of {module.num_experts} experts: {shapes}"
    if up.numel() == 0 or down.numel() == 0:
        return f"its weights are empty: {shapes}"
    if up.dtype != down.dtype:
        return f"its weights differ in their dtype: {up.dtype} and {down.dtype}"
    return None


def _gate(module: nn.Module) -> Any:
    return getattr(type(module), "_apply_gate", None)


class RunsExperts(nn.Module):  # type: ignore[misc]
    """Experts that replace floating ones: everything except the weights and the two products."""

    form: Form  # of the floating class
    num_experts: int
    _shell: nn.Module  # of the floating class, with all it had but weights

    def _take_place_of(self, old: nn.Module) -> None:
        """Take over everything of ``old`` except its weights and biases, its mode and its hooks.

        Submodules (an activation, a norm), other tensors and plain attributes are shared.
        """
        form = form_of(old)
        assert form is not None
        like = old._shell if isinstance(old, RunsExperts) else old
        bare = self.__dict__.keys()
        self.__dict__.update(
            {name: value for name, value in vars(like).items() if name not in bare}
        )
        own = form.own | set(old._own() if isinstance(old, RunsExperts) else ())
        for kind in ("_parameters", "_buffers", "_modules"):
            kept = {name: value for name, value in vars(like)[kind].items() if name not in own}
            self.__dict__[kind].update(kept)
        self._non_persistent_buffers_set |= like._non_persistent_buffers_set & self._buffers.keys()
        self.training = old.training
        # The shell shares the dicts of tensors and submodules, so it sees every later change.
        shell = object.__new__(type(like))
        shell.__dict__.update(self.__dict__)
        self.__dict__["_shell"] = shell  # not a submodule
        self.form = form

    @property
    def _further(self) -> tuple[str, ...]:
        """What the floating class registers in addition to weights and biases."""
        names = (*self._parameters, *self._buffers, *self._modules)
        return tuple(name for name in names if not name.startswith(self.form.weights))

    def _own(self) -> Iterable[str]:
        """Return the names of the tensors and submodules that the floating class does not have."""
        return ()

    def train(self, mode: bool = True) -> Self:
        """Set the mode, also for the code of the floating class."""
        self._shell.training = mode
        super().train(mode)
        return self

    def _product(self, name: str, input: Tensor, offsets: Tensor, token: Tensor | None) -> Tensor:
        """Return the product of rows with the weight of this name, ``[T, N]``.

        The rows of the input ``[T, K]`` are sorted by expert; with ``token`` ``[T]`` the input has
        any number of rows, and ``token`` says which one each row is.
        """
        raise NotImplementedError

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
    ) -> Tensor:
        """Return for each token the weighted sum of its experts' outputs.

        Args:
            hidden_states: ``[..., hidden]``, floating.
            top_k_index: Integers ``[..., top_k]``: the experts of each token. An index below 0, or
                of ``num_experts`` or more, adds nothing.
            top_k_weights: ``[..., top_k]``, floating.

        Returns:
            The shape and dtype of ``hidden_states``. Experts whose tokens come sorted (Llama 4)
            take only ``hidden_states``, and return the output of each token's expert.

        Raises:
            ValueError: Indices or weights for another number of tokens.
        """
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        if not self.form.is_routed:
            return self._of_sorted(tokens).to(hidden_states.dtype)
        self._check_routing(tokens, top_k_index, top_k_weights)
        assert top_k_index is not None and top_k_weights is not None
        top_k = top_k_index.shape[-1]
        expert = top_k_index.reshape(-1)
        expert = expert.masked_fill((expert < 0) | (expert > self.num_experts), self.num_experts)
        expert, order = expert.sort(stable=True)  # those of no expert come last
        known = torch.arange(self.num_experts, device=expert.device, dtype=expert.dtype)
        offsets = torch.searchsorted(expert, known, right=True, out_int32=True)

        rows = self._activate(self._product(self.form.up, tokens, offsets, order // top_k))
        rows = self._product("down_proj", rows, offsets, None)
        if self.form.has_norm:
            rows = self.post_expert_norm(rows)
        weights = top_k_weights.reshape(-1)[order].masked_fill(expert == self.num_experts, 0.0)
        rows = rows * weights.unsqueeze(-1)

        # Restore the order of the tokens, and sum in a fixed order.
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel(), device=order.device)
        output = rows[place].reshape(tokens.shape[0], top_k, rows.shape[-1]).sum(dim=1)
        return output.to(hidden_states.dtype).reshape(*hidden_states.shape[:-1], rows.shape[-1])

    def _of_sorted(self, tokens: Tensor) -> Tensor:
        if tokens.shape[0] % self.num_experts != 0:
            raise ValueError(
                f"{type(self).__name__}: expected hidden_states to have as many tokens for each of "
                f"{self.num_experts} experts, but got {tokens.shape[0]}"
            )
        each = tokens.shape[0] // self.num_experts
        ends = torch.arange(1, self.num_experts + 1, device=tokens.device, dtype=torch.int32)
        rows = self._activate(self._product(self.form.up, tokens, ends * each, None))
        return self._product("down_proj", rows, ends * each, None)

    def _activate(self, rows: Tensor) -> Tensor:
        shell: Any = self._shell
        if not self.form.has_gate:
            activated = shell.act_fn(rows)
        elif _gate(shell) is not None:
            activated = shell._apply_gate(rows)
        else:
            gate, up = rows.chunk(2, dim=-1)
            activated = up * shell.act_fn(gate)
        return activated

    def _check_routing(
        self, tokens: Tensor, top_k_index: Tensor | None, top_k_weights: Tensor | None
    ) -> None:
        for name, value in (("top_k_index", top_k_index), ("top_k_weights", top_k_weights)):
            if value is None or value.dim() == 0 or value.shape[:-1].numel() != tokens.shape[0]:
                got = "None" if value is None else list(value.shape)
                raise ValueError(
                    f"{type(self).__name__}: expected {name} to have a row for each of "
                    f"{tokens.shape[0]} tokens, but got {got}"
                )
        if top_k_index is not None and top_k_weights is not None:  # noqa: SIM102 - for reading
            if top_k_index.shape[-1] != top_k_weights.shape[-1]:
                raise ValueError(
                    f"{type(self).__name__}: expected top_k_weights to have "
                    f"{top_k_index.shape[-1]} columns, as top_k_index, but got "
                    f"{top_k_weights.shape[-1]}"
                )


def of_dtype(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows in the dtype of the weights; unchanged under autocast, which casts both."""
    if rows.dtype == dtype or torch.is_autocast_enabled(rows.device.type):
        return rows
    return rows.to(dtype)


def taken(rows: Tensor, token: Tensor | None) -> Tensor:
    """Return the rows with these indices; all rows if the indices are None."""
    return rows if token is None else rows[token]


def float_grouped_linear(
    input: Tensor,
    weight_of: Callable[[int], Tensor],
    offsets: Tensor,
    out_features: int,
    bias: Tensor | None = None,
) -> Tensor:
    """Return ``torch.nn.functional.linear`` of each row ``[K]`` with its expert's weight.

    ``weight_of`` returns the weight of an expert, floating ``[N, K]``. It is called only for
    experts that have rows. The bias is ``[E, N]``.
    """
    rows = input.shape[0]
    if offsets.is_meta:
        return torch.empty(rows, out_features, dtype=input.dtype, device="meta")
    biases = None if bias is None else bias.unbind(0)

    def product(rows: slice, expert: int) -> Tensor:
        return F.linear(input[rows], weight_of(expert), None if biases is None else biases[expert])

    parts = []
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        if end > start:
            parts.append(product(slice(start, end), expert))
        start = end
    if not parts:  # the result has to hang on the parameters all the same
        parts.append(product(slice(0, 0), 0))
    if start < rows:
        parts.append(parts[0].new_zeros(rows - start, out_features))
    return torch.cat(parts)


def integer_output(
    quantizer: Any,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    *,
    token: Tensor | None,
    symmetric: bool,
) -> Tensor:
    """Return the integer product ``[T, N]`` in the input's dtype, without a gradient.

    Each token is quantized once, however many experts it goes to. The input is ``[tokens, K]``, the
    weight int8 ``[E, N, K]``, its scale and the bias ``[E, N]``; ``token`` is as in ``_product``.
    """
    integers, scale, zero_point = quantized_by(quantizer, input.detach())
    if quantizer.granularity == "per_token":
        scale, zero_point = taken(scale, token), taken(zero_point, token)
    else:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    return ops.int8_grouped_linear(
        taken(integers, token),
        weight,
        offsets,
        scale,
        weight_scale,
        bias,
        input_zero_point=None if symmetric else zero_point,
        dtype=input.dtype,
    )
