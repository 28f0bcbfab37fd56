# SPDX-License-Identifier: BSD-3-Clause
"""A Transformer block, and what quantization-aware training makes of it: ours and others' ways.

Every variant prepares the same block in place: int8 or int4 weights, int8 inputs of its four linear
layers. Attention, norms and residuals stay as they are.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# isort: split
from baraquant import W8A8, QuantConfig, TensorConfig, W8A8Static
from baraquant.qat import prepare_
from benchmarks.peers import missing, swap_linears
from benchmarks.pytorch_chains import QUANT_MAX, QUANT_MIN
from benchmarks.pytorch_linears import fake_quantized_linear

HEAD_WIDTH = 128
GROUP_SIZE = 32
OWN_W8A8, CHAIN = "baraquant W8A8", "PyTorch chain W8A8"
# The same, whose backward pass multiplies integers too.
OWN_INT8_INPUT, OWN_INT8 = f"{OWN_W8A8} int8_input", f"{OWN_W8A8} int8"
W4A8 = QuantConfig(
    TensorConfig(4, "per_group", group_size=GROUP_SIZE), TensorConfig(8, "per_token")
)


class Block(nn.Module):
    """Causal attention, then a feed-forward layer of four times the width; norms come first."""

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.heads = max(width // HEAD_WIDTH, 1)
        self.norm1, self.norm2 = nn.LayerNorm(width, **options), nn.LayerNorm(width, **options)
        self.qkv = nn.Linear(width, 3 * width, **options)
        self.out = nn.Linear(width, width, **options)
        self.up = nn.Linear(width, 4 * width, **options)
        self.down = nn.Linear(4 * width, width, **options)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` to the same."""
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))  # [batch, heads, tokens, head]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Through(nn.Module):
    """A linear layer: ``function(rows, weight, bias)`` of rows ``[tokens, features]``."""

    def __init__(
        self, linear: nn.Linear, function: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    ) -> None:
        super().__init__()
        self.weight, self.bias, self.function = linear.weight, linear.bias, function

    def forward(self, x: Tensor) -> Tensor:
        """``[..., features]`` to ``[..., channels]``."""
        return self.function(x.flatten(0, -2), self.weight, self.bias).unflatten(0, x.shape[:-1])


def prepare_chain(block: nn.Module) -> None:
    """The largest magnitude, clamp and round, in floats; the gradient goes straight through."""
    swap_linears(block, lambda linear: Through(linear, fake_quantized_linear))


def own_fake_quantize(rows: Tensor) -> Tensor:
    """PyTorch's op with a scale for each row, by the largest magnitude in it."""
    scale = rows.detach().abs().amax(1).float() / QUANT_MAX
    zero_point = torch.zeros_like(scale, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(rows, scale, zero_point, 0, QUANT_MIN, QUANT_MAX)


def prepare_own_ops(block: nn.Module) -> None:
    """``torch.fake_quantize_per_channel_affine`` of inputs and weights."""

    def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(own_fake_quantize(rows), own_fake_quantize(weight), bias)

    swap_linears(block, lambda module: Through(module, linear))


def prepare_torch_ao(block: nn.Module) -> None:
    """``torch.ao.quantization.FakeQuantize``: moving averages, a scale for all of an input."""
    from torch.ao import quantization as ao

    options = {"quant_min": QUANT_MIN, "quant_max": QUANT_MAX, "dtype": torch.qint8}
    activation = ao.FakeQuantize.with_args(
        observer=ao.MovingAverageMinMaxObserver, qscheme=torch.per_tensor_symmetric, **options
    )
    weight = ao.FakeQuantize.with_args(
        observer=ao.MovingAveragePerChannelMinMaxObserver,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
        **options,
    )

    def make(linear: nn.Linear) -> nn.Module:
        # Scales stay float32: the op on CUDA takes no others.
        of_input, of_weight = (made().to(linear.weight.device) for made in (activation, weight))
        layer = Through(linear, lambda x, w, bias: F.linear(of_input(x), of_weight(w), bias))
        layer.of_input, layer.of_weight = of_input, of_weight
        return layer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, but what most have
        swap_linears(block, make)


def torchao_preparation(group_size: int | None) -> Callable[[nn.Module], None]:
    """The QAT of torchao: inputs per token, asymmetric as it must be; groups mean int4 weights."""

    def prepare(block: nn.Module) -> None:
        from torchao.quantization import qat, quantize_

        weight = (
            qat.IntxFakeQuantizeConfig(torch.int8, "per_channel")
            if group_size is None
            else qat.IntxFakeQuantizeConfig(torch.int4, group_size=group_size)
        )
        activation = qat.IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
        config = qat.QATConfig(activation_config=activation, weight_config=weight, step="prepare")
        quantize_(block, config)

    return prepare


@dataclass(frozen=True)
class Variant:
    """A way to train the block; ``needs`` is a package that it takes."""

    name: str
    prepare: Callable[[nn.Module], object] = lambda block: None
    modes: tuple[str, ...] = ("eager", "compiled")
    needs: str | None = None

    @property
    def missing(self) -> str:
        """What is not here that it needs; or nothing."""
        return missing(self.needs)


def prepare_integer_backward(
    backward: str, rounding: str = "nearest"
) -> Callable[[nn.Module], object]:
    """Return what prepares a block whose gradients come from integers."""
    return lambda block: prepare_(block, W8A8(backward=backward, rounding=rounding))


def variants(baseline: str) -> list[Variant]:
    """All that are compared; ``baseline`` is the name of the block that is not quantized."""
    everywhere = ("eager", "compiled", "graph")
    static = W8A8Static("moving_average")
    return [
        Variant(baseline, modes=everywhere),
        Variant(OWN_W8A8, lambda block: prepare_(block, W8A8()), everywhere),
        Variant(OWN_INT8_INPUT, prepare_integer_backward("int8_input"), everywhere),
        Variant(OWN_INT8, prepare_integer_backward("int8"), everywhere),
        Variant(
            f"{OWN_INT8} stochastic", prepare_integer_backward("int8", "stochastic"), everywhere
        ),
        Variant(CHAIN, prepare_chain, everywhere),
        Variant("baraquant W8A8 static", lambda block: prepare_(block, static), everywhere),
        Variant(f"baraquant W4A8 groups of {GROUP_SIZE}", lambda block: prepare_(block, W4A8)),
        Variant("torchao W8A8 asymmetric", torchao_preparation(None), needs="torchao"),
        Variant("fake_quantize_per_channel W8A8", prepare_own_ops),
        # It reads its switches from the device: neither one graph nor captured.
        Variant(
            "torch.ao FakeQuantize W8A8 static",
            prepare_torch_ao,
            ("eager",),
            "torch.ao.quantization",
        ),
        Variant("baraquant W8A8 asymmetric", lambda block: prepare_(block, W8A8(symmetric=False))),
        Variant(
            f"torchao W4A8 groups of {GROUP_SIZE}",
            torchao_preparation(GROUP_SIZE),
            needs="torchao",
        ),
    ]
