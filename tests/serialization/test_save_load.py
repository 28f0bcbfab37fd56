# SPDX-License-Identifier: BSD-3-Clause
"""Files: the same bits in a fresh process, and a clear error for every file that lies."""

import copy
import os
import stat

import numpy as np
import pytest
import torch
from torch import nn

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static
from baraquant.nn import QuantizedLinear
from baraquant.workflow.serialization.packing import pack, packed_size, unpack
from tests.cpp_api.file_models import Network, shared_widths
from tests.serialization.damages import Contents, Tensor
from tests.support.checks.stored import assert_stored
from tests.support.models.every_layer import Every, integers, same, scales
from tests.support.models.outlier_models import Block, Tied, batches, seeded, tokens


def test_modules_of_every_kind(every):
    path, model = every
    x = torch.randint(0, 5, (2, 8))
    expected = model(x)
    for fresh in (Every().eval(), Every().eval().quantize()):
        assert baraquant.load_(fresh, path) is fresh
        assert same(fresh, model) and torch.equal(fresh(x), expected)
    loaded = baraquant.load_(Every, path).eval()
    assert same(loaded, model) and torch.equal(loaded(x), expected)


def test_the_file_is_small_and_always_the_same(every):
    path, model = every
    again = path.with_name("again")
    baraquant.save(model, str(again))
    assert again.read_bytes() == path.read_bytes()
    tensors = Contents.read(path).tensors
    assert tensors["narrow.qweight"].dtype == "U8"
    assert tensors["narrow.qweight"].shape == [packed_size(64, 4)] == [32]
    assert tensors["table.qweight"].shape == [15]
    assert tensors["dynamic.qweight"].dtype == "I8"
    assert sorted(path.parent.iterdir()) == sorted([path, again])


def test_shared_and_tied_tensors_are_stored_once(tmp_path):
    model = seeded(Tied)
    baraquant.quantize_(model, W8A8())
    baraquant.save(model, tmp_path / "a")
    names = Contents.read(tmp_path / "a").tensors
    assert not any(name.startswith(("second.", "head.")) for name in names)
    float_tied = seeded(Tied)
    baraquant.quantize_(float_tied, W8A8(), filter_fn=lambda m, name: "." in name)
    for loaded in assert_stored(float_tied, Tied, tokens()[0], tmp_path / "b"):
        assert loaded.head.weight is loaded.embedding.weight
        assert isinstance(loaded.head.weight, nn.Parameter) and loaded.head.weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype, tmp_path):
    model = seeded(Tied).to(dtype)
    baraquant.quantize_(model, SmoothQuant(0.5, W8A8Static()), calibration=tokens())
    assert_stored(model, lambda: Tied().to(dtype), tokens()[0], tmp_path / "a")
    with pytest.raises(ValueError, match=r"expected a model of torch.\w+, as in the file"):
        baraquant.load_(Tied, tmp_path / "a")


def encoder():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("some", [False, True])
def test_the_attentions_of_pytorch(some, tmp_path):
    model = seeded(encoder)
    keep = (lambda module, name: name != "layers.1.self_attn") if some else None
    baraquant.quantize_(model, SmoothQuant(0.5), calibration=batches(), filter_fn=keep)
    baraquant.save(model, tmp_path / "a")
    for fresh in (encoder(), copy.deepcopy(model)):
        loaded = baraquant.load_(fresh, tmp_path / "a")
        with torch.no_grad():
            assert same(loaded, model) and torch.equal(loaded(batches()[0]), model(batches()[0]))


def test_the_loaded_model_does_not_depend_on_the_file(tmp_path):
    model = seeded(Block)
    baraquant.quantize_(model, W8A8())
    path = tmp_path / "a"
    baraquant.save(model, path)
    loaded = baraquant.load_(Block, path).eval()
    path.write_bytes(bytes(path.stat().st_size))
    assert same(loaded, model)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 300_001])
def test_packed_integers(bits, numel):
    values = integers(numel, bits=bits)
    packed = pack(values, bits)
    assert packed.dtype == torch.uint8 and packed.shape == (packed_size(numel, bits),)
    stream = values.numpy().view(np.uint8)[:, None] >> np.arange(bits) & 1
    assert np.array_equal(packed, np.packbits(stream, bitorder="little"))
    assert torch.equal(unpack(packed, bits, (numel,)), values)


