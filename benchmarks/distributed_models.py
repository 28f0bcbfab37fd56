# SPDX-License-Identifier: BSD-3-Clause
"""What `bench_distributed` measures: models on one process and on several, floating and of W8A8."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel as FloatColwise
from torch.distributed.tensor.parallel import RowwiseParallel as FloatRowwise
from torch.distributed.tensor.parallel import parallelize_module

import baraquant
from baraquant import ops, parallel
from baraquant.qat import prepare_

Model = Any


@dataclass(frozen=True)
class Sizes:
    """Of the MLP that is split, and of the blocks that are sharded."""

    width: int
    hidden: int
    blocks: int
    block_width: int
    block_hidden: int


@dataclass(frozen=True)
class Variant:
    """One way to compute the same.

    Attributes:
        step: What is timed.
        results: Makes a step; what it gives, for a comparison.
        twin: The variant whose bits it promises.
    """

    name: str
    step: Callable[[], Any]
    results: Callable[[], list[Tensor]]
    twin: str | None = None


class Mlp(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, hidden: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype, "bias": False}
        self.up, self.down = nn.Linear(width, hidden, **made), nn.Linear(hidden, width, **made)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the input's shape."""
        output: Tensor = self.down(nn.functional.silu(self.up(x)))
        return output


class Blocks(nn.Module):
    """MLPs with a norm each, which add to their input."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        super().__init__()
        of_block = sizes.block_width, sizes.block_hidden, device, torch.float32
        self.blocks = nn.ModuleList(Mlp(*of_block) for _ in range(sizes.blocks))
        self.norm = nn.LayerNorm(sizes.block_width, elementwise_affine=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the input's shape."""
        for block in self.blocks:
            x = x + block(self.norm(x))
        return x


def rows_of(tokens: int, width: int, device: torch.device, seed: int) -> Tensor:
    """An input in bfloat16."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(tokens, width, generator=generator, device=device).to(torch.bfloat16)


def mesh_of(device: torch.device) -> DeviceMesh:
    """All processes in a row."""
    return init_device_mesh(device.type, (dist.get_world_size(),))


def arrived(tensor: Any) -> Tensor:
    """An output whose sum over the processes the stream has waited for, as the next layer would."""
    whole: Tensor = tensor.wait() if hasattr(tensor, "wait") else tensor
    return whole


def local(tensor: Any) -> Tensor:
    """This process's part."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


# ---- FSDP ---------------------------------------------------------------------------------------


def sharded(
    sizes: Sizes, device: torch.device, config: Any, gathers_integers: bool, is_compiled: bool
) -> Model:
    """Blocks under fully_shard, with parameters of float32 that are gathered as bfloat16."""
    torch.manual_seed(0)
    model: Model = Blocks(sizes, device)
    if config is not None:
        prepare_(model, config)
    if gathers_integers:
        parallel.quantize_all_gather(model)
    mesh, policy = mesh_of(device), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.blocks:
        if is_compiled:
            block.compile(backend="inductor" if device.type == "cuda" else "aot_eager")
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def fsdp_variants(
    sizes: Sizes, tokens: int, device: torch.device, is_compiled: bool = False
) -> list[Variant]:
    """A step of training: forward, backward and optimizer, each process with rows of its own."""
    x = rows_of(tokens, sizes.block_width, device, dist.get_rank())

    def variant(name: str, config: Any, gathers_integers: bool, twin: str | None) -> Variant:
        model = sharded(sizes, device, config, gathers_integers, is_compiled)
        return training_step(name, model, x, twin)

    variants = [variant("bfloat16", None, False, None)]
    schemes = {"W8A8": (baraquant.W8A8, "int8"), "W4A8": (baraquant.W4A8, "int4")}
    for scheme, (make, integers) in schemes.items():
        for backward in ("float", "int8"):
            config = make(master="bfloat16", backward=backward)
            start = f"{scheme}, backward={backward}, gathered as"
            twin = f"{start} bfloat16"
            variants += [
                variant(twin, config, False, None),
                variant(f"{start} {integers}", config, True, twin),
            ]
    return variants


def training_step(name: str, model: Model, x: Tensor, twin: str | None) -> Variant:
    """With AdamW; its results are the output and all gradients."""
    is_fused = x.is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=is_fused)

    def step() -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    def results() -> list[Tensor]:
        optimizer.zero_grad()
        output = model(x)
        output.float().square().mean().backward()
        return [output.detach(), *(local(p.grad).clone() for p in model.parameters())]

    return Variant(name, step, results, twin)


