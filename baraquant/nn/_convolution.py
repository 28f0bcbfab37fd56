# SPDX-License-Identifier: BSD-3-Clause
"""The layout of convolution weights, for prepared and converted layers.

Integers and scales have the output channels first: ``[out_channels, in_channels / groups, ...]``.
PyTorch's convolutions lay out their weights in the same way. Transposed convolutions do not: their
weight is ``[in_channels, out_channels / groups, ...]``.
"""

from torch import Tensor, nn
from torch.nn import functional as F


def swap_channels(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution with its output channels first, or back again.

    ``[groups * a, b, ...]`` becomes ``[groups * b, a, ...]``. Applied twice, it returns the
    original. The result is a view if the strides allow it.
    """
    return weight.unflatten(0, [groups, -1]).transpose(1, 2).flatten(0, 1)


class Transposes(nn.Module):  # type: ignore[misc]
    """A transposed convolution with a weight of PyTorch's layout, over one to three dimensions."""

    _output_padding = nn.ConvTranspose1d._output_padding

    def _conv_transpose(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None
    ) -> Tensor:
        added = self._output_padding(
            input,
            output_size,
            self.stride,
            self.padding,
            self.kernel_size,
            len(self.kernel_size),
            self.dilation,
        )
        stride, padding, groups, dilation = self.stride, self.padding, self.groups, self.dilation
        if weight.dim() == 3:
            return F.conv_transpose1d(input, weight, bias, stride, padding, added, groups, dilation)
        if weight.dim() == 4:
            return F.conv_transpose2d(input, weight, bias, stride, padding, added, groups, dilation)
        return F.conv_transpose3d(input, weight, bias, stride, padding, added, groups, dilation)
