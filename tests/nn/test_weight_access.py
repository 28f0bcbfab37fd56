# SPDX-License-Identifier: BSD-3-Clause
"""`layer.weight` of a served layer, and of a prepared one: the numbers that it computes with."""

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from baraquant import W8A8
from baraquant.qat import prepare_
from tests.nn.test_quantizer_modules import copies
from tests.support.models import one_layer
from tests.support.models.one_layer import PAIRS, converted, holder, inputs, served, trained

LAYERS, LEARNED = one_layer.LAYERS, ("learned", "learned_asymmetric")
READ = [("linear", "w8a8"), ("linear", "static"), ("linear_no_bias", "w4_group")]
READ += [("conv1d", "w8a8"), ("conv2d", "w8_asymmetric"), ("embedding", "w8a8")]
READ += [("embedding", "w3_group_asymmetric")]


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_metadata(layer: str, scheme: str) -> None:
    child, plain = served(layer, scheme).child, holder(layer).child.weight.detach()
    weight = child.weight
    assert isinstance(weight, Tensor) and not weight.requires_grad and weight.dtype == torch.float32
    names = "shape", "ndim", "device", "is_cuda", "is_meta", "layout", "itemsize", "nbytes"
    for name in (*names, "grad", "is_leaf"):
        assert getattr(weight, name) == getattr(plain, name), name
    for name in ("size", "dim", "numel", "__len__", "is_floating_point", "is_contiguous"):
        assert getattr(weight, name)() == getattr(plain, name)(), name
    assert weight.size(0) == len(plain) and weight.element_size() == 4
    assert child.qweight.dtype == torch.int8 and child.qweight.shape == weight.shape
    assert {"qweight", "packed"} & child._parameters.keys() and "tensor" in repr(weight).lower()
    assert "weight" not in dict(child.named_parameters()) and "weight" not in child.state_dict()


@pytest.mark.parametrize("scheme", ["w4_channel", "w4_group", "w8_asymmetric", LEARNED[1]])
@pytest.mark.parametrize("layer", LAYERS)
def test_weight_only_layers_compute_with_it(layer: str, scheme: str) -> None:
    """Where only the weight is rounded, the layer is PyTorch's function of `layer.weight`."""
    if layer == "conv2d" and "group" in scheme:
        pytest.skip("its two inputs for each output are fewer than a group")
    child, x = served(layer, scheme).child, inputs(layer)
    with torch.no_grad():
        if layer == "embedding":
            wanted = F.embedding(x, child.weight)
        elif "conv" in layer:
            groups = 2 if layer == "conv2d" else 1
            wanted = getattr(F, layer)(x, child.weight, child.bias, groups=groups)
        else:
            wanted = F.linear(x, child.weight, child.bias)
        same = torch.allclose if "linear" in layer else torch.equal  # sums in another order
        assert same(child(x), wanted)


@pytest.mark.parametrize("scheme", one_layer.AFTERWARDS)
def test_after_quantize(scheme: str) -> None:
    """Also where SmoothQuant moved outliers into the weight: what is read is the layer's weight.

    Whoever computes `x @ layer.weight.T` from the layer's input means the layer's function.
    """
    float_model, x = holder("linear"), inputs("linear")
    x[:, 3] *= 40
    wanted = float_model.child.weight.detach().clone()
    model = one_layer.quantized(copy.deepcopy(float_model), scheme, x)
    weight = model.child.weight
    assert weight.dtype == torch.float32
    assert (weight - wanted).norm() < 0.05 * wanted.norm()
    y = F.linear(x, weight, model.child.bias)
    assert (y - float_model(x)).norm() < 0.05 * float_model(x).norm()


READS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "index": lambda w, o: w[2],
    "slice": lambda w, o: w[1:3, ..., :2],
    "mask": lambda w, o: w[o > 0],
    "T": lambda w, o: w.T if w.dim() == 2 else w.mT,
    "view": lambda w, o: w.view(-1),
    "split": lambda w, o: w.split(3),
    "iteration": lambda w, o: list(w),
    "detach": lambda w, o: w.detach(),
    "data": lambda w, o: w.data,
    "to_dtype": lambda w, o: w.to(torch.bfloat16),
    "to_device": lambda w, o: w.to("cpu"),
    "to_other": lambda w, o: w.to(o.double()),
    "type": lambda w, o: w.type(torch.float64),
    "type_as": lambda w, o: w.type_as(o.half()),
    "numpy": lambda w, o: torch.from_numpy(w.numpy().copy()),
    "tolist": lambda w, o: torch.tensor(w.tolist()),
    "item": lambda w, o: w.flatten()[3].item(),
    "radd": lambda w, o: 1 + w,
    "matmul": lambda w, o: w.flatten(1) @ o.flatten(1).T,
    "einsum": lambda w, o: torch.einsum("ak,bk->ab", w.flatten(1), o.flatten(1)),
    "linear": lambda w, o: F.linear(o.flatten(1), w.flatten(1)),
    "norm": lambda w, o: w.norm(),
    "cat": lambda w, o: torch.cat([o, w]),
    "where": lambda w, o: torch.where(o > 0, w, o),
    "equal": lambda w, o: w == o,
    "embedding": lambda w, o: F.embedding(torch.tensor([1, 2]), w.flatten(1)),
    "empty_like": lambda w, o: torch.empty_like(w).shape,
    "new_zeros": lambda w, o: w.new_zeros(3),
    "into": lambda w, o: o.clone().copy_(w),
    "into_item": lambda w, o: operator.setitem(c := o.clone(), 0, w[0]) or c,
    "in_place": lambda w, o: o.clone().add_(w),
    "out": lambda w, o: torch.add(w, o, out=torch.empty_like(o)),
    "input_to": lambda w, o: o.to(w.dtype),
    "input_like": lambda w, o: o.double().to(w),
    "parameter": lambda w, o: nn.Parameter(w.clone()).data,
    "tensor": lambda w, o: torch.as_tensor(w),
}


