# SPDX-License-Identifier: BSD-3-Clause
"""What two processes train is what is served: DDP under autocast, and ``fully_shard``.

With ``quantize_all_gather`` no bit changes, nor where integers of converted layers are sharded.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from baraquant import W4A8, W4A16, W8A8, QuantConfig, W8A8Static
from baraquant import nn as bnn
from baraquant.parallel import ColwiseParallel, RowwiseParallel, quantize_all_gather
from baraquant.parallel._gather import GatheredWeight, ShardedWeight
from baraquant.qat import convert_, prepare_
from tests.nn import test_nothing_stale as stale
from tests.parallel import models
from tests.parallel.models import features, mesh, message_of, place
from tests.support.ranks import results_fixture
from tests.support.schemes import described

# Those whose forward pass in training is the integer product that is served.
EXACT = {
    "w8a8": W8A8(), "w8a8_asymmetric": W8A8(symmetric=False), "rotated": W8A8(rotate=16),
    "w4a8": W4A8(8), "w4a8_learned": W4A8(8, learned=True),
}  # fmt: skip
SCHEMES = EXACT | {"static": W8A8Static("min_max"), "w4a16": W4A16(8)}
LEARNED = described("int4 learned, int8 per_tensor learned")
ROUNDS = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
POLICIES = {"float32": MixedPrecisionPolicy(), "bfloat16": ROUNDS}
STEPS = 3


class Table(nn.Module):
    """A vector that starts each row, looked up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((x[..., 0] * 0).long() + 3).to(x.dtype)


def network(config: QuantConfig) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(Table(), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 6))
    prepare_(model, config)
    with torch.no_grad():
        model(batch(0, torch.float32).cpu())
    return model.to(place())


def batch(seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 5, 16, generator=generator).to(place(), dtype)


def train(model: nn.Module, autocast: bool = False) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(place(), torch.bfloat16, enabled=autocast):
            loss = model(batch(10 * step + dist.get_rank())).float().square().mean()
        loss.backward()
        optimizer.step()


def outputs(model: nn.Module) -> dict[str, Tensor]:
    """The output of a model in training mode and in evaluation, for the same input."""
    with torch.no_grad():
        model.apply(bnn.disable_observer)
        trained = model.train()(batch(99))
        evaluated = model.eval()(batch(99))
    return {"trained": trained, "evaluated": evaluated}


def served(state: dict[str, Any], config: QuantConfig) -> nn.Module:
    """A model of one process, with the masters of all: converted."""
    whole = network(config)
    whole.load_state_dict(state)
    convert_(whole.eval())
    return whole


def by_ddp(config: QuantConfig) -> dict[str, Tensor]:
    """Trained under autocast; evaluated and served for the input that autocast makes."""
    model = DistributedDataParallel(network(config), broadcast_buffers=False)
    train(model, autocast=True)
    with torch.autocast(place(), torch.bfloat16):
        found = outputs(model)
    whole = served(copy.deepcopy(model.module.state_dict()), config)
    with torch.no_grad():
        found["served"] = whole(batch(99))
        with torch.autocast(place(), torch.bfloat16):
            found["served under autocast"] = whole(batch(99))
    return found


def sharded(model: Any, policy: MixedPrecisionPolicy, **options: Any) -> Any:
    options |= {"mesh": mesh(), "mp_policy": policy}
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def whole_state(model: nn.Module) -> dict[str, Any]:
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def by_fsdp(config: QuantConfig, gathers: bool = False) -> dict[str, Tensor]:
    """Trained with rounded copies of the parameters, which ``master`` makes everywhere."""
    config = replace(config, master="bfloat16")
    model = network(config)
    if gathers:
        quantize_all_gather(model)
    train(sharded(model, ROUNDS))
    found = outputs(model)
    whole = served(whole_state(model), config)
    with torch.no_grad():
        found["served"] = whole(batch(99))
        model[1].unshard()
        found["unsharded"] = model[1](batch(98))
        model[1].reshard()
        found["unsharded, served"] = whole[1](batch(98))
    return found


