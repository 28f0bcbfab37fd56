# SPDX-License-Identifier: BSD-3-Clause
"""``merge_linears_``: one call for the linear layers that read one input, and the same bits."""

import copy
import io
from collections import Counter

import pytest
import torch
from torch import nn

import baraquant
from baraquant import W4A8, W4A16, W8A8, W8A16, SmoothQuant, W8A8Static
from tests.support.bits import assert_same_bits
from tests.support.cuda import capture
from tests.support.optional_packages import package
from tests.support.schemes import described
from tests.support.threads import side_by_side

WIDTH = 32
# The names of q, k, v, the output, and the layers behind them; those that read one input.
LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BERT = ("query", "key", "value", "dense", "up", "down")
SCHEMES = {
    "W8A8": W8A8(), "W8A8 asymmetric": W8A8(symmetric=False), "rotated": W8A8(rotate=16),
    "rotated asymmetric": W8A8(symmetric=False, rotate=32),
    "per tensor": described("int8 per_channel, int8 per_tensor"),
    "per tensor asymmetric": described("int8 per_channel, int8 per_tensor asymmetric"),
    "static": W8A8Static(), "static asymmetric": W8A8Static(symmetric=False),
    "static rotated": W8A8Static(symmetric=False, rotate=16),
    "W4A8": W4A8(None), "W4A8 factors": W4A8(8), "W4A8 asymmetric": W4A8(8, symmetric=False),
    "W4A8 static": described("int4 per_group(8) factors, int8 per_tensor static"),
    "W8A16": W8A16(), "W4A16": W4A16(8), "W4A16 asymmetric": W4A16(8, symmetric=False),
    "W4A16 rotated": W4A16(8, rotate=16), "int8 groups": described("int8 per_group(8) asymmetric"),
    "rounded": described("int8 per_group(8), int8 per_token"),
    "rounded static": described("int8 per_group(8), int8 per_tensor static"),
}  # fmt: skip


class Block(nn.Module):
    """Grouped-query attention and a feed-forward part, in the names of Llama or of BERT."""

    def __init__(self, names=LLAMA, width=WIDTH, kv=16, bias=False):
        super().__init__()
        self.names = names
        mlp = [(width, 48)] * (len(names) - 5) + [(48, width)]
        sizes = [(width, width), (width, kv), (width, kv), (width, width), *mlp]
        for name, (inputs, outputs) in zip(names, sizes, strict=True):
            self.add_module(name, nn.Linear(inputs, outputs, bias=bias))

    def forward(self, x):
        q, k, v, out, *wide, down = (self._modules[name] for name in self.names)
        h = torch.tanh(x)
        queries, keys, values = q(h), k(h), v(h)
        repeats = queries.shape[-1] // keys.shape[-1]
        weights = torch.softmax(queries @ keys.repeat(1, 1, repeats).transpose(1, 2), -1)
        x = x + out(weights @ values.repeat(1, 1, repeats))
        h = torch.tanh(x)
        parts = [layer(h) for layer in wide]
        return x + down(parts[0] if len(parts) == 1 else parts[0].sigmoid() * parts[1])


BLOCKS = {
    "llama": lambda: Block(), "llama with bias": lambda: Block(bias=True),
    "bert": lambda: Block(BERT, kv=WIDTH, bias=True),
}  # fmt: skip


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(scheme="W8A8", block="llama"):
    torch.manual_seed(1)
    model = BLOCKS[block]().eval()
    batches = [numbers(2, 5, WIDTH, seed=seed) for seed in range(2)]
    baraquant.quantize_(model, SCHEMES[scheme], calibration=batches, progress=False)
    return model


def calls(model, *args):
    """What a model returns, and how often it calls each op that computes several layers."""
    with torch.autograd.profiler.profile() as profile:
        output = model(*args)
    names = (event.name.removeprefix("baraquant::") for event in profile.function_events)
    return output, Counter(name for name in names if name.endswith("_linears"))


@pytest.mark.filterwarnings("ignore:.*no faster")
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bits_are_the_same(scheme, block):
    model, x = quantized(scheme, block), numbers(2, 5, WIDTH)
    state, text = model.state_dict(), repr(model)
    before, counts = calls(model, x)
    assert not counts
    groups = 1 if block == "bert" else 2
    for example in (None, (x,), {"x": x}, x):
        report = baraquant.merge_linears_(model, example)
        assert len(report.changed) == 2 * groups + 1
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                after, counts = calls(model, x)
            assert_same_bits(after, before)
            assert counts.total() == groups
    assert repr(model) == text and {*vars(model)} == {*vars(Block())}
    assert {n: t.data_ptr() for n, t in model.state_dict().items()} == {
        n: t.data_ptr() for n, t in state.items()
    }
    baraquant.split_linears_(model)
    after, counts = calls(model, x)
    assert_same_bits(after, before)
    assert not counts and baraquant.split_linears_(model).changed == {}


