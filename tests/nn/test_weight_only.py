# SPDX-License-Identifier: BSD-3-Clause
"""Layers of floating arithmetic: the linear one whose weights take half a byte each; embeddings.

Those that dequantize their weight keep integers alone for the backward pass, and compute in the
dtype of the input, where their bias has another.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from baraquant import W4A16, W8A8, W8A16, SmoothQuant, W8A8Static, load_, ops, quantize_, save
from baraquant import nn as bnn
from baraquant.workflow.layers import is_converted
from baraquant.workflow.serialization.disk import open_file
from baraquant.workflow.serialization.tensor_file import read_header
from tests.nn.test_quantizer_modules import saved
from tests.support import cases
from tests.support.models.training_models import data, weight_configs
from tests.support.saved_tensors import saved_tensors, storages
from tests.support.schemes import described

N, K = 12, 48


def integers(columns: int, bits: int = 4) -> Tensor:
    high = 1 << (bits - 1)
    return torch.randint(-high, high, (N, columns), generator=cases.generator(1)).to(torch.int8)


def layer(columns: int = K, group_size: int | None = None, **options: Any) -> Any:
    torch.manual_seed(5)
    bits, dtype = options.get("weight_bits", 4), options.setdefault("dtype", torch.float32)
    shape = (N,) if group_size is None else (N, -(-columns // group_size))
    scale = torch.rand(shape, dtype=torch.promote_types(dtype, torch.float32)) + 0.5
    bias = options.pop("bias", torch.randn(N).to(dtype))
    zeros = torch.randint(-2, 2, shape) if options.pop("zero", False) else None
    more = {"in_features": columns, "group_size": group_size, "weight_zero_point": zeros} | options
    return bnn.WeightOnlyInt4Linear(ops.pack_int4(integers(columns, bits)), scale, bias, **more)


TOKENS = {"mode": "dynamic", "granularity": "per_token", "symmetric": False}
ROUNDERS: dict[str, Any] = {
    "float": lambda scale: None,
    "tokens": lambda scale: bnn.FakeQuantize(**TOKENS),
    "fixed": lambda scale: bnn.FakeQuantize(scale, 3, quant_min=-128, quant_max=127),
}
CASES: dict[str, dict[str, Any]] = {
    "channels": {},
    "odd": {"columns": 33},
    "one": {"columns": 1},
    "none": {"columns": 0},
    "odd groups": {"columns": 33, "group_size": 7, "zero": True},
    "groups": {"group_size": 16},
    "asymmetric": {"zero": True},
    "two bits": {"weight_bits": 2, "group_size": 16, "zero": True},
    "three bits": {"weight_bits": 3, "bias": None},
    "transposed": {"transposed": True, "group_size": 16},
    "rotated": {"rotate": 16, "group_size": 16},
}
by_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
@by_case
@pytest.mark.parametrize("rounds", ROUNDERS)
def test_it_has_the_bits_of_int8(case: dict[str, Any], dtype: torch.dtype, rounds: str) -> None:
    scale = torch.tensor(0.05, dtype=torch.promote_types(dtype, torch.float32))
    one = layer(**case, dtype=dtype, input_fake_quant=ROUNDERS[rounds](scale))
    same = one.as_int8()
    columns = case.get("columns", K)
    assert torch.equal(one.qweight, integers(columns, one.weight_bits))
    assert type(same) is bnn.WeightOnlyLinear and torch.equal(same.qweight, one.qweight)
    x = torch.randn(2, 3, columns, generator=cases.generator(2)).to(dtype)
    own, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, wanted = one(own), same(theirs)
    assert torch.equal(output, wanted)
    dy = torch.randn_like(output)
    output.backward(dy)
    wanted.backward(dy)
    assert torch.equal(own.grad, theirs.grad)
    assert torch.equal(one.weight + 0, same.weight + 0)
    assert one.weight.shape == same.weight.shape and one.weight.dtype == dtype
    assert one.weight.stride() == same.weight.stride()
    assert repr(one).replace("Int4", "") == repr(same)


def test_reading_the_weight_takes_no_memory() -> None:
    one = layer(group_size=16)
    weight = one.weight
    assert weight.shape == (N, K) and weight.is_contiguous() and weight.dtype == torch.float32
    assert dict(one.named_parameters())["packed"].numel() == N * K // 2
    assert "qweight" not in dict(one.named_parameters())
    with pytest.raises(AttributeError):
        one.qweight = one.qweight


@by_case
def test_a_state_dict_of_int8_is_packed(case: dict[str, Any]) -> None:
    one = layer(**case)
    for assign in (False, True):
        other = nn.Sequential(copy.deepcopy(one).to("meta") if assign else layer(**case))
        other[0].packed.zero_()
        state = {f"0.{name}": t for name, t in one.as_int8().state_dict().items()}
        other.load_state_dict(state, assign=assign)
        assert torch.equal(other[0].packed, one.packed)


BAD_STATES: dict[str, tuple[Any, str]] = {
    "wide": (torch.full((N, K), 8, dtype=torch.int8), r"integers in \[-8, 7\].*got 8 to 8"),
    "shape": (torch.ones(N, K // 2, dtype=torch.int8), r"the shape \[12, 48\]"),
    "dtype": (torch.ones(N, K, dtype=torch.int32), "expected int8, to be packed"),
    "list": ([1, 2], "expected int8, to be packed, but got list"),
}


@pytest.mark.parametrize(("value", "words"), BAD_STATES.values(), ids=BAD_STATES)
def test_state_dicts_that_are_refused(value: Any, words: str) -> None:
    one = layer()
    state = one.as_int8().state_dict() | {"qweight": value}
    with pytest.raises(RuntimeError, match=f"qweight: .*{words}"):
        one.load_state_dict(state)
    assert torch.equal(one.qweight, integers(K))


@by_case
@pytest.mark.parametrize("rounds", ROUNDERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted(case: dict[str, Any], rounds: str) -> None:
    one = layer(**case, input_fake_quant=ROUNDERS[rounds](0.05)).eval()
    x = torch.randn(3, one.in_features)
    loaded = torch.jit.load(saved(torch.jit.save, torch.jit.script(one)))
    assert torch.equal(loaded(x), one(x))


class Reads(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.child(x), self.child.qweight + 0, self.child.weight + 0


@pytest.mark.parametrize("name", ["channels", "odd groups", "rotated", "transposed"])
def test_compiled_and_exported(name: str) -> None:
    model = Reads(layer(**CASES[name])).eval()
    x = torch.randn(3, model.child.in_features)
    wanted = model(x)
    torch._dynamo.reset()
    programs = [
        torch.compile(model, fullgraph=True, backend="aot_eager"),
        torch.export.export(model, (x,)).module(),
        torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},)).module(),
    ]
    for program in programs:
        for got, right in zip(program(x), wanted, strict=True):
            assert torch.equal(got, right)


@pytest.mark.parametrize("bits", (2, 3, 4))
@pytest.mark.parametrize("columns", (K, 33))
def test_files(bits: int, columns: int, tmp_path: Path) -> None:
    one = layer(columns, weight_bits=bits)
    model, path = nn.Sequential(one), tmp_path / "model.safetensors"
    save(model, path)
    with open_file(path) as file:
        entry = read_header(file).tensors["0.packed"]
    bytes_ = N * -(-columns // 2) if bits == 4 else -(-N * columns * bits // 8)
    assert entry.end - entry.begin == bytes_ and entry.dtype == torch.uint8
    loaded = load_(nn.Sequential(nn.Linear(columns, N)), path)
    assert type(loaded[0]) is bnn.WeightOnlyInt4Linear and loaded[0].weight_bits == bits
    assert torch.equal(loaded[0].packed, one.packed)
    again = load_(nn.Sequential(layer(columns, weight_bits=bits)), path)
    x = torch.randn(2, columns)
    assert torch.equal(loaded(x), model(x)) and torch.equal(again(x), model(x))
    save(nn.Sequential(one.as_int8()), path)
    old = load_(nn.Sequential(nn.Linear(columns, N)), path)
    assert type(old[0]) is bnn.WeightOnlyLinear and torch.equal(old(x), model(x))


def test_numbers_that_are_too_wide_are_refused(tmp_path: Path) -> None:
    model = nn.Sequential(layer(weight_bits=3))
    model[0].packed[0, 0] = 0xF8
    with pytest.raises(ValueError, match=r"0: packed: expected integers in \[-4, 3\].*to 7"):
        save(model, tmp_path / "model.safetensors")


class Tied(nn.Module):
    """Two linear layers with one weight, and one that has the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(N, K), nn.Linear(K, N, bias=False)
        self.one, self.other = nn.Linear(K, N, bias=False), nn.Linear(K, N, bias=False)
        self.head.weight, self.other.weight = self.table.weight, self.one.weight