def refusals() -> dict[str, str]:
    """What a layer says whose wrapper rounds its parameters."""
    found = {}
    policy = MixedPrecisionPolicy(torch.bfloat16)
    for name, config in (SCHEMES | {"learned": LEARNED}).items():
        model = fully_shard(network(config), mesh=mesh(), mp_policy=policy)
        for mode in ("train", "eval"):
            found[f"{name} {mode}"] = message_of(getattr(model, mode)(), batch(0))
    whole = fully_shard(network(W8A8()).bfloat16(), mesh=mesh(), mp_policy=policy)
    whole(batch(0))  # its parameters are bfloat16: nothing is rounded
    return found


def compute(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {"refusals": refusals()}
    for name, config in (SCHEMES | {"learned": LEARNED}).items():
        found |= {f"ddp {name}": by_ddp(config), f"fsdp {name}": by_fsdp(config)}
    return found | {"fsdp gathered": by_fsdp(W8A8(), gathers=True)}


results = results_fixture("master", compute)


@pytest.mark.process
@pytest.mark.parametrize("name", (*SCHEMES, "learned", "gathered"))
@pytest.mark.parametrize("wrapper", ("ddp", "fsdp"))
def test_what_is_trained_is_served(wrapper: str, name: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        found = result.get(f"{wrapper} {name}", result[f"{wrapper} w8a8"])
        assert found["served"].dtype == torch.bfloat16
        for other in {"evaluated", "served under autocast"} & found.keys():
            assert torch.equal(found[other], found["served"]), other
        if name in EXACT:
            assert torch.equal(found["trained"], found["served"])
        if wrapper == "fsdp":
            assert torch.equal(found["unsharded"], found["unsharded, served"])


@pytest.mark.process
def test_a_wrapper_that_rounds_is_no_secret(results: list[dict[str, Any]]) -> None:
    for result in results:
        for name, message in result["refusals"].items():
            expected = "in float32, as the optimizer holds them, but got bfloat16: a wrapper"
            assert expected in message, name


# --- integers instead of weights are gathered ----------------------------------------------------

BACKWARD = {"int8": W8A8(backward="int8"), "int8_factors": W4A8(8, backward="int8_input")}
GATHERED = {name: scheme.config for name, scheme in models.LINEAR.items()} | BACKWARD
# Every scheme that is gathered, and every way with one that is packed.
RUNS = [(name, "plain") for name in ("w8a8", "w8a8_asymmetric", "w4a8_channels", "rotated")]
RUNS += [(name, "plain") for name in ("ternary_channels", "asymmetric_factors", *BACKWARD)]
RUNS += [("factors", way) for way in ("plain", "kept", "checkpointed", "compiled")]


def layers(config: QuantConfig, policy: str = "float32") -> Any:
    """A prepared model; its master is the dtype of the parameters that a policy hands over."""
    config = replace(config, master=None if policy == "float32" else policy)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 24), nn.Linear(24, 5))
    prepare_(model, config)
    return model.to(place())


def train_gathered(name: str, policy: str, way: str, quantized: bool) -> dict[str, Tensor]:
    model = layers(GATHERED[name], policy)
    kinds: list[bool] = []
    if quantized:
        assert quantize_all_gather(model) == ["0", "2", "3"]
        model[0].register_forward_hook(
            lambda layer, *_: kinds.append(isinstance(layer._parameters["weight"], GatheredWeight))
        )
    if way == "compiled":
        torch._dynamo.reset()
        for layer in model:
            layer.compile(backend="aot_eager")
    sharded(model, POLICIES[policy], reshard_after_forward=way != "kept")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    found: dict[str, Tensor] = {}
    for step in range(STEPS):
        x = features()[dist.get_rank() :: dist.get_world_size()] + step
        x.requires_grad_()
        y = checkpoint(model, x, use_reentrant=False) if way == "checkpointed" else model(x)
        optimizer.zero_grad()
        y.float().square().mean().backward()
        for key, gradient in models.gradients(model).items():
            found[f"{step} {key} gradient"] = gradient
        optimizer.step()
        found |= {f"{step} y": y.detach(), f"{step} dx": x.grad}
    model.eval()
    with torch.no_grad():
        found["evaluated"] = model(features())
    assert not quantized or (kinds and all(kinds)), "the layer gets integers"
    state = whole_state(model)
    return found | {f"state {key}": tensor.detach().clone() for key, tensor in state.items()}