def test_report_and_errors():
    model = quantized()
    report = baraquant.merge_linears_(model)
    assert report.changed["k_proj"] == "one call with q_proj, v_proj"
    assert report.left_out["o_proj"].startswith("no other layer reads its input, by the names")
    assert baraquant.merge_linears_(model) == report
    lonely = nn.Sequential(nn.Linear(8, 8))
    baraquant.quantize_(lonely, W8A8())
    for nothing in (lonely, nn.Sequential(nn.Linear(8, 8))):
        with pytest.raises(ValueError, match="merge_linears_: expected a model with quantized"):
            baraquant.merge_linears_(nothing)
    with pytest.raises(TypeError, match="merge_linears_: expected model to be a Module"):
        baraquant.merge_linears_(3)
    with pytest.raises(TypeError, match="split_linears_: expected model to be a Module"):
        baraquant.split_linears_(3)
    with pytest.raises(ZeroDivisionError):  # the groups stay
        model.register_forward_pre_hook(lambda *args: 1 / 0)
        baraquant.merge_linears_(model, numbers(1, 5, WIDTH))
    assert len(baraquant.split_linears_(model).changed) == 5


DIFFERENT = {
    "kind": lambda m: setattr(m, "v_proj", quantized("W8A16").v_proj),
    "bias": lambda m: setattr(m, "v_proj", quantized(block="llama with bias").v_proj),
    "width": lambda m: setattr(m.v_proj, "symmetric", False),
    "smoothing": lambda m: setattr(m.v_proj, "smooth", torch.full((WIDTH,), 2.0)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_layers_of_another_kind_stay_apart(what):
    model, x = quantized(), numbers(2, 5, WIDTH)
    DIFFERENT[what](model)
    before = model(x)
    report = baraquant.merge_linears_(model)
    assert (
        report.changed["q_proj"] == "one call with k_proj"
        and "differs" in (report.left_out["v_proj"])
    )
    after, counts = calls(model, x)
    assert_same_bits(after, before)
    assert counts["_int8_linears"] == 2
    # And so they do if they differ later.
    model = quantized()
    baraquant.merge_linears_(model)
    DIFFERENT[what](model)
    for _ in range(3):
        after, counts = calls(model, x)
        assert_same_bits(after, before)
    assert counts["_int8_linears"] == 2


@pytest.mark.parametrize("scheme", ["static", "smoothed"])
def test_scales_that_are_equal_are_compared_again(scheme):
    model, x = Block().eval(), numbers(2, 5, WIDTH)
    config = W8A8Static() if scheme == "static" else SmoothQuant(0.5)
    baraquant.quantize_(model, config, calibration=[x], progress=False)
    name = "act_scale" if scheme == "static" else "smooth"
    for layer in (model.q_proj, model.k_proj, model.v_proj):
        setattr(layer, name, getattr(model.q_proj, name).clone())
    baraquant.merge_linears_(model)
    assert calls(model, x)[1]["_int8_linears"] >= 1
    plain = copy.deepcopy(model)
    baraquant.split_linears_(plain)
    for one in (model, plain):
        getattr(one.k_proj, name).mul_(2)
    for _ in range(3):
        assert_same_bits(model(x), plain(x))


# ---- What is no plain call of the layers, one after the other -----------------------------------


def write_to_input(m, x):
    x = x.clone()
    return [m.q_proj(x), m.k_proj(x.add_(1)), m.v_proj(x), m.q_proj(x)]


def other_inputs(m, x):
    other = x.flip(0)
    narrow = x.bfloat16()
    inputs = [x, other, x, x[:1], x.clone(), narrow, x.double().float(), x[..., 0, :]]
    first = [layer(one) for one in inputs for layer in (m.q_proj, m.k_proj)]
    return [*first, m.k_proj(other), m.v_proj(x), m.v_proj(narrow), m.q_proj(x), m.q_proj(x)]


def write_to_weight(m, x):
    outputs = [m.q_proj(x)]
    with torch.no_grad():
        m.k_proj.qweight.neg_()
        m.v_proj.weight_scale.mul_(2)
    return [*outputs, m.k_proj(x), m.v_proj(x), m.q_proj(x), m.k_proj(x)]


def new_tensors(m, x):
    outputs = [m.q_proj(x)]
    m.k_proj.qweight = -m.k_proj.qweight
    m.v_proj.bias = nn.Parameter(torch.ones(16), requires_grad=False)
    return [*outputs, m.k_proj(x), m.v_proj(x), m.q_proj(x), m.v_proj(x), m.k_proj(x)]


def swapped_data(m, x):
    outputs = [m.q_proj(x), m.k_proj(x), m.v_proj(x), m.q_proj(x)]
    m.k_proj.weight_scale.data = m.k_proj.weight_scale.data * 3
    return [*outputs, *(layer(x + 1) for layer in (m.q_proj, m.k_proj))]


def new_state(m, x):
    state = {name: tensor.neg() for name, tensor in m.state_dict().items()}
    outputs = [m.q_proj(x)]
    m.load_state_dict(state)
    outputs += [m.k_proj(x), m(x)]
    m.load_state_dict(quantized().state_dict(), assign=True)
    return [*outputs, m.v_proj(x), m(x)]


def other_modules(m, x):
    outputs = [m.q_proj(x)]
    old, m.k_proj = m.k_proj, quantized("W8A8 asymmetric").k_proj
    outputs += [m.k_proj(x), m.v_proj(x), m(x), m(x), old(x)]
    del old, m.v_proj
    return [*outputs, m.q_proj(x), m.k_proj(x), m.q_proj(x)]


def converted(m, x):
    outputs = [m.q_proj(x)]
    m.bfloat16()
    outputs += [m.k_proj(x), m(x.bfloat16()), m.v_proj(x)]
    return [
        *outputs,
        m.double()(x.double()),
        m.to("meta")(x.to("meta", torch.float64)).new_empty(0, device="cpu"),
    ]


def options(m, x):
    outputs = [m.q_proj(x)]
    m.k_proj.symmetric = False
    return [*outputs, m.k_proj(x), m.q_proj(x), m.k_proj(x)]


def hooked(m, x):
    """What a hook of one layer does to its weight, or to its input, does not meet the others."""

    def change(layer, args):
        layer.qweight.neg_()
        return (args[0] + 1,)

    handle = m.k_proj.register_forward_pre_hook(change)
    outputs = [m(x), m(x)]
    handle.remove()
    m.v_proj.register_forward_hook(lambda layer, args, out: out.mul_(2))
    return [*outputs, m(x), m(x)]


def replaced_forward(m, x):
    forward = m.k_proj.forward
    m.k_proj.forward = lambda x: forward(x) + 1
    return [m(x), m(x)]


def gradient(m, x):
    leaf = x.clone().requires_grad_()
    m(leaf).square().sum().backward()
    m.k_proj.bias = nn.Parameter(torch.zeros(16))
    keys = [m.q_proj(x), m.k_proj(x)]
    keys[1].sum().backward()
    with torch.no_grad():
        first = m.q_proj(leaf)
    later = m.k_proj(leaf)
    return [leaf.grad, *keys, m.k_proj.bias.grad, first, later, torch.tensor(later.requires_grad)]


def modes(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [m(x), m.q_proj(x)]
    outputs += [m.k_proj(x)]
    with torch.inference_mode():
        first = m.q_proj(x)
    second = m.k_proj(x)
    return [*outputs, first, second, torch.tensor(second.is_inference())]


def transforms(m, x):
    mapped = torch.vmap(m)(x[None])
    called = torch.func.functional_call(m, {"k_proj.weight_scale": m.k_proj.weight_scale * 2}, (x,))
    return [mapped, called, m(x)]


def graphs(m, x):
    traced = torch.jit.trace(m, (x,), check_trace=False)
    compiled = torch.compile(m, backend="eager", fullgraph=True)
    programs = [torch.export.export(m, (x,), strict=strict).module() for strict in (False, True)]
    scripted = [torch.jit.script(layer)(x) for layer in (m.q_proj, m.k_proj)]
    with torch._dynamo.config.patch(error_on_recompile=True):
        outputs = [compiled(x), compiled(x + 1)]
    return [traced(x), *outputs, *(program(x) for program in programs), *scripted]


def copies(m, x):
    file = io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    made = [copy.deepcopy(m), torch.load(file, weights_only=False), copy.copy(m)]
    made[0].k_proj.qweight.neg_()
    alone = copy.deepcopy(m.k_proj), copy.copy(m.v_proj)
    outputs = [m.q_proj(x), *(layer(x) for layer in alone)]
    return [*outputs, *(one(x + i) for i in range(3) for one in (m, *made)), m.k_proj(x)]


def requantized(m, x):
    outputs = [m(x)]
    wide = nn.ModuleDict({"block": m})
    wide["block"].k_proj = nn.Linear(WIDTH, 16).eval()
    wide["block"].k_proj.weight.data = numbers(16, WIDTH)
    wide["block"].k_proj.bias = None
    baraquant.quantize_(wide, W8A8())
    return [*outputs, m(x), m(x), m(x)]


CASES = [
    write_to_input, other_inputs, write_to_weight, new_tensors, swapped_data, new_state,
    other_modules, converted, options, hooked, replaced_forward, gradient, modes, transforms,
    graphs, copies, requantized,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_nothing_is_stale(case):
    x, merged = numbers(2, 5, WIDTH, seed=7), quantized()
    baraquant.merge_linears_(merged)
    expected = case(quantized(), x.clone())
    actual = case(merged, x.clone())
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(one, other, f"output {index}")


BAD = {
    "width": torch.ones(2, 7), "integers": torch.ones(2, WIDTH, dtype=torch.int32),
    "float64": torch.ones(2, WIDTH, dtype=torch.float64), "no dimension": torch.tensor(1.0),
    "sparse": torch.ones(2, WIDTH).to_sparse(), "complex": torch.ones(2, WIDTH) * 1j,
    "none": None, "tuple": (torch.ones(2, WIDTH),),
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["W8A8", "static", "W4A8 factors", "W4A16"])
@pytest.mark.parametrize("input", BAD)
def test_errors_are_those_of_the_layer(input, scheme):
    model, texts = quantized(scheme), []
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, RuntimeError, AttributeError)) as error:
            model.q_proj(BAD[input])
        texts.append(str(error.value))
        baraquant.merge_linears_(model)
    assert texts[0] == texts[1]


@pytest.mark.filterwarnings("ignore:.*no faster")
def test_a_module_that_rounds_the_input_of_one_layer_is_switched_off():
    model, x = quantized("rounded static"), numbers(2, 5, WIDTH)
    plain = copy.deepcopy(model)
    baraquant.merge_linears_(model)
    model(x)
    for one in (model, plain):
        one.k_proj.input_fake_quant.disable_fake_quant()
    for _ in range(3):
        assert_same_bits(model(x), plain(x))


def test_copies_are_merged():
    model, x = quantized(), numbers(2, 5, WIDTH)
    baraquant.merge_linears_(model)
    twin = copy.deepcopy(model)
    twin(x)
    assert calls(twin, x)[1]["_int8_linears"] == 2


def test_outputs_are_handed_out_once():
    model, x = quantized(), numbers(2, 5, WIDTH)
    baraquant.merge_linears_(model)
    q, k, v = model.q_proj, model.k_proj, model.v_proj
    outputs = [q(x), k(x), v(x)]
    assert len({one.untyped_storage().data_ptr() for one in outputs}) == 3
    assert k(x).data_ptr() != outputs[1].data_ptr()
    q(x), v(x)
    assert getattr(q._merged[0]._of_thread, "waiting", None) is None


def test_threads_never_meet():
    model = quantized()
    inputs = [numbers(2, 5, WIDTH, seed=seed) for seed in range(4)]
    expected = [model(x) for x in inputs]
    baraquant.merge_linears_(model)

    def work(index):
        return [model(inputs[index]) for _ in range(50)]

    for outputs, wanted in zip(side_by_side(4, work), expected, strict=True):
        for output in outputs:
            assert_same_bits(output, wanted)
    shared = [[model.q_proj(inputs[0])], side_by_side(1, lambda _: model.k_proj(inputs[0]))]
    assert_same_bits(shared[1][0], quantized().k_proj(inputs[0]))


class CrossAttention(nn.Module):
    """Its k and v read another tensor than q does, and only now and then."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, other=None):
        q = self.q_proj(x)
        return q if other is None else q + self.k_proj(other) + self.v_proj(other)


def test_layers_that_read_another_tensor_form_a_group_of_their_own():
    model, x, other = CrossAttention().eval(), numbers(3, 8), numbers(3, 8, seed=1)
    baraquant.quantize_(model, W8A8())
    expected = model(x, other)
    assert len(baraquant.merge_linears_(model).changed) == 3  # by their names
    for _ in range(4):
        after, counts = calls(model, x, other)
        assert_same_bits(after, expected)
    assert counts["_int8_linears"] == 1
    assert [*baraquant.merge_linears_(model, (x, other)).changed] == ["k_proj", "v_proj"]
    assert [*baraquant.merge_linears_(model, {"x": x, "other": x}).changed] != []


def test_layers_of_one_module_are_found_with_others_in_between():
    class Latent(CrossAttention):
        def forward(self, x):
            return self.v_proj(self.q_proj(x)) + self.k_proj(x)

    model, x = Latent().eval(), numbers(3, 8)
    baraquant.quantize_(model, W8A8())
    expected = model(x)
    assert [*baraquant.merge_linears_(model, (x,)).changed] == ["q_proj", "k_proj"]
    for _ in range(4):
        after, counts = calls(model, x)
        assert_same_bits(after, expected)
        assert counts["_int8_linears"] == 1


def test_layers_between_which_the_input_is_written_to_are_not_merged():
    class Writes(Block):
        def forward(self, x):
            return self.q_proj(x), self.k_proj(x), self.v_proj(x.mul_(2))

    model, x = Writes(), numbers(2, WIDTH)
    baraquant.quantize_(model, W8A8())
    assert [*baraquant.merge_linears_(model, (x.clone(),)).changed] == ["q_proj", "k_proj"]


def test_offloaded_layers_compute_by_themselves():
    accelerate = package("accelerate")
    model, x = quantized(), numbers(2, 5, WIDTH)
    before = model(x)
    baraquant.merge_linears_(model)
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert model.k_proj.qweight.is_meta
    with torch.no_grad():
        after, counts = calls(model, x)
    assert_same_bits(after, before)
    assert not counts


def test_layers_under_adapters_are_merged():
    package("peft")
    from peft import LoraConfig, get_peft_model

    import baraquant.peft

    model, x = nn.Sequential(quantized()), numbers(2, 5, WIDTH)
    config = LoraConfig(target_modules=["q_proj", "k_proj", "v_proj"], init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    with torch.no_grad():
        before = adapted(x)
        assert len(baraquant.merge_linears_(adapted).changed) == 5
        after, counts = calls(adapted, x)
        assert_same_bits(after, before)
        assert counts["_int8_linears"] == 2
    outputs = []
    for one in (adapted, copy.deepcopy(adapted)):
        baraquant.split_linears_(one) if outputs else None
        one(x).sum().backward()
        outputs.append([p.grad for p in one.parameters() if p.requires_grad])
    for one, other in zip(*outputs, strict=True):
        assert_same_bits(one, other)
    adapted.merge_adapter()
    with torch.no_grad():
        merged = adapted(x)
        baraquant.split_linears_(adapted)
        assert_same_bits(adapted(x), merged)


def test_files_do_not_note_it(tmp_path):
    model, x = quantized(), numbers(2, 5, WIDTH)
    before = model(x)
    baraquant.save(model, tmp_path / "before.safetensors")
    baraquant.merge_linears_(model)
    baraquant.save(model, tmp_path / "after.safetensors")
    files = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("before", "after")]
    assert files[0] == files[1]
    fresh = Block().eval()
    baraquant.load_(fresh, tmp_path / "after.safetensors")
    assert not calls(fresh, x)[1]
    baraquant.merge_linears_(fresh)
    assert_same_bits(fresh(x), before)


ON_A_GPU = {
    "W8A8": W8A8(), "static": W8A8Static(), "W4A8": W4A8(32), "W4A16": W4A16(32), "W8A16": W8A16(),
}  # fmt: skip


@pytest.mark.cuda
@pytest.mark.parametrize("scheme", ON_A_GPU.values(), ids=ON_A_GPU)
@torch.no_grad()
def test_on_a_gpu(scheme, cuda):
    """Where few rows are one kernel, also in a CUDA graph."""
    torch.manual_seed(1)
    model = Block(width=256, kv=64).eval().to(cuda, torch.bfloat16)
    for tokens in (1, 5, 20):
        x = numbers(1, tokens, 256).to(cuda, torch.bfloat16)
        if tokens == 1:
            baraquant.quantize_(model, scheme, calibration=[x], progress=False)
        before = model(x)
        baraquant.merge_linears_(model)
        after, counts = calls(model, x)
        assert counts.total() == 2
        assert_same_bits(after, before)
        graph, captured = capture(lambda x=x: model(x))
        graph.replay()
        assert_same_bits(captured, before)
        baraquant.split_linears_(model)