def test_tied_layers_share_one_tensor() -> None:
    model = Tied().eval()
    quantize_(model, W4A16(16))
    assert type(model.table) is bnn.QuantizedEmbedding and type(model.head) is bnn.WeightOnlyLinear
    assert model.head.qweight is model.table.qweight
    assert type(model.one) is type(model.other) is bnn.WeightOnlyInt4Linear
    moved = model.double()
    assert moved.one.packed is moved.other.packed


def test_a_weight_that_nobody_holds_as_int8_is_packed() -> None:
    model = Tied()
    with pytest.raises(ValueError, match="table"):
        quantize_(model, {"table": W8A16(), "*": W4A16(16)})
    model.table.weight = nn.Parameter(model.table.weight.detach().clone())
    quantize_(model, {"table": None, "*": W4A16(16)})
    assert type(model.head) is bnn.WeightOnlyInt4Linear


# --- what is kept for the backward pass -----------------------------------------------------------

SCHEMES = {"8 bits": W8A16(), "4 bits in groups": W4A16(4, symmetric=False)}
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(16, 24), (2, 3, 16)),
    "conv": (lambda: nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"), (2, 8, 6, 6)),
    "conv of groups": (lambda: nn.Conv1d(16, 12, 3, groups=2), (2, 16, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 3, stride=2), (2, 8, 6, 6)),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


def layer_and_input(name: str, scheme: str = "8 bits", dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    model = nn.Sequential(make()).to(dtype)
    quantize_(model, SCHEMES[scheme], progress=False)
    assert is_converted(model[0])
    return model[0], torch.randn(shape, dtype=dtype).requires_grad_()


def floating(layer: Any, name: str) -> nn.Module:
    """A float layer of the same weight, whose product keeps it."""
    float_layer = LAYERS[name][0]().to(layer.dtype).requires_grad_(False)
    float_layer.weight.copy_(layer.weight)
    float_layer.bias.copy_(layer.bias)
    return float_layer


def kept(layer: nn.Module, input: Tensor) -> int:
    with saved_tensors() as saved:
        output = layer(input)
    del output
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    return sum(size for place, size in storages(saved).items() if place not in own)


@pytest.mark.exhaustive
@every_layer
@every_scheme
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_gradients_are_those_of_the_float_layer(name: str, scheme: str, dtype: torch.dtype) -> None:
    layer, x = layer_and_input(name, scheme, dtype)
    outputs, grads = [], []
    for module in (layer, floating(layer, name)):
        y = module(x)
        outputs.append(y.detach())
        dy = 2 * outputs[0]  # of the sum of squares; the same for both
        grads.append(torch.autograd.grad(y, x, dy)[0])
    assert torch.equal(*grads)
    if name == "linear":  # whose sums have an order of their own
        torch.testing.assert_close(*outputs)
    else:
        assert torch.equal(*outputs)


@every_layer
@every_scheme
@pytest.mark.parametrize("autocast", [False, True])
def test_the_weight_is_not_kept(name: str, scheme: str, autocast: bool) -> None:
    layer, x = layer_and_input(name, scheme)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        more = kept(layer, x) - kept(floating(layer, name), x)
    assert more <= 0, "no more than a float layer, which keeps its own parameter"


@pytest.mark.exhaustive
@every_layer
def test_autocast_has_the_bits_of_the_float_layer(name: str) -> None:
    layer, x = layer_and_input(name)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [module(x) for module in (layer, floating(layer, name))]
    assert outputs[0].dtype == torch.bfloat16 and torch.equal(*outputs)
    grads = [torch.autograd.grad(y.float().square().sum(), x)[0] for y in outputs]
    assert torch.equal(*grads)


@pytest.mark.exhaustive
@every_layer
def test_second_derivatives_and_checkpoints(name: str) -> None:
    layer, x = layer_and_input(name, dtype=torch.float64)
    # Along random directions: entry by entry this takes minutes.
    assert torch.autograd.gradgradcheck(layer, x, atol=1e-4, fast_mode=True)
    (wanted,) = torch.autograd.grad(layer(x).square().sum(), x)
    for reentrant in (False, True):
        x.grad = None
        checkpoint(layer, x, use_reentrant=reentrant).square().sum().backward()
        assert torch.equal(x.grad, wanted)
    got = torch.func.grad(lambda t: layer(t).square().sum())(x.detach())
    assert torch.equal(got, wanted)
    _, tangent = torch.func.jvp(layer, (x.detach(),), (x.detach(),))
    with torch.no_grad():
        torch.testing.assert_close(tangent, layer(x) - layer(torch.zeros_like(x)))


def test_integers_that_change_before_the_backward_pass_are_noticed() -> None:
    layer, x = layer_and_input("conv")
    output = layer(x)
    layer.qweight.add_(1)
    with pytest.raises(RuntimeError, match="QuantizedConv2d: expected the same integers in the"):
        output.sum().backward()
    output = layer(x)
    layer.qweight = layer.qweight.clone()
    with pytest.raises(RuntimeError, match="changed or moved in between; run the forward pass"):
        output.sum().backward()


def test_a_linear_layer_keeps_its_integers() -> None:
    """Autograd notices a change itself, and a new tensor in their place changes nothing."""
    layer, x = layer_and_input("linear")
    (wanted,) = torch.autograd.grad(layer(x).sum(), x)
    output = layer(x)
    layer.qweight = layer.qweight.clone().zero_()
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], wanted)
    output = layer(x)
    layer.qweight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