@pytest.mark.parametrize("bits", range(2, 8))
def test_narrow_weights_that_are_shared(bits, tmp_path):
    text, model = shared_widths(bits)
    baraquant.save(model, tmp_path / "a")
    tensors = Contents.read(tmp_path / "a").tensors
    shapes = {name: t.shape for name, t in tensors.items() if name.endswith("weight")}
    wider = [packed_size(9, bits + 1)] if bits < 7 else [3, 3]
    assert shapes == {"first.qweight": [packed_size(9, bits)], "wider.qweight": wider}
    loaded = baraquant.load_(Network(text), tmp_path / "a")
    assert same(loaded, model) and loaded.first is loaded.again
    assert loaded.first.qweight is loaded.other.qweight


def test_a_narrow_weight_that_is_stored_as_int8(tmp_path):
    """What ``packed`` does not name is stored as it is."""
    text, model = shared_widths(4)
    baraquant.save(model, tmp_path / "a")
    contents = Contents.read(tmp_path / "a")
    for module in contents.config["modules"].values():
        module["packed"] = {}
    for name in ("first.qweight", "wider.qweight"):
        whole = model.state_dict()[name]
        contents.tensors[name] = Tensor("I8", list(whole.shape), whole.numpy().tobytes())
    (tmp_path / "b").write_bytes(contents.file())
    assert same(baraquant.load_(Network(text), tmp_path / "b"), model)


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_the_permissions_are_those_of_open(umask, every):
    path, model = every
    fresh, link = path.with_name("fresh"), path.with_name("link")
    link.symlink_to(path)
    path.chmod(0o640)
    before = os.umask(umask)
    try:
        baraquant.save(model, fresh)
        with path.with_name("opened").open("wb"):
            pass
        baraquant.save(model, link)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    new, old = dict.fromkeys(("fresh", "opened"), 0o666 & ~umask), (path.name, "link")
    assert modes == new | dict.fromkeys(old, 0o640)  # as it was: an existing file is written anew
    assert link.is_symlink() and path.read_bytes() == fresh.read_bytes()


# What save refuses.


def refused(model, message, path):
    with pytest.raises(ValueError, match=message):
        baraquant.save(model, path)
    assert not list(path.parent.iterdir())


def test_models_that_are_not_saved(tmp_path):
    path = tmp_path / "a"
    refused(seeded(Block), "expected a quantized model, but got a Block without", path)
    refused(QuantizedLinear(integers(2, 2), scales(2)), "itself; wrap it in nn.Sequential", path)
    model = seeded(Block)
    baraquant.quantize_(model, W8A8())
    model.register_buffer("odd", torch.zeros(2, dtype=torch.complex64))
    refused(model, "save: odd: expected a dense tensor of a common dtype", path)
    model.odd = torch.eye(2).to_sparse()
    refused(model, "save: odd: expected a dense tensor", path)
    model.odd = torch.zeros(2, device="meta")
    refused(model, "save: odd: expected a dense tensor .* with data", path)
    del model.odd
    model.query.weight_scale[1] = float("nan")
    refused(model, "save: query: weight_scale: expected finite numbers > 0", path)
    model = nn.Sequential(baraquant.nn.FakeQuantizedLinear(4, 4, config=W8A8()))
    refused(model, "save: 0: expected a converted model, but FakeQuantizedLinear is prepared", path)
    with pytest.raises(TypeError, match="expected a Module"):
        baraquant.save({"a": 1}, path)


def test_cuda(cuda, tmp_path):
    model = seeded(Tied).to(cuda)
    given = [x.to(cuda) for x in tokens()]
    baraquant.quantize_(model, SmoothQuant(0.5, W8A8Static()), calibration=given)
    baraquant.save(model, tmp_path / "a")
    loaded = baraquant.load_(Tied().to(cuda), tmp_path / "a").eval()
    assert torch.equal(loaded(given[0]), model(given[0]))
