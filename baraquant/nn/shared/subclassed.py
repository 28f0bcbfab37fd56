# SPDX-License-Identifier: BSD-3-Clause
"""What a layer takes over of the one that it replaces: a forward, hooks, what a user has added.

Some subclasses of PyTorch's layers have a forward that calls the parent's and adds to it. Gemma
multiplies the result of ``nn.Embedding``; LoRA layers add to the result of ``nn.Linear``. The
quantized layer keeps such a forward: its class inherits from the subclass and from the quantized
class, in this order, so that ``super().forward`` is the quantized one.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..inference.integers import HoldsIntegers
from ..training.quantizers import QuantizesWeight

REGISTERED = ("_parameters", "_buffers", "_modules")


@functools.cache
def subclassed(own: Any, kind: Any, parent: Any) -> type[Any]:
    """Return ``kind``, which replaces PyTorch's ``parent``, with the forward of its subclass."""
    if not issubclass(kind, parent):  # so that `own` is satisfied with `kind` for its parent
        kind_of_parent: type = type(kind.__name__, (kind, parent), {})
    else:
        kind_of_parent = kind

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:  # noqa: N807
        return _rebuild, (own, kind, parent), dict(vars(self))

    name = f"{kind.__name__}Of{own.__name__}"
    members = {"__reduce_ex__": __reduce_ex__, "__module__": kind.__module__, "_plain": kind}
    return type(name, (own, kind_of_parent), members)


def _rebuild(own: Any, kind: Any, parent: Any) -> Any:
    made: Any = subclassed(own, kind, parent)
    return made.__new__(made)


def plain_type(module: nn.Module) -> type[nn.Module]:
    """Return a module's class without the subclass that gave it its forward.

    A parametrization gives each module a class of its own, which does not count.
    """
    own = parametrize.type_before_parametrizations(module)
    kind: type[nn.Module] = getattr(own, "_plain", own)
    return kind


def successor(
    new: nn.Module, old: nn.Module, parent: type[nn.Module], plain: nn.Module | None = None
) -> nn.Module:
    """Return ``new`` as what replaces the layer ``old``: with its forward, hooks and attributes.

    ``old`` is of PyTorch's class ``parent``, of a subclass, or quantized. ``plain`` is ``old``
    without what computes its tensors, where PyTorch does.
    """
    new = with_forward_of(new, old if plain is None else plain, parent)
    take_over(new, old)
    return new


def with_forward_of(new: nn.Module, old: nn.Module, parent: type[nn.Module]) -> nn.Module:
    """Return ``new`` with the forward of ``old``, and with what else ``old`` has registered."""
    own = _own_class(old, parent)
    further = _further(old, parent)
    if own.forward is parent.forward or computes_parent(old, parent):
        _register(new, old, further)
        return new
    result: nn.Module = _rebuild(own, plain_type(new), parent)
    vars(result).update(vars(new))
    for kind in REGISTERED:
        vars(result)[kind] = dict(getattr(new, kind))
    vars(result)["_non_persistent_buffers_set"] = set(new._non_persistent_buffers_set)
    _register(result, old, further)
    for name, value in vars(old).items():
        if name not in vars(result):
            vars(result)[name] = value
    return result


def _register(new: nn.Module, old: nn.Module, further: set[str]) -> None:
    """Register in ``new`` what else ``old`` has; its hooks and its forward may read it."""
    if not further or hasattr(type(new), "_further"):  # such a class has seen to that
        return
    for kind in REGISTERED:
        own = getattr(new, kind)
        carried = {name: value for name, value in getattr(old, kind).items() if name in further}
        for name, value in carried.items():
            is_there = name in own and own[name] is value  # the layer shares all of them
            others = [vars(new), *(getattr(new, each) for each in REGISTERED)]
            if not is_there and any(name in each for each in others):
                raise ValueError(
                    f"expected a layer without {name!r} beside its weight and bias, as a "
                    f"{type(new).__name__} has a {name} of its own, but got one; rename it"
                )
        own.update(carried)
    new._non_persistent_buffers_set.update(old._non_persistent_buffers_set & further)
    vars(new)["_further"] = tuple(sorted(further))


def take_over(new: nn.Module, old: nn.Module) -> None:
    """Give a new module the mode, the hooks and the user's attributes of the one it replaces."""
    new.train(old.training)
    for name, hooks in vars(old).items():
        if name.endswith("_hooks") and isinstance(hooks, dict) and not name.startswith("_state"):
            getattr(new, name).update(hooks)
    for name in ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"):
        getattr(new, name).update(getattr(old, name))
    new._forward_hooks_always_called.update(old._forward_hooks_always_called)
    new._is_full_backward_hook = old._is_full_backward_hook
    vars(new).update(_user_attributes(old, new))


