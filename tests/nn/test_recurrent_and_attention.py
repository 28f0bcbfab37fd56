# SPDX-License-Identifier: BSD-3-Clause
"""Recurrent layers and attention, of linear layers: PyTorch's results and gradients.

And what swapping makes of recurrent ones.
"""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import baraquant.nn as bnn
from baraquant import W8A8, W8A8Static
from baraquant.qat import convert_, prepare_
from tests.support import cases
from tests.support.models.training_models import data
from tests.support.schemes import described

pytestmark = pytest.mark.filterwarnings("ignore:dropout option:UserWarning")
FEATURES, HIDDEN, STEPS, BATCH = 5, 6, 4, 3
LENGTHS = [2, 4, 1]

LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {}),
    "lstm_deep": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm_projected": ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    "lstm_no_bias": ("LSTM", {"bias": False, "proj_size": 3, "batch_first": True}),
    "gru": ("GRU", {"num_layers": 3}),
    "gru_both": ("GRU", {"bidirectional": True, "batch_first": True, "bias": False}),
    "rnn_tanh": ("RNN", {"num_layers": 2, "bidirectional": True}),
    "rnn_relu": ("RNN", {"nonlinearity": "relu", "batch_first": True}),
}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm_cell": ("LSTMCell", {}),
    "lstm_cell_no_bias": ("LSTMCell", {"bias": False}),
    "gru_cell": ("GRUCell", {}),
    "rnn_cell_tanh": ("RNNCell", {"bias": False}),
    "rnn_cell": ("RNNCell", {"nonlinearity": "relu"}),
}
by_layer = pytest.mark.parametrize("name", LAYERS)
by_cell = pytest.mark.parametrize("name", CELLS)
SCHEMES = {
    "dynamic": W8A8(symmetric=False), "static": W8A8Static(),
    "learned": described("int4 learned, int8 per_tensor learned"),
    "groups": described("int4 per_tensor asymmetric"),
}  # fmt: skip


def floating(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    kind, options = (LAYERS | CELLS)[name]
    return getattr(nn, kind)(FEATURES, HIDDEN, **(options | changes)).to(dtype)


def ours(module: nn.Module) -> nn.Module:
    """The same of linear layers, with the same parameters."""
    return getattr(bnn, type(module).__name__).from_float(module)


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=cases.generator(seed), dtype=torch.float64).to(dtype)


