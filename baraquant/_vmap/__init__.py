# SPDX-License-Identifier: BSD-3-Clause
"""Batching rules of the core ops for :func:`torch.vmap`.

A batch is one more leading dimension. If all samples share their scales, this dimension only shifts
the axis. If each sample has its own scales, the batch becomes part of the granularity. A scale that
comes from the data always belongs to a sample:

=============  ====================================  ==========================================
granularity    shared scale                          a scale per sample
=============  ====================================  ==========================================
per tensor     unchanged                             per channel along the batch
per channel    the axis moves by one                 per channel along (batch, axis), merged
per token      the scale is repeated                 unchanged
per group      the scale is repeated, the axis       unchanged, the axis moves by one
               moves by one
=============  ====================================  ==========================================

In the fused family a batch is only a larger number of vectors. The ops of the integer matrix
family have rules of their own, because a batch of inputs is only a larger number of tokens. So has
the convolution, for which it is a larger number of images.
"""

from collections.abc import Iterator

import torch

from .._library import of_python_ops
from . import affine, by_name, fused, int8_conv, int8_mm
from . import range as ranges
from .table import BATCHED, ELEMENTWISE


def register() -> None:
    """Register the rules; called once, when the library is loaded."""
    for name, rule in {**affine.RULES, **ranges.RULES, **fused.RULES}.items():
        torch.library.register_vmap(f"baraquant::{name}", rule, lib=_library)
    for family, batched in BATCHED.items():
        rule = int8_conv.rule if family == "int8_conv" else int8_mm.rule
        for name, arguments in batched.items():
            packet = getattr(torch.ops.baraquant, name)
            for op in (getattr(packet, overload) for overload in packet.overloads()):
                tensors = {a.name for a in op._schema.arguments if "Tensor" in str(a.type)}
                of_op = tuple(argument for argument in arguments if argument in tensors)
                by_name.register_rule(_library, op, rule(op, of_op))
    for name in ELEMENTWISE:
        rule = by_name.elementwise(getattr(torch.ops.baraquant, name))
        torch.library.register_vmap(f"baraquant::{name}", rule, lib=_library)
    by_name.refuse(_library)
    for op in _ops():
        if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            # A public op calls core ops, which have the rules. So do private ops that call others.
            _library.impl(op, op.decompose, "FuncTorchBatchedDecomposition")


def _ops() -> Iterator[torch._ops.OpOverload]:
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        if namespace == "baraquant":
            packet, _, overload = name.partition(".")
            yield getattr(getattr(torch.ops.baraquant, packet), overload or "default")


_library = of_python_ops(__name__, "baraquant")