def _user_attributes(old: nn.Module, new: nn.Module) -> dict[str, Any]:
    """Return the attributes that a user has given to a layer, and that ``new`` has no use for."""
    known = _attributes_of_layers(old.__class__)
    known |= vars(new).keys() | {name for kind in REGISTERED for name in getattr(new, kind)}
    return {
        name: value
        for name, value in vars(old).items()
        if name not in known and not inspect.isdatadescriptor(getattr(type(new), name, None))
    }


@functools.cache
def _attributes_of_layers(kind: Any) -> frozenset[str]:
    """Return the attributes that the methods of a class of layers set.

    They belong to the layer; all others are the user's. Of a user's subclass only the methods of
    PyTorch's classes and of ours count.
    """
    names = set(vars(nn.Module()))
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("torch", "baraquant"):
            continue
        for function in vars(base).values():
            code = getattr(inspect.unwrap(function), "__code__", None)
            steps = () if code is None else dis.get_instructions(code)
            names |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return frozenset(names)


def own_names(module: nn.Module, parent: type[nn.Module]) -> set[str] | None:
    """Return those registered names of a float layer that belong to its kind; None: all."""
    is_known = parent.__module__.startswith(("torch.nn.", "transformers.pytorch_utils"))
    is_plain = type(module).forward is parent.forward or computes_parent(module, parent)
    return {"weight", "bias"} if is_known or not is_plain else None


def _further(module: nn.Module, parent: type[nn.Module]) -> set[str]:
    """Return what a subclass or a user registers in addition to the tensors of a layer."""
    if isinstance(module, (QuantizesWeight, HoldsIntegers)):
        return set(getattr(module, "_further", ()))
    own = own_names(module, parent)
    names = {name for kind in REGISTERED for name in getattr(module, kind)}
    return set() if own is None else names - own


def _own_class(module: nn.Module, parent: type[nn.Module]) -> type[nn.Module]:
    own: type[nn.Module] = parametrize.type_before_parametrizations(module)
    if "_plain" in vars(own):
        return own.__mro__[1]
    return parent if isinstance(module, (QuantizesWeight, HoldsIntegers)) else own


class MisfitError(Exception):
    """Another's code does not take what a trial gives it."""


# What such code raises. Anything else, such as an interrupt, says nothing of the code.
_MISFITS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError),
    *(ValueError, copy.Error),
)


def tried(call: Callable[..., Any], *args: Any) -> Any:
    """Return what another's code gives in a trial.

    Raises:
        MisfitError: It raises an error, and the same when it is called once more. Where the machine
            fails, as for lack of memory, that error is raised.
    """
    try:
        return call(*args)
    except _MISFITS as error:
        of_machine = torch.OutOfMemoryError, torch.AcceleratorError
        if isinstance(error, of_machine) or "allocate memory" in str(error):
            raise
        try:
            call(*args)
        except type(error):
            raise MisfitError from error
        raise


# Whether modules compute what their parent does, by their classes and their attributes.
_SAME: dict[tuple[Any, ...], bool] = {}
_SIMPLE = (bool, int, float, str, type(None))
_COMMON = {*vars(nn.Module()), "training"}  # the attributes of every module


def computes_parent(module: nn.Module, parent: type[nn.Module]) -> bool:
    """Whether the forward of a subclass is its parent's formula, written out once more.

    Falcon's linear layer is one: ``input @ weight.T + bias``. It is tried on random numbers, once
    for each set of attributes that a forward could read.
    """
    weight = module._parameters.get("weight")
    if parent is not nn.Linear or weight is None or isinstance(module, QuantizesWeight):
        return False
    key = _what_forward_reads(module)
    if key is not None and key in _SAME:
        return _SAME[key]
    if extends_forward(module, parent):
        return False  # its own forward is kept, with all that it does besides
    result = _holds(_is_same, module, weight)
    if key is not None and result is not None:
        _SAME[key] = result
    return bool(result)


def _what_forward_reads(module: nn.Module) -> tuple[Any, ...] | None:
    """Return a module's class and simple attributes; None if it has tensors or objects as well."""
    own = {name: value for name, value in vars(module).items() if name not in _COMMON}
    if module._buffers or module._modules or not {*module._parameters} <= {"weight", "bias"}:
        return None
    if not all(type(value) in _SIMPLE for value in own.values()):
        return None
    has_bias = module._parameters.get("bias") is not None
    return (type(module), has_bias, *((n, type(v), v) for n, v in sorted(own.items())))