# ---- Tensor parallelism -------------------------------------------------------------------------


def split(model: Model, device: torch.device, reduce: str = "") -> Model:
    """By the styles of baraquant, or those of PyTorch for a floating model."""
    plan: dict[str, Any] = {"up": FloatColwise(), "down": FloatRowwise()}
    if reduce:
        plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel(reduce=reduce)}
    return parallelize_module(model, mesh_of(device), plan)


def mlps_of(
    sizes: Sizes, device: torch.device, quantize: Callable[[Model], Any]
) -> dict[str, tuple[Model, str | None]]:
    """The models on one process and on all, with the one whose bits each promises."""
    torch.manual_seed(0)
    floating = Mlp(sizes.width, sizes.hidden, device, torch.bfloat16)
    alone = copy.deepcopy(floating)
    quantize(alone)
    count, one = dist.get_world_size(), "W8A8, one process"
    models: dict[str, tuple[Model, str | None]] = {
        "bfloat16, one process": (floating, None),
        one: (alone, None),
        f"bfloat16, {count} processes": (split(copy.deepcopy(floating), device), None),
    }
    for reduce, twin in (("exact", one), ("bfloat16", None)):
        ours = split(copy.deepcopy(alone), device, reduce)
        models[f"W8A8, {count} processes, {reduce}"] = (ours, twin)
    return models


def quantized(model: Model) -> None:
    """Converts the layers in place."""
    baraquant.quantize_(model, baraquant.W8A8(), progress=False)


def serving_variants(sizes: Sizes, tokens: int, device: torch.device) -> list[Variant]:
    """A forward pass of converted layers."""
    x = rows_of(tokens, sizes.width, device, 0)
    models = mlps_of(sizes, device, quantized)

    def variant(name: str, model: Model, twin: str | None) -> Variant:
        def step() -> Tensor:
            with torch.no_grad():
                return arrived(model(x))

        return Variant(name, step, lambda: [step()], twin)

    return [variant(name, *pair) for name, pair in models.items()]


def training_variants(sizes: Sizes, tokens: int, device: torch.device) -> list[Variant]:
    """A forward and a backward pass of prepared layers, as in the middle of a model."""
    x = rows_of(tokens, sizes.width, device, 0).requires_grad_()
    grad = rows_of(tokens, sizes.width, device, 1)
    models = mlps_of(sizes, device, lambda m: prepare_(m, baraquant.W8A8()))

    def variant(name: str, model: Model, twin: str | None) -> Variant:
        def step() -> Tensor:
            model.zero_grad()
            x.grad = None
            output = model(x)
            output.backward(grad)
            return arrived(output.detach())

        return Variant(name, step, lambda: [step()], twin)

    return [variant(name, *pair) for name, pair in models.items()]


# ---- What each process computes -----------------------------------------------------------------


def product_variants(sizes: Sizes, tokens: int, device: torch.device) -> list[Variant]:
    """A process's part of the second layer: the op for one process, and its two halves."""
    depth, width = sizes.hidden // dist.get_world_size(), sizes.width
    generator = torch.Generator(device).manual_seed(0)
    q, w = (
        torch.randint(-128, 128, (n, depth), generator=generator, device=device, dtype=torch.int8)
        for n in (tokens, width)
    )
    scale, of_weight = (torch.rand(n, generator=generator, device=device) for n in (tokens, width))
    sums, dtype = ops.int8_product(q, w), torch.bfloat16

    def halves() -> Tensor:
        return ops.rescale_product(ops.int8_product(q, w), scale, of_weight, dtype=dtype)

    steps: dict[str, Callable[[], Tensor]] = {
        "int8_linear": lambda: ops.int8_linear(q, w, scale, of_weight, dtype=dtype),
        "int8_product": lambda: ops.int8_product(q, w),
        "rescale_product": lambda: ops.rescale_product(sums, scale, of_weight, dtype=dtype),
        "int8_product, rescale_product": halves,
    }
    if device.type == "cuda" and tokens > 16:  # so few rows PyTorch does not take
        steps["torch._int_mm"] = lambda: torch._int_mm(q, w.t())
    twins = {"int8_product, rescale_product": "int8_linear", "torch._int_mm": "int8_product"}
    return [
        Variant(name, step, lambda step=step: [step()], twins.get(name))
        for name, step in steps.items()
    ]
