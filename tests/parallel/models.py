# SPDX-License-Identifier: BSD-3-Clause
"""A small model to split over processes, where they compute, and every scheme that can be split."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from baraquant import W4A8, W4A16, W8A8, W8A16, W8A8Static
from baraquant.configs import Config
from baraquant.qat import prepare_
from tests.support import cases
from tests.support.schemes import described

SIZE, HIDDEN, ROWS = 16, 32, 21


class Scheme(NamedTuple):
    """A configuration, and in which phases its layers multiply integers."""

    config: Config
    trains_exactly: bool = False
    serves_exactly: bool = True


# Those whose product is of integers in training and when served, when served alone, and never.
SCHEMES: dict[str, Scheme] = {
    **{name: Scheme(config, trains_exactly=True) for name, config in {
        "w8a8": W8A8(), "w8a8_asymmetric": W8A8(symmetric=False), "w4a8_channels": W4A8(None),
        "w4a6": described("int4, int6 per_token asymmetric"), "rotated": W8A8(rotate=4),
        "ternary": described("int2 per_tensor ternary, int8 per_token"),
        "ternary_channels": described("int2 ternary, int8 per_token"),
    }.items()},
    **{name: Scheme(config) for name, config in {
        "weight_per_tensor": described("int8 per_tensor, int8 per_token"),
        "input_per_tensor": described("int8, int8 per_tensor asymmetric"),
        "static": W8A8Static("moving_average", symmetric=False),
        "static_symmetric": W8A8Static("min_max"),
        "observed_weight": described("int8 static, int8 per_token"),
        "observed_weight_per_tensor": described("int4 per_tensor static, int8 per_tensor"),
        "bfloat16_scales": W8A8(scale_dtype="bfloat16"),
        "rotated_static": W8A8Static("moving_average", symmetric=False, rotate=8),
    }.items()},
    **{name: Scheme(config, serves_exactly=False) for name, config in {
        "rotated_groups": W4A16(group_size=4, rotate=2), "weight_only": W8A16(),
        "weight_with_zero_points": described("int3 asymmetric, int8 per_token"),
        "groups": W4A16(group_size=4),
        "groups_everywhere": described("int4 per_group(4) asymmetric, int8 per_group(2)"),
    }.items()},
}  # fmt: skip
# Of linear layers alone: the groups of a table would lie on two processes.
FACTORS: dict[str, Scheme] = {
    "factors": Scheme(W4A8(8), trains_exactly=True),
    "asymmetric_factors": Scheme(W4A8(4, symmetric=False), trains_exactly=True),
    "rotated_factors": Scheme(W4A8(8, rotate=4), trains_exactly=True),
    "static_factors": Scheme(
        described("int4 per_group(8) factors, int8 per_tensor asymmetric static")
    ),
}
LINEAR = SCHEMES | FACTORS


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, SIZE, padding_idx=3)
        self.up, self.down = nn.Linear(SIZE, HIDDEN), nn.Linear(HIDDEN, SIZE)
        self.out = nn.Linear(SIZE, ROWS, bias=False)

    def forward(self, index: Tensor) -> Tensor:
        return self.out(self.mlp(self.table(index)))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def place() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def mesh() -> Any:
    return init_device_mesh(place(), (dist.get_world_size(),))


def message_of(call: Callable[..., Any], *arguments: Any) -> str:
    try:
        call(*arguments)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


def prepared(scheme: str, dtype: torch.dtype = torch.float32) -> Model:
    """A prepared model whose ranges are known."""
    torch.manual_seed(0)
    model = Model().to(place(), dtype)
    prepare_(model, LINEAR[scheme].config)
    model.train()
    with torch.no_grad():
        model(indices(9))
    return model


def indices(seed: int = 0) -> Tensor:
    return torch.randint(0, ROWS, (4, 6), generator=cases.generator(seed)).to(place())


def features(dtype: torch.dtype = torch.float32, special: bool = False) -> Tensor:
    """Rows of different sizes; with special ones: zeros, a NaN in the last part, an infinity."""
    x = torch.randn(4, 6, SIZE, generator=cases.generator(SIZE))
    x = x * torch.logspace(-2, 2, 24).reshape(4, 6, 1) + 0.1
    if special:
        x[0, 0] = 0
        x[0, 1] = -x[0, 1].abs()
        x[1, 0, -1] = float("nan")
        x[1, 1, 0] = float("inf")
        x[1, 2, 0] = -float("nan")
    return x.to(place(), dtype)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    named = model.named_parameters()
    return {name: whole(p.grad).clone() for name, p in named if p.grad is not None}


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(tensor).clone() for name, tensor in model.state_dict().items()}


def whole(tensor: Any) -> Tensor:
    with torch.no_grad():
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