def plain(value: object) -> object:
    """A result with tensors of PyTorch's own class, to compare."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(("layer", "scheme"), READ)
def test_every_way_of_reading(layer: str, scheme: str, read: str) -> None:
    """Any function of `layer.weight` is that of the plain numbers: value, type and dtype."""
    weight = served(layer, scheme).child.weight
    numbers = torch.tensor(weight.tolist())
    other = torch.randn(weight.shape, generator=torch.Generator().manual_seed(5))
    got, wanted = plain(READS[read](weight, other)), plain(READS[read](numbers, other))
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


WRITES: dict[str, Callable[[Tensor], object]] = {
    "zero_": lambda w: w.zero_(),
    "copy_": lambda w: w.copy_(torch.zeros(w.shape)),
    "imul": lambda w: operator.imul(w, torch.ones(w.shape)),
    "set_item": lambda w: operator.setitem(w, 0, 1.0),
    "data": lambda w: w.data.zero_(),
    "set_data": lambda w: setattr(w, "data", torch.zeros(w.shape)),
    "detach": lambda w: w.detach().zero_(),
    "init_normal": lambda w: nn.init.normal_(w),
    "out": lambda w: torch.add(torch.zeros(w.shape), 1, out=w),
    "foreach": lambda w: torch._foreach_mul_([w], 2.0),
    "requires_grad": lambda w: w.requires_grad_(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(("layer", "scheme"), [("linear", "w8a8"), ("embedding", "w4_group")])
@pytest.mark.parametrize("make", [served, trained])
def test_writing_is_refused(make: Any, layer: str, scheme: str, write: str) -> None:
    """A write that would be lost is an error that says what to do; nothing changes."""
    child = make(layer, scheme).child
    if make is trained and write == "requires_grad":
        pytest.skip("it reaches the parameter")
    before = child.weight.clone()
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError, AttributeError)) as error:
        WRITES[write](child.weight)
    assert "weight" in str(error.value)
    assert any(word in str(error.value) for word in ("qweight", "named_parameters"))
    assert torch.equal(child.weight, before)


@pytest.mark.parametrize("layer", LAYERS)
def test_assigning_another_weight_is_refused(layer: str) -> None:
    """`head.weight = other` would leave the integers as they are, and do nothing."""
    child = served(layer, "w8a8").child
    before = child.weight.clone()
    for value in (torch.zeros(before.shape), nn.Parameter(torch.zeros(before.shape))):
        with pytest.raises((AttributeError, RuntimeError, TypeError), match="weight"):
            child.weight = value
    assert torch.equal(child.weight, before)
    assert not list(child.named_parameters()) or "weight" not in dict(child.named_parameters())


@pytest.mark.parametrize(("layer", "scheme"), [("linear", "static"), ("embedding", "w4_group")])
def test_copies_of_the_view_are_plain_numbers(layer: str, scheme: str) -> None:
    weight = served(layer, scheme).child.weight
    numbers = torch.tensor(weight.tolist())
    for copied in (copy.copy(weight), *copies(weight)):
        assert isinstance(copied, Tensor) and torch.equal(copied, numbers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("scheme", ["w8a8", "w4_channel"])
def test_the_floating_dtype_of_a_layer(layer: str, scheme: str, dtype: torch.dtype) -> None:
    """Made in that dtype, or moved to it; where there is no bias as well."""
    made = served(layer, scheme, dtype=dtype)
    moved = served(layer, scheme).to(dtype)
    for model in (made, moved, copy.deepcopy(made), copy.deepcopy(moved)):
        weight = model.child.weight
        assert weight.dtype == dtype and weight[0].dtype == dtype
        x = inputs(layer, dtype)
        assert model(x).dtype == dtype
    back = moved.float()
    assert back.child.weight.dtype == torch.float32
    assert torch.equal(back.child.weight, served(layer, scheme).child.weight)


# --- of a prepared layer: the parameter in training, what is served in evaluation ---------------


def parameter_of(model: nn.Module) -> nn.Parameter:
    return dict(model.named_parameters())["child.weight"]


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_what_it_is_in_training_and_in_evaluation(layer: str, scheme: str) -> None:
    model = trained(layer, scheme)
    assert model.train().child.weight is parameter_of(model)
    parameter, weight = parameter_of(model), model.eval().child.weight
    assert isinstance(parameter, nn.Parameter) and isinstance(weight, Tensor)
    assert torch.equal(weight.detach(), converted(model).child.weight)
    assert not torch.equal(weight.detach(), parameter.detach())
    assert weight.shape == parameter.shape and weight.dtype == parameter.dtype
    assert weight.device == parameter.device and weight.requires_grad == parameter.requires_grad
    assert weight.is_leaf == parameter.is_leaf and weight.grad is parameter.grad
    # Training goes on: the numbers follow the parameter.
    with torch.no_grad():
        parameter.mul_(2)
    assert torch.equal(model.child.weight.detach(), converted(model).child.weight)


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_names_are_those_of_the_float_model(layer: str, scheme: str) -> None:
    plain, model = holder(layer), trained(layer, scheme)
    names = [n for n, _ in plain.named_parameters()]
    for mode in (True, False):
        model.train(mode)
        got = dict(model.named_parameters())
        assert [n for n in got if "quant" not in n] == names
        assert all(type(p) is nn.Parameter for p in got.values())
        state = model.state_dict()
        assert set(plain.state_dict()) <= set(state) and "child.qweight" not in state
        assert torch.equal(state["child.weight"], parameter_of(model))


@pytest.mark.parametrize(("layer", "scheme"), PAIRS)
def test_gradients_go_straight_through(layer: str, scheme: str) -> None:
    """What is read in evaluation passes its gradient to the parameter, where nothing clipped."""
    model = trained(layer, scheme)
    parameter = parameter_of(model)
    parameter.grad = None
    c = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    (model.child.weight * c).sum().backward()
    assert parameter.grad is not None
    assert model.child.weight.grad is parameter.grad
    if scheme in LEARNED:
        clipped = (parameter.grad != c) & (parameter.grad == 0)
        assert ((parameter.grad == c) | clipped).all() and clipped.float().mean() < 0.5
    else:
        assert torch.equal(parameter.grad, c)
    (grad,) = torch.autograd.grad((2 * model.child.weight).sum(), parameter)
    assert set(grad.unique().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("layer", ["linear", "embedding", "conv1d"])
def test_a_weight_is_frozen_and_thawed(layer: str) -> None:
    """Before it is prepared and after, through the weight itself as users do it."""
    model = holder(layer)
    model.child.weight.requires_grad_(False)
    prepare_(model, W8A8())
    for mode in (True, False):
        model.train(mode)
        assert not (model.child.weight * 2).requires_grad
        for frees in (True, False):
            model.child.weight.requires_grad_(frees)
            assert parameter_of(model).requires_grad == model.child.weight.requires_grad == frees


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_assigning_a_parameter_ties_it(mode: bool) -> None:
    """In training and in evaluation it becomes the parameter."""
    model, other = trained("linear", "w8a8").train(mode), trained("linear_no_bias", "w8a8")
    new = nn.Parameter(torch.randn(8, 16))
    model.child.weight = new
    other.train(mode).child.weight = new
    assert parameter_of(model) is parameter_of(other) is new
    assert torch.equal(model.eval().child.weight.detach(), converted(model).child.weight)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_tying_to_a_weight_that_is_read(mode: bool) -> None:
    """`head.weight = embedding.weight` ties the parameters, whatever the weight reads as."""
    model = nn.ModuleDict({"e": nn.Embedding(8, 16), "h": nn.Linear(16, 8, bias=False)})
    prepare_(model, W8A8())
    model.train(mode)["h"].weight = model["e"].weight
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert parameters["e.weight"] is parameters["h.weight"]


@pytest.mark.parametrize(("layer", "scheme"), [(a, b) for a, b in PAIRS if a != "linear_no_bias"])
def test_copies_of_a_prepared_model(layer: str, scheme: str) -> None:
    model, x = trained(layer, scheme), inputs(layer)
    wanted, weight = model(x).detach(), model.child.weight.detach().clone()
    for copied in (*copies(model), AveragedModel(model).module):
        assert torch.equal(copied(x), wanted) and torch.equal(copied.child.weight, weight)
        assert parameter_of(copied) is not parameter_of(model)
        with torch.no_grad():
            parameter_of(copied).mul_(3)
        assert torch.equal(model(x), wanted)
        assert not torch.equal(copied.child.weight, weight)


@pytest.mark.parametrize("assign", [False, True])
def test_resuming_a_checkpoint_in_evaluation(assign: bool) -> None:
    model, other = trained("linear", "w8a8"), trained("linear", "w8a8", seed=1)
    assert not torch.equal(model.child.weight, other.child.weight)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other.load_state_dict(state, assign=assign)
    assert torch.equal(model.child.weight, other.child.weight)
