# SPDX-License-Identifier: BSD-3-Clause
"""How a layer lies on the processes of a mesh, and what the processes tell each other."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


@dataclasses.dataclass(frozen=True)
class Layout:
    """The processes that share a layer, and the layouts of its input and output.

    Attributes:
        mesh: The processes, in one dimension.
        input: How the input lies on them when it arrives as a plain tensor.
        output: How the output is to lie on them.
        is_local: Whether the output is the part of this process, rather than a DTensor.
        is_exact: Whether sums over the processes are exact where they can be.
    """

    mesh: DeviceMesh
    input: Placement
    output: Placement
    is_local: bool
    is_exact: bool = True

    def __deepcopy__(self, memo: Any) -> Layout:
        return self  # a mesh stands for processes, of which there is no second set

    def splits_channels(self, dims: int) -> bool:
        """Return whether each process is to have a part of the channels of ``dims`` dimensions."""
        return isinstance(self.output, Shard) and self.output.dim % dims == dims - 1

    def arriving(self, input: Tensor, wanted: Placement, gradient: Placement) -> Tensor:
        """Return the part of an input that this process needs.

        The input is a DTensor, or a plain tensor in the layout ``self.input``. The layer computes
        with the layout ``wanted``, and returns its gradient in the layout ``gradient``.
        """
        if not isinstance(input, DTensor):
            input = DTensor.from_local(input, self.mesh, [self.input], run_check=False)
        if not is_same(input.placements, wanted, input.dim()):
            input = input.redistribute(self.mesh, [wanted])
        if isinstance(gradient, Shard):
            gradient = Shard(gradient.dim % input.dim())
        return input.to_local(grad_placements=[gradient])

    def leaving(self, output: Tensor, layout: Placement, features: int) -> Tensor:
        """Return an output, whose parts lie in ``layout``, in the form that the user wants.

        ``features`` is the size of the whole output's last dimension.
        """
        if self.is_local and is_same((layout,), self.output, output.dim()):
            return output
        whole = self.as_whole(output, layout, features)
        if not is_same(whole.placements, self.output, whole.dim()):
            whole = whole.redistribute(self.mesh, [self.output])
        return whole.to_local() if self.is_local else whole

    def as_whole(self, part: Tensor, layout: Placement, features: int) -> DTensor:
        """Return a DTensor of the parts; those of the last dimension may differ in size."""
        if not isinstance(layout, Shard) or layout.dim not in (-1, part.dim() - 1):
            return DTensor.from_local(part, self.mesh, [layout], run_check=False)
        return self._parts(part, layout, torch.Size([*part.shape[:-1], features]))

    def _parts(self, part: Tensor, layout: Placement, shape: torch.Size) -> DTensor:
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            part, self.mesh, [layout], run_check=False, shape=shape, stride=stride
        )

    def sum(self, part: Tensor, to: Placement | None = None) -> Tensor:
        """Return the sum over the processes; with ``to`` in that layout, the part of this one."""
        whole = DTensor.from_local(part, self.mesh, [Partial()], run_check=False)
        return whole.redistribute(self.mesh, [to or Replicate()]).to_local()

    def largest(self, part: Tensor) -> Tensor:
        """Return the largest over the processes, of each element of an integer tensor."""
        whole = DTensor.from_local(part, self.mesh, [Partial("max")], run_check=False)
        return whole.redistribute(self.mesh, [Replicate()]).to_local()

    def part_of(self, whole: Tensor, layout: Placement) -> Tensor:
        """Return this process's part of a tensor that every process has."""
        known = DTensor.from_local(whole, self.mesh, [Replicate()], run_check=False)
        return known.redistribute(self.mesh, [layout]).to_local()

    def gathered(self, part: Tensor, layout: Placement, shape: torch.Size) -> Tensor:
        """Return the whole of a tensor ``shape`` whose parts lie on the processes."""
        return self._parts(part, layout, shape).redistribute(self.mesh, [Replicate()]).to_local()

    def finished(self, output: Tensor) -> Tensor:
        """Return an output that lies as the user wants, in the form that the user wants."""
        if self.is_local:
            return output
        return DTensor.from_local(output, self.mesh, [self.output], run_check=False)

    def ends(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends of the union of ranges over the processes.

        A NaN of any process is a NaN of the union, as it is within one process. A maximum of
        floating numbers over processes may drop a NaN, so this one is of integers in the order of
        the numbers, the NaN last.
        """
        ends = torch.stack([-low, high])
        ends = ends.masked_fill(ends.isnan(), float("nan"))  # one without a sign
        bits = ends.view(torch.int64 if ends.dtype == torch.float64 else torch.int32)
        agreed = _without_sign_order(self.largest(_without_sign_order(bits))).view(ends.dtype)
        return -agreed[0], agreed[1]


def _without_sign_order(bits: Tensor) -> Tensor:
    """Reverse the order of negative numbers, whose bits ascend with the magnitude."""
    largest = torch.iinfo(bits.dtype).max
    return torch.where(bits < 0, bits ^ largest, bits)


def is_same(placements: tuple[Placement, ...], wanted: Placement, dims: int) -> bool:
    """Whether a layout is the wanted one; the last dimension has two numbers."""
    (has,) = placements
    if isinstance(has, Shard) and isinstance(wanted, Shard):
        return bool(has.dim % dims == wanted.dim % dims)
    return bool(has == wanted)


def local(tensor: Any) -> Any:
    """Return the part of this process of a DTensor, and anything else as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    if tensor.requires_grad:
        return tensor.to_local()
    with torch.no_grad():  # the stored tensor itself, not a view of it
        return tensor.to_local()


def local_attribute(name: str) -> Any:
    """Return a property: the part of this process of a parameter or buffer.

    A layer computes with this part, while its state dict has the whole as a DTensor.
    """

    def part(layer: Any) -> Any:
        own = layer._parameters if name in layer._parameters else layer._buffers
        if name not in own:
            raise AttributeError(f"{type(layer).__name__} has no {name}")
        return local(own[name])

    return property(part)
