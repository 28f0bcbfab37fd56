# SPDX-License-Identifier: BSD-3-Clause
"""Plans that cannot be: each is refused by a message that says what to do, and changes nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from baraquant import W4A8, W4A16, W8A8, ops
from baraquant import nn as bnn
from baraquant.configs import Config
from baraquant.parallel import ColwiseParallel, RowwiseParallel
from tests.support.models.made import prepared, quantized
from tests.support.schemes import described

RANKS = 4


@pytest.fixture(autouse=True)
def four_processes() -> Iterator[None]:
    """A group whose other processes do not exist; no operation of it computes anything."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.other = nn.Embedding(12, 16), nn.Embedding(12, 16, sparse=True)
        self.linear, self.odd = nn.Linear(16, 8), nn.Linear(18, 8)
        self.conv, self.norm = nn.Conv1d(4, 4, 3), nn.LayerNorm(16)
        self.adapted = Adapted(16, 16)
        self.output = nn.Linear(16, 12, bias=False)
        self.output.weight = self.table.weight


class Adapted(nn.Linear):
    """A layer that adds to what its parent returns, as an adapter does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def model(config: Config) -> Any:
    return prepared(Model(), config)


def twice() -> Any:
    return parallelize_module(model(W8A8()), mesh(), {"linear": ColwiseParallel()})


def sharded() -> Any:
    built = model(W8A8())
    weight = distribute_tensor(built.linear.weight.detach(), mesh(), [Shard(0)], src_data_rank=None)
    built.linear._parameters["weight"] = nn.Parameter(weight)
    return built


def parametrized() -> Any:
    built = model(W8A8())
    nn.utils.parametrizations.weight_norm(built.linear)
    return built


def given_factors() -> Any:
    built = model(W4A8(4))
    parts = ops.choose_int4_qparams(built.linear.weight.detach(), 4)
    names = ("scale", "group_factor", "group_zero_point")
    built.linear.weight_fake_quant = bnn.FakeQuantizeInt4(4, **dict(zip(names, parts, strict=True)))
    return built


def mesh(*shape: int) -> Any:
    return init_device_mesh("cpu", shape or (RANKS,))


W8: Callable[[], Any] = lambda: model(W8A8())  # noqa: E731 - a row of the table
BAD: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "features": (W8, {"odd": RowwiseParallel()}, ValueError,
        "in_features to be a multiple of the 4 processes, but got 18; use ColwiseParallel"),
    "groups": (lambda: model(W4A16(group_size=8)), {"linear": RowwiseParallel()}, ValueError,
        r"expected group_size to divide the features of a process \(16 / 4\), but got 8; a group"),
    "converted groups": (lambda: quantized(nn.ModuleDict({"linear": nn.Linear(16, 8)}), W4A16(8)),
        {"linear": RowwiseParallel()}, ValueError,
        r"WeightOnlyInt4Linear.*expected group_size to divide the features of a process"),
    "groups of a table": (lambda: model(W4A16(group_size=8)), {"table": ColwiseParallel()},
        ValueError,
        r"FakeQuantizedEmbedding.*expected group_size to divide the features of a process"),
    "groups of the input": (lambda: model(described("int8, int8 per_group(8)")),
        {"linear": RowwiseParallel()}, ValueError, "expected group_size of the input to divide"),
    "observed groups": (lambda: model(described("int4 per_group(4) static, int8 per_token")),
        {"linear": RowwiseParallel()}, NotImplementedError,
        "expected groups with dynamic scales, but the weight's scales are observed"),
    "convolution": (W8, {"conv": ColwiseParallel()}, NotImplementedError,
        "but got FakeQuantizedConv1d; leave it out of the plan"),
    "adapter": (W8, {"adapted": RowwiseParallel()}, NotImplementedError,
        "expected a layer with a forward of its kind, but got FakeQuantizedLinearOfAdapted"),
    "given factors": (given_factors, {"linear": RowwiseParallel()}, NotImplementedError,
        "FakeQuantizedLinear.*: expected weight_fake_quant to choose its factors from the weight, "
        "but they are given; split the layer when it is converted"),
    "groups with factors": (lambda: model(W4A8(8)), {"linear": RowwiseParallel()}, ValueError,
        r"FakeQuantizedLinear.*: expected group_size to divide the features of a process "
        r"\(16 / 4\), but got 8; a group must not lie on two processes"),
    "learned scale": (lambda: model(described("int4 learned, int8 per_token")),
        {"linear": ColwiseParallel()}, NotImplementedError,
        "expected weight_fake_quant to compute or observe its scale, but it learns it"),
    "backward of integers": (lambda: model(W8A8(backward="int8")), {"linear": ColwiseParallel()},
        NotImplementedError, 'FakeQuantizedLinear.*: expected backward="float", but got "int8"'),
    "block on two processes": (lambda: model(W8A8(rotate=8)), {"linear": RowwiseParallel()},
        NotImplementedError,
        r"FakeQuantizedLinear.*: expected rotate to divide the features of a process \(16 / 4\), "
        "but got 8.*choose a smaller rotate, or use ColwiseParallel"),
    "two dimensions": (W8, {"linear": ColwiseParallel()}, ValueError,
        r"a mesh of one dimension, but got 2.*\"tp\""),
    "twice": (twice, {"linear": RowwiseParallel()}, ValueError,
        "but got one that is parallel already"),
    "sharded": (sharded, {"linear": RowwiseParallel()}, ValueError,
        "expected a plain weight, but got a DTensor; call parallelize_module before fully_shard"),
    "parametrized": (parametrized, {"linear": ColwiseParallel()}, NotImplementedError,
        "but got ParametrizedFakeQuantizedLinear, which adds to it; leave it out"),
    "partial": (W8, {"linear": RowwiseParallel(output_layouts=Partial())}, ValueError,
        r"expected output_layouts to be Shard\(dim\) or Replicate\(\), but got"),
    "sparse": (W8, {"other": RowwiseParallel()}, NotImplementedError, "expected sparse=False"),
    "tied otherwise": (W8, {"table": ColwiseParallel(), "output": ColwiseParallel()}, ValueError,
        r"expected the layers that share its weight to be split alike, but got .*an embedding by"),
    "no layer": (W8, {"norm": ColwiseParallel()}, NotImplementedError,
        "currently only support nn.Linear"),
}  # fmt: skip


def class_and_tensors(layer: nn.Module) -> tuple[Any, dict[str, int]]:
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    return type(layer), {name: id(tensor) for name, tensor in tensors.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", BAD)
def test_bad_plans(case: str) -> None:
    make, plan, kind, message = BAD[case]
    built = make()
    shape = (2, 2) if case == "two dimensions" else (RANKS,)
    last = built.get_submodule(list(plan)[-1])
    before = class_and_tensors(last)
    with pytest.raises(kind, match=message) as caught:
        parallelize_module(built, mesh(*shape), plan)
    if case not in ("no layer", "parametrized"):
        style = type(list(plan.values())[-1]).__name__
        assert str(caught.value).startswith(f"{style}: ")
    assert class_and_tensors(last) == before, "nothing was changed"


def test_bad_words() -> None:
    with pytest.raises(ValueError, match="RowwiseParallel: expected reduce to be exact or bfloat"):
        RowwiseParallel(reduce="float16")


def test_a_plan_names_floating_layers_too() -> None:
    """PyTorch's style splits them."""
    built = prepared(nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}), {"a": W8A8()})
    plan = {"a": ColwiseParallel(), "b": RowwiseParallel()}
    parallelize_module(built, mesh(), plan, src_data_rank=None)
    for name, placement in (("a", Shard(0)), ("b", Shard(1))):
        assert built[name]._parameters["weight"].placements == (placement,)
    assert type(built["b"]) is nn.Linear and isinstance(built["a"], bnn.FakeQuantizedLinear)


@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_ranges_are_joined_over_replicas_only(style: Any) -> None:
    built = model(described("int8 static, int8 per_token"))
    parallelize_module(built, mesh(), {"linear": style()}, src_data_rank=None)
    with pytest.raises(RuntimeError, match=r"expected process_group to be the replicas.*\"dp\""):
        built.linear.weight_fake_quant.sync_qparams()