def quantizations(config: QuantConfig) -> list[int]:
    """How often rows are quantized for a forward pass, a backward pass, and an evaluation."""
    model, counts = layers(config), []
    quantize_all_gather(model, lambda module, name: name == "0")
    model[0].sent = lambda rows: counts.append(1) or type(model[0]).sent(model[0], rows)
    sharded(model, MixedPrecisionPolicy())
    found = []
    for is_training in (True, True, False):
        loss = model.train(is_training)(features()).sum()
        found.append(len(counts))
        loss.backward()
        found.append(len(counts))
    return found


def refusals_of_integers() -> dict[str, str]:
    """What the layer says where integers do not do."""
    off, twice = (layers(W8A8()) for _ in range(2))
    quantize_all_gather(off)
    sharded(off, MixedPrecisionPolicy()).apply(bnn.disable_fake_quant)
    sharded(twice, MixedPrecisionPolicy())
    return {
        "off": message_of(off, features()), "twice": message_of(quantize_all_gather, twice),
    }  # fmt: skip


def compute_gathered(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "counts": [quantizations(config) for config in (W8A8(), W4A8(8))],
        "refusals": refusals_of_integers(),
    }
    for name, way in RUNS:
        for policy in POLICIES:
            pair = [train_gathered(name, policy, way, quantized) for quantized in (False, True)]
            found[f"{name} {policy} {way}"] = pair
    return found


gathered = results_fixture("all_gather", compute_gathered, 2, 4)


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name, way", RUNS)
def test_no_bit_changes(name: str, policy: str, way: str, gathered: list[dict[str, Any]]) -> None:
    """Not for rows that are no multiple of the processes, or fewer, either."""
    for result in gathered:
        floats, integers = result[f"{name} {policy} {way}"]
        assert floats.keys() == integers.keys()
        for key, expected in floats.items():
            assert torch.equal(integers[key], expected), key
        assert not torch.equal(floats["0 y"], floats["2 y"]), "it trains"


@pytest.mark.exhaustive
@pytest.mark.process
def test_a_backward_pass_quantizes_no_weight(gathered: list[dict[str, Any]]) -> None:
    for result in gathered:
        for counts in result["counts"]:
            assert counts == [1, 1, 2, 2, 3, 4], "each evaluation is followed by a backward pass"


@pytest.mark.exhaustive
@pytest.mark.process
def test_what_integers_cannot_do_is_refused(gathered: list[dict[str, Any]]) -> None:
    for found in (result["refusals"] for result in gathered):
        assert "expected fake quantization to be on" in found["off"]
        assert "0: expected a plain weight, but it is sharded already" in found["twice"]


def test_models_without_such_layers_are_refused() -> None:
    with pytest.raises(TypeError, match="quantize_all_gather: expected model to be a Module"):
        quantize_all_gather(W8A8())  # type: ignore[arg-type]
    others = (
        W8A8Static(),
        W4A8(4, learned=True),
        described("int2 per_tensor ternary, int8 per_token"),
    )
    for config in (None, *others):
        model = nn.Sequential(nn.Linear(4, 2))
        if config is not None:
            prepare_(model, config)
        with pytest.raises(ValueError, match="quantize_all_gather: expected a model with"):
            quantize_all_gather(model)