def _holds(
    check: Callable[[nn.Module, Tensor, bool], bool], module: nn.Module, weight: Tensor
) -> bool | None:
    """Whether a trial of a module's forward succeeds, in evaluation and in training.

    None if the forward raises an error.
    """
    devices = [weight.device] if weight.is_cuda else []
    try:
        # Another default device may be in force, such as meta.
        with torch.random.fork_rng(devices), torch.no_grad(), torch.device("cpu"):
            return all(check(module, weight, train) for train in (False, True))
    except MisfitError:
        return None


def _is_same(module: nn.Module, weight: Tensor, train: bool) -> bool:
    bias = module._parameters.get("bias")
    given = [weight] if bias is None else [weight, bias]
    random = [nn.Parameter(torch.randn(p.shape, dtype=torch.float64), False) for p in given]
    numbers = {id(p): r for p, r in zip(given, random, strict=True)}
    if _has_loose_meta(module):
        return False
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_meta and id(tensor) not in numbers:
            numbers[id(tensor)] = _random_like(tensor)
    trial = tried(lambda: copy.deepcopy(module, dict(numbers)).train(train))
    input = torch.randn(2, 3, weight.shape[1], dtype=torch.float64)
    got, wanted = tried(trial.forward, input), nn.functional.linear(input, *random)
    return is_close(got, wanted, 1e-9)


def is_close(got: Any, wanted: Tensor, tolerance: float) -> bool:
    """Whether the result of another's code is a given tensor, nearly."""
    return (
        isinstance(got, Tensor)
        and (got.shape, got.dtype, got.device) == (wanted.shape, wanted.dtype, wanted.device)
        and bool(torch.allclose(got, wanted, rtol=tolerance, atol=tolerance))
    )


def _has_loose_meta(module: nn.Module) -> bool:
    """Whether a plain attribute is a tensor on the meta device, which no trial can replace.

    PyTorch multiplies a tensor on the CPU by one on the meta device, and gives what memory holds.
    """
    return any(isinstance(value, Tensor) and value.is_meta for value in vars(module).values())


def _random_like(tensor: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return random numbers on the CPU, as a parameter where ``tensor`` is one."""
    if not tensor.is_floating_point():
        return torch.ones(tensor.shape, dtype=tensor.dtype)
    numbers = torch.randn(tensor.shape, dtype=dtype)
    return nn.Parameter(numbers, False) if isinstance(tensor, nn.Parameter) else numbers


def extends_forward(module: nn.Module, parent: type[nn.Module]) -> bool:
    """Whether the forward of a subclass calls its parent's, and uses the weight nowhere else.

    The forward is tried on a copy whose weight is NaN and whose parent returns given numbers. The
    result must be finite and must depend on these numbers. Only linear layers and embeddings are
    tried. What is on the meta device is tried with random numbers on the CPU.
    """
    weight = module._parameters.get("weight")
    if parent not in (nn.Linear, nn.Embedding) or weight is None or _has_loose_meta(module):
        return False
    follows = functools.partial(_follows_parent, parent)
    return bool(_holds(follows, module, weight))


class _Given:
    """A parent's forward that returns given numbers."""

    _given: Tensor
    _calls: int

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        self._calls += 1
        return self._given


def _follows_parent(
    parent: type[nn.Module], module: nn.Module, weight: Tensor, train: bool
) -> bool:
    device = torch.device("cpu") if weight.is_meta else weight.device
    unknown = torch.full((), float("nan"), dtype=weight.dtype, device=device)
    nan = nn.Parameter(unknown.expand(weight.shape), requires_grad=False)
    others = [t for t in (*module.parameters(), *module.buffers()) if t.is_meta and t is not weight]
    numbers = {id(tensor): _random_like(tensor, tensor.dtype) for tensor in others}
    stub = type("Given", (_Given, parent), {})

    def make() -> Any:
        made = copy.deepcopy(module, numbers | {id(weight): nan})
        made.__class__ = type("Trial", (type(module), stub), {})
        return made.train(train)

    trial = tried(make)
    if parent is nn.Embedding:
        size, input = weight.shape[1], torch.zeros(1, 2, dtype=torch.long, device=device)
    else:
        size, input = weight.shape[0], torch.ones(1, 2, weight.shape[1]).to(nan)
    results = []
    for number in (1.0, 2.0):
        rows = torch.linspace(-number, number, 2 * size).reshape(1, 2, size).to(nan)
        vars(trial).update(_given=rows, _calls=0)
        results.append(tried(trial.forward, input))
        if trial._calls != 1:
            return False
    first, second = results
    return (
        isinstance(first, Tensor)
        and bool(first.isfinite().all() & second.isfinite().all())
        and not torch.equal(first, second)
    )
