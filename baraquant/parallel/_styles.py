# SPDX-License-Identifier: BSD-3-Clause
"""The styles for ``torch.distributed.tensor.parallel.parallelize_module``."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel as FloatColwiseParallel
from torch.distributed.tensor.parallel import RowwiseParallel as FloatRowwiseParallel

from ..nn.shared.subclassed import plain_type
from ._layout import Layout
from ._split import EMBEDDINGS, is_quantized, split


class ColwiseParallel(FloatColwiseParallel):  # type: ignore[misc]
    """Splits a layer by its outputs: each process computes some of them, from the whole input.

    It is PyTorch's style of this name, for prepared and converted layers too: linear layers and
    embeddings (whose features are split). A floating layer is left to PyTorch's style.

    Layers that multiply integers give the same bits as on one process, and so do embeddings.
    Floating products (``W4A16``, groups, a static scale in training) give the same numbers up to
    the rounding of sums, as PyTorch's kernels may add in another order for another shape.

    Args:
        input_layouts: How the input lies on the processes if it is a plain tensor; None stands for
            ``Replicate()``. ``Shard(1)`` is the layout of sequence parallelism.
        output_layouts: How the output is to lie on them; None stands for ``Shard(-1)``.
        use_local_output: Whether the output is this process's part, rather than a DTensor.

    Raises:
        ValueError: By ``parallelize_module``: the mesh has several dimensions, groups or features
            do not divide, the layer is parallel or sharded already, or a layout is not
            ``Shard(dim)`` or ``Replicate()``.
        NotImplementedError: By ``parallelize_module``: the layer is of another kind, it learns
            its scales, or its gradients come from integers (``backward``).

    Example:
        >>> from baraquant import parallel
        >>> parallel.ColwiseParallel().use_local_output
        True
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_quantized(module):
            return super()._apply(module, device_mesh)
        return _split(self, "ColwiseParallel", module, device_mesh, self.input_layouts[0])


class RowwiseParallel(FloatRowwiseParallel):  # type: ignore[misc]
    """Splits a layer by its inputs: each process has some, and computes a part of every sum.

    It is PyTorch's style of this name, for prepared and converted layers too: linear layers, and
    embeddings, whose rows are split. A floating layer is left to PyTorch's style.

    The processes agree on the range of each token, and so on its scale; they multiply integers with
    it, and add the int32 sums. The scales, the zero point and the bias come once, after that. So
    layers that multiply integers give the same bits as on one process, and so do embeddings.
    Floating products are added in float32, and differ by the rounding of sums.

    Args:
        input_layouts: How the input lies on the processes if it is a plain tensor; None stands for
            ``Shard(-1)``, and for ``Replicate()`` in an embedding, as indices have no features.
        output_layouts: How the output is to lie on them; None stands for ``Replicate()``.
            ``Shard(1)`` is the layout of sequence parallelism.
        use_local_output: Whether the output is this process's part, rather than a DTensor.
        reduce: ``exact`` adds int32 (floating products: float32). ``bfloat16`` rounds the output of
            each process to bfloat16 and adds these: half of the bytes, and other bits.

    Raises:
        ValueError: ``reduce`` is another word; or, by ``parallelize_module``, as in
            :class:`ColwiseParallel`.
        NotImplementedError: As in :class:`ColwiseParallel`.

    Example:
        >>> from baraquant import parallel
        >>> parallel.RowwiseParallel(reduce="bfloat16").reduce
        'bfloat16'
    """

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        reduce: str = "exact",
    ) -> None:
        if reduce not in ("exact", "bfloat16"):
            raise ValueError(
                f"RowwiseParallel: expected reduce to be exact or bfloat16, but got {reduce!r}"
            )
        super().__init__(
            input_layouts=input_layouts,
            output_layouts=output_layouts,
            use_local_output=use_local_output,
        )
        self.reduce = reduce
        self._given_input = input_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_quantized(module):
            return super()._apply(module, device_mesh)
        takes_indices = self._given_input is None and isinstance(module, EMBEDDINGS)
        before = Replicate() if takes_indices else self.input_layouts[0]
        exact = self.reduce == "exact"
        return _split(self, "RowwiseParallel", module, device_mesh, before, exact)


def _split(
    style: Any,
    name: str,
    module: nn.Module,
    mesh: DeviceMesh,
    before: Placement,
    exact: bool = True,
) -> nn.Module:
    if mesh.ndim != 1:
        raise ValueError(
            f"{name}: expected a mesh of one dimension, but got {mesh.ndim}; name the dimension "
            'for tensor parallelism, as in mesh["tp"]'
        )
    layout = Layout(mesh, before, style.output_layouts[0], style.use_local_output, exact)
    try:
        split(module, layout, name == "RowwiseParallel", style.src_data_rank)
    except (NotImplementedError, ValueError) as error:
        layer = f"{plain_type(module).__name__}({module.extra_repr()})"
        raise type(error)(f"{name}: {layer}: {error}") from None
    return module