def example(module: nn.Module, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    shape = (BATCH, STEPS) if module.batch_first else (STEPS, BATCH)
    return randn(*shape, FEATURES, seed=seed, dtype=dtype)


def packed(module: nn.Module, x: Tensor, enforce_sorted: bool = False) -> PackedSequence:
    lengths = torch.tensor(sorted(LENGTHS, reverse=True) if enforce_sorted else LENGTHS)
    return pack_padded_sequence(x, lengths, module.batch_first, enforce_sorted)


def states(module: nn.Module, batch: tuple[int, ...] = (BATCH,)) -> Any:
    """Initial states; a pair for an LSTM."""
    cells = module.num_layers * (2 if module.bidirectional else 1)
    h = randn(cells, *batch, module.proj_size or HIDDEN, seed=2).requires_grad_()
    c = randn(cells, *batch, HIDDEN, seed=3).requires_grad_()
    return (h, c) if module.mode == "LSTM" else h


def leaves(value: Any) -> list[Tensor]:
    if value is None:
        return []
    if isinstance(value, PackedSequence):
        return [value.data]
    return [value] if isinstance(value, Tensor) else [t for one in value for t in leaves(one)]


def same(module: nn.Module, other: nn.Module, *arguments: Any) -> None:
    """Both give the same outputs, and the same gradients of inputs, states and parameters."""
    wrt = [t for t in leaves(arguments) if t.requires_grad] + list(module.parameters())
    results = []
    for one in (module, other):
        outputs = leaves(one(*arguments))
        loss = sum((t * randn(*t.shape, seed=4, dtype=t.dtype)).sum() for t in outputs)
        results.append(outputs + list(torch.autograd.grad(loss, wrt, allow_unused=True)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@by_layer
def test_results_and_gradients_are_pytorchs(name: str) -> None:
    module = floating(name)
    other, x = ours(module), example(module).requires_grad_()
    same(module, other, x)
    same(module, other, x, states(module))
    single = randn(STEPS, FEATURES).requires_grad_()
    same(module, other, single)
    same(module, other, single, states(module, ()))
    one = x[:, :1] if module.batch_first else x[:1]
    same(module, other, one)


@by_layer
@pytest.mark.parametrize("is_sorted", [False, True])
def test_packed_sequences(name: str, is_sorted: bool) -> None:
    module = floating(name)
    other, x = ours(module), example(module).requires_grad_()
    same(module, other, packed(module, x, is_sorted))
    same(module, other, packed(module, x, is_sorted), states(module))
    got, wanted = other(packed(module, x, is_sorted))[0], module(packed(module, x, is_sorted))[0]
    assert type(got) is PackedSequence
    for a, b in zip(got[1:], wanted[1:], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    padded, lengths = pad_packed_sequence(got, batch_first=module.batch_first)
    torch.testing.assert_close(padded, pad_packed_sequence(wanted, module.batch_first)[0])
    assert lengths.tolist() == (sorted(LENGTHS, reverse=True) if is_sorted else LENGTHS)


@by_cell
def test_cells_are_pytorchs(name: str) -> None:
    module = floating(name)
    other, x = ours(module), randn(BATCH, FEATURES).requires_grad_()
    h, c = (randn(BATCH, HIDDEN, seed=seed).requires_grad_() for seed in (2, 3))
    is_lstm = isinstance(module, nn.LSTMCell)
    same(module, other, x)
    same(module, other, x[0])
    same(module, other, x, (h, c) if is_lstm else h)
    same(module, other, x[0], (h[0], c[0]) if is_lstm else h[0])
    assert other.weight_ih is module.weight_ih and other.weight_hh is module.weight_hh
    assert other.bias_ih is module.bias_ih and other.bias == module.bias


@by_layer
def test_parameters_are_shared_under_pytorchs_names(name: str) -> None:
    module = floating(name)
    other = ours(module)
    assert {id(p) for p in other.parameters()} == {id(p) for p in module.parameters()}
    for parameter in module._flat_weights_names:
        assert getattr(other, parameter) is getattr(module, parameter)
    for got, wanted in zip(other.all_weights, module.all_weights, strict=True):
        assert all(a is b for a, b in zip(got, wanted, strict=True))
    options = "mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"
    for attribute in (*options, "bidirectional", "proj_size"):
        assert getattr(other, attribute) == getattr(module, attribute)
    assert not hasattr(other, "weight_ih_l7") and not hasattr(other, "weight_ih")
    assert hasattr(other, "weight_hr_l0") == (module.proj_size > 0)
    assert all(isinstance(cell.ih, nn.Linear) for cell in other.cells.values())
    other.flatten_parameters()
    twin = copy.deepcopy(other)
    twin.reset_parameters()
    bound = HIDDEN**-0.5
    assert all(0 < p.abs().max() <= bound for p in twin.parameters())
    twin.load_state_dict(other.state_dict())
    x = example(module)
    assert torch.equal(twin(x)[0], other(x)[0])
    made = getattr(bnn, type(module).__name__)(FEATURES, HIDDEN, **LAYERS[name][1]).double()
    made.load_state_dict(other.state_dict())
    assert torch.equal(made(x)[0], other(x)[0]) and repr(made) == repr(other)


@pytest.mark.parametrize("name", ["lstm_deep", "gru"])
def test_dropout_between_layers(name: str) -> None:
    everything, half = floating(name, dropout=1.0), floating(name, dropout=0.5)
    x = example(everything).requires_grad_()
    same(everything, ours(everything), x)
    other = ours(half)
    first, second = other(x)[0], other(x)[0]
    assert not torch.equal(first, second)
    same(half.eval(), other.eval(), x)
    assert torch.equal(other(x)[0], other(x)[0])
    assert ours(half).training is False


@by_layer
def test_scripted_exported_and_compiled(name: str) -> None:
    module = ours(floating(name)).eval()
    x, hx = example(module), states(module)
    script = torch.jit.script(module)
    with torch.no_grad():
        exported = torch.export.export(module, (x, hx)).module()
    for one in (torch.compile(module, backend="eager", fullgraph=True), script, exported):
        torch.testing.assert_close(leaves(one(x, hx)), leaves(module(x, hx)))
    assert torch.equal(script(x)[0], module(x)[0])


@by_cell
def test_cells_scripted_and_compiled(name: str) -> None:
    module, x = ours(floating(name)), randn(BATCH, FEATURES)
    wanted = leaves(module(x))
    for one in (torch.compile(module, backend="eager", fullgraph=True), torch.jit.script(module)):
        torch.testing.assert_close(leaves(one(x)), wanted)


class Reader(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = ours(floating(name, torch.float32))
        self.cell = ours(floating(name.partition("_")[0] + "_cell", torch.float32))
        self.head = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.layer(packed(self.layer, x))
        x = self.head(leaves(self.cell(x.flatten(0, 1)))[0])
        return torch.cat([output.data.flatten(), x.flatten()])


@by_layer
@pytest.mark.parametrize("scheme", SCHEMES)
def test_swapped_layers_have_the_bits_of_their_evaluation(name: str, scheme: str) -> None:
    model = Reader(name).train()
    x = example(model.layer, torch.float32)
    close = model(x)
    products = sum(isinstance(module, nn.Linear) for module in model.modules())
    report = prepare_(model, SCHEMES[scheme])
    assert len(report.changed) == products and not report.left_out
    for seed in range(3):
        model(example(model.layer, torch.float32, seed)).square().mean().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    model.eval()
    wanted = model(x).detach()
    convert_(model)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert torch.equal(model(x), wanted)
    assert not torch.equal(wanted, close)
    if scheme == "dynamic":
        assert (wanted - close).norm() < 0.05 * close.norm()
    # What a reader asks of the layer is still there.
    assert model.layer.weight_ih_l0.shape == model.layer.cells["l0"].ih.qweight.shape
    assert len(model.layer.all_weights) == len(model.layer.cells)


def test_what_cannot_be_taken_over_is_named() -> None:
    class Own(nn.LSTM):
        def forward(self, *arguments: Any) -> Any:
            return super().forward(*arguments)

    class Inherited(nn.GRU):
        pass

    assert bnn.GRU.why_not(Inherited(2, 3)) is None
    assert type(bnn.GRU.from_float(Inherited(2, 3))) is bnn.GRU
    computed = nn.utils.parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0")
    replaced = nn.GRUCell(2, 3)
    replaced.forward = lambda x: x
    for kind, module, reason in (
        (bnn.LSTM, Own(2, 3), "Own has a forward of its own"),
        (bnn.LSTM, computed, "its weight_hh_l0 is computed by a parametrization or a hook"),
        (bnn.LSTM, nn.GRU(2, 3), "GRU has a forward of its own"),
        (bnn.GRUCell, replaced, "its forward was replaced by another"),
        (bnn.RNNCell, nn.Linear(2, 3), "Linear has a forward of its own"),
    ):
        assert kind.why_not(module) == reason
        with pytest.raises(ValueError, match=f"{kind.__name__}: {reason}"):
            kind.from_float(module)


def test_wrong_tensors() -> None:
    gru, lstm = bnn.GRU(2, 3, num_layers=2), bnn.LSTM(2, 3, proj_size=1)
    x, h = torch.zeros(5, 4, 2), torch.zeros(1, 4, 3)
    for layer, arguments, message in (
        (gru, (x[0, 0],), r"GRU: expected input to have 2 or 3 dimensions, but got \[2\]"),
        (gru, (x[..., :1],), r"GRU: expected input to have 2 features \(input_size\), but got 1"),
        (gru, (x[:0],), "GRU: expected input to have at least one step, but got none"),
        (gru, (x, h), r"have the shape \[2, 4, 3\] \(num.*size\), but got \[1, 4, 3\]"),
        (gru, (x[:, 0], h), r"the shape \[2, 1, 3\].*, but got \[1, 1, 4, 3\]"),
        (lstm, (x, (h, h)), r"LSTM: expected the initial state to have the shape \[1, 4, 1\]"),
        (bnn.GRUCell(2, 3), (x,), r"GRUCell: .* shape \[2\] or \[batch, 2\] \(input_size\)"),
        (bnn.LSTMCell(2, 3), (x[0], (h, h)), r"the shape \[4, 3\] \(hidden_size\), but got \[1,"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(*arguments)


# --- attention: PyTorch's results, out of four linear layers --------------------------------------


def masks(batch: int, length: int) -> list[dict[str, Any]]:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[:, -1] = True
    causal = nn.Transformer.generate_square_subsequent_mask(length)
    return [
        {}, {"need_weights": False}, {"key_padding_mask": padding, "average_attn_weights": False},
        {"attn_mask": causal.isinf(), "need_weights": False}, {"attn_mask": torch.rand(batch * 2,
        length, length)}, {"attn_mask": causal, "is_causal": True, "need_weights": False},
        {"attn_mask": causal, "is_causal": True, "key_padding_mask": padding},
    ]  # fmt: skip


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 4}, {"bias": False}], ids=str)
def test_attention_is_pytorchs(batch_first: bool, sizes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first, **sizes)
    module = bnn.MultiheadAttention.from_float(plain)
    assert module.out_proj.weight is plain.out_proj.weight
    query, key, value = (data(3, 4, sizes.get(name, 8)) for name in ("qdim", "kdim", "vdim"))
    scripted = torch.jit.script(module)
    sizes = (3, 4) if batch_first else (4, 3)
    for options, mode in itertools.product(masks(*sizes), (True, False)):
        wanted, weights = plain.train(mode)(query, key, value, **options)
        for one in (module.train(mode), scripted):
            got, ours = one(query, key, value, **options)
            torch.testing.assert_close(got, wanted)
            assert (ours is None) == (weights is None)
            if weights is not None:
                torch.testing.assert_close(ours, weights)
    first = query[0], key[0], value[0]
    torch.testing.assert_close(module(*first), plain(*first))


def test_attention_drops_in_training_alone() -> None:
    module = bnn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = data(2, 5, 8)
    for need_weights in (True, False):
        first, second = (module.train()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert not torch.equal(first, second)
        first, second = (module.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert torch.equal(first, second)


def test_what_attention_refuses() -> None:
    module, x = bnn.MultiheadAttention(8, 2), data(2, 5, 8)
    with pytest.raises(RuntimeError, match="expected an attn_mask beside is_causal"):
        module(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match="no quantized form of add_bias_kv"):
        bnn.MultiheadAttention.from_float(nn.MultiheadAttention(8, 2, add_zero_attn=True))