# --- a bias of another dtype than the input ------------------------------------------------------

ALL_SCHEMES = {
    **SCHEMES, "int8": W8A8(), "int8 per tensor": described("int8, int8 per_tensor"),
    "int8 static": W8A8Static(), "smoothed": SmoothQuant(),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ALL_SCHEMES)
@pytest.mark.parametrize("bias", [False, True])
def test_a_bfloat16_layer_takes_float32(scheme: str, bias: bool) -> None:
    """It computes what a float32 layer with the same numbers computes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24, bias=bias)).bfloat16()
    data = [torch.randn(32, 16).bfloat16()]
    quantize_(model, ALL_SCHEMES[scheme], calibration=data, progress=False)
    x = torch.randn(5, 16)
    wide = copy.deepcopy(model).float()
    got, wanted = model(x), wide(x)
    assert got.dtype == torch.float32 and torch.equal(got, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).isfinite().all()


# --- embeddings ----------------------------------------------------------------------------------

ROWS = torch.tensor([[1, 3, 3], [0, 8, 2]])


@pytest.mark.parametrize("zero", [False, True], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("groups", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
def test_rows(zero: bool, groups: bool, dtype: torch.dtype, device: str) -> None:
    weight = torch.randint(-8, 8, (9, 8), generator=cases.generator(0)).to(torch.int8)
    scale = torch.rand((9, 2) if groups else 9, generator=cases.generator(1)) + 0.1
    zeros = torch.arange(scale.numel()).reshape(scale.shape) % 5 - 2 if zero else None
    options = {"weight_zero_point": zeros, "group_size": 4 if groups else None, "dtype": dtype}
    module, index = bnn.QuantizedEmbedding(weight, scale, **options).to(device), ROWS.to(device)
    rows = module(index)
    assert rows.shape == (2, 3, 8) and rows.dtype == dtype
    args = module.qweight, module.weight_scale, module.weight_zero_point
    if groups:
        whole = ops.dequantize_per_group(*args, 4, 1, dtype=dtype)
    else:
        whole = ops.dequantize_per_channel(*args, 0, dtype=dtype)
    assert torch.equal(rows, whole[index])
    assert torch.equal(module.weight + 0, whole)
    assert module(index[:0]).shape == (0, 3, 8) and torch.equal(module(index[0, 0]), whole[1])
    if device == "cpu":
        with pytest.raises(IndexError):
            module(torch.tensor([9]))


@pytest.mark.parametrize("weight", weight_configs((4,)), ids=str)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_embedding_in_training(weight: Any, sparse: bool) -> None:
    """Values and gradients are those of a whole table that is fake-quantized."""
    torch.manual_seed(0)
    plain = nn.Embedding(9, 8, padding_idx=3, sparse=sparse)
    module = bnn.FakeQuantizedEmbedding.from_float(plain, described(str(weight)))
    assert module.weight is plain.weight
    if sparse and not module.rounds_rows:
        pytest.skip("a table that is rounded as a whole has a dense gradient")
    grad = data(2, 3, 8)
    module(ROWS).backward(grad)
    got = module.weight.grad.to_dense()
    whole = copy.deepcopy(module.fake_quantized_weight().detach()).requires_grad_()
    assert torch.equal(module(ROWS), F.embedding(ROWS, whole, 3))
    F.embedding(ROWS, whole, 3).backward(grad)
    if weight.symmetric and weight.dynamic:
        torch.testing.assert_close(got, whole.grad)
    assert not got[[3, 4, 5, 6, 7]].any() and got[[0, 1, 2, 8]].any(1).all()