def test_a_shared_weight_is_left_out() -> None:
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    prepare_(model, W8A8())
    assert quantize_all_gather(model) == ["2"]
    assert isinstance(model[2]._parameters["weight"], ShardedWeight)
    assert model[1]._parameters["weight"] is model[0]._parameters["weight"]
    x = torch.randn(2, 8)
    expected = nn.functional.linear(x, model[2].weight.detach() * 1, model[2].bias)
    assert (model[2](x) - expected).abs().max() < 0.1, "one process computes as before"


# --- integers of converted layers are sharded, and the model keeps its bits -----------------------


def compute_sharded(rank: int) -> dict[str, Any]:
    """The outputs of models, whole and then sharded, and this process's share of the integers.

    A process computes both: the static range of an expert follows a floating product, whose last
    bits depend on the number of threads.
    """
    device = place()
    results: dict[str, Any] = {}
    for kind in stale.KINDS:
        model, x = stale.made(kind, 1, device), stale.example(kind).to(device)
        whole = sum(p.numel() for p in model.parameters())
        with torch.no_grad():
            results[f"{kind} whole"] = model(x)
        for layer in model.children():
            fully_shard(layer, mesh=mesh())
        fully_shard(model, mesh=mesh())
        with torch.no_grad():
            results[kind] = model(x)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        own = sum(p.to_local().numel() for p in model.parameters())
        results[f"{kind} share"] = torch.tensor([own, whole])
    model = stale.made("dynamic", 1, device).bfloat16()
    for name in ("gradient whole", "gradient"):
        if name == "gradient":
            fully_shard(model, mesh=mesh(), mp_policy=MixedPrecisionPolicy(torch.bfloat16))
        x = stale.example("dynamic").to(device, torch.bfloat16).requires_grad_()
        model(x).float().sum().backward()
        results[name] = x.grad
    return results


integers = results_fixture("sharded_integers", compute_sharded)


@pytest.mark.process
@pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 12),
    reason="fully_shard of torch 2.11 takes no integer parameters: it lets them require gradients",
)
def test_fully_shard(integers: list[dict[str, Any]]) -> None:
    for result in integers:
        for kind in (*stale.KINDS, "gradient"):
            assert torch.equal(result[kind], result[f"{kind} whole"]), kind
        for kind in stale.KINDS:
            own, whole = result[f"{kind} share"].tolist()
            assert own < whole, kind


# --- new tensors of layers that are split ---------------------------------------------------------

# NB: a DTensor, of a floating layer too, ignores what its `data` is set to, and cannot be detached
# in inference mode.
PLACED = sorted(stale.WAYS.keys() - {"set_data", "copy_in_inference_mode"})
SPLIT = ("w8a8_asymmetric", "input_per_tensor", "static", "weight_with_zero_points", "groups")


def split(kind: str, factor: float) -> Any:
    """A converted model, split: the outputs of one layer, the inputs of the other."""
    model = models.prepared(kind).eval()
    del model.table, model.out
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor).add_(factor - 1)
    convert_(model)
    parallelize_module(model, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model.forward = model.mlp
    return model


def put(rank: int) -> dict[str, Tensor]:
    """Whether a model has the bits of another whose tensors were put into it."""
    found = {}
    for number, kind in enumerate(SPLIT):
        new = split(kind, 1.7)
        x = features()
        with torch.no_grad():
            wanted = new(x)
            for way in PLACED[number % 2 :: 2]:
                model = split(kind, 1)
                assert not torch.equal(model(x), wanted)
                stale.WAYS[way](model, new.state_dict())
                found[f"{kind} {way}"] = torch.equal(model(x), wanted)
            model = split(kind, 1)
            state = {name: tensor.detach() for name, tensor in stale.tensors(new).items()}
            y = torch.func.functional_call(model, state, (x,))
            found[f"{kind} functional_call"] = torch.equal(y, wanted)
    return {key: torch.tensor(value) for key, value in found.items()}


new_tensors = results_fixture("new_tensors", put)


@pytest.mark.process
def test_new_tensors_count_at_once(new_tensors: list[dict[str, Any]]) -> None:
    for result in new_tensors:
        assert [name for name, is_right in result.items() if not is_right] == []
