# SPDX-License-Identifier: BSD-3-Clause
"""What a folder holds beside the integers: configuration, tokenizer, card, ties, floating parts.

And folders against the package compressed-tensors.
"""

import copy
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations

import baraquant
from baraquant import export, qat
from baraquant.export.compressed_tensors.tensors import pack_rows, unpack_rows
from baraquant.nn import WeightOnlyInt4Linear
from tests.support import compressed_folders
from tests.support.compressed_folders import IDS, KINDS, block, quantized, write_by_package
from tests.support.lattices import lattice
from tests.support.optional_packages import package
from tests.support.pytorch_products import products_of_pytorch
from tests.support.schemes import all_described, described

package("huggingface_hub")


def settings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("bits", range(2, 9))
def test_packing(bits: int) -> None:
    """Element i of a row is in bits i * bits of a string of little-endian words."""
    generator = torch.Generator().manual_seed(bits)
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    for columns in (1, 7, 32, 33, 100):
        integers = torch.randint(low, high, (3, columns), generator=generator, dtype=torch.int8)
        packed = pack_rows(integers, bits)
        assert packed.shape == (3, -(-columns * bits // 32)) and packed.dtype == torch.int32
        for row, words in zip(integers.tolist(), packed.tolist(), strict=True):
            string = sum((word & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(words))
            assert string == sum((q - low) << (i * bits) for i, q in enumerate(row))
        assert torch.equal(unpack_rows(packed, bits, columns), integers)


def test_the_configuration(tmp_path: Path) -> None:
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out")
    config = settings(folder)["quantization_config"]
    assert settings(folder)["architectures"] == ["Block"]
    assert config["format"] == "int-quantized" and config["ignore"] == ["embed"]
    group = config["config_groups"]["group_0"]
    assert group["targets"] == ["Linear"]
    assert group["weights"] == {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None,
        "dynamic": False,
    }  # fmt: skip
    assert group["input_activations"]["strategy"] == "token"
    state = load_file(folder / "model.safetensors")
    weight, scale = state["q_proj.weight"], state["q_proj.weight_scale"]
    assert weight.dtype == torch.int8 and scale.shape == (64, 1)
    card = (folder / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "int8 channel weights, int8 token dynamic inputs" in card
    assert "Floating: `embed`." in card


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_card_keeps_vllm_from_another_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """Without one, vLLM computes a float32 model in 16 bits."""
    model = quantized().to(dtype)
    model.config = package("transformers").PretrainedConfig()
    card = (export.to_compressed_tensors(model, tmp_path / "out") / "README.md").read_text()
    given = ', dtype="float32"' if dtype == torch.float32 else ""
    assert f'llm = LLM(model="this/folder"{given})' in card


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("rounds", [False, True])
def test_packed_weights(bits: int, symmetric: bool, rounds: bool, tmp_path: Path) -> None:
    """A folder becomes layers that keep its weights packed, and these the same folder."""
    weight = f"int{bits} per_group(32) {'symmetric' if symmetric else 'asymmetric'}"
    model, x = nn.Sequential(nn.Linear(64, 16)).eval(), torch.randn(3, 64)
    baraquant.quantize_(model, described(weight + ", int8 per_token" * rounds))
    first = export.to_compressed_tensors(model, tmp_path / "first", serve=None)
    loaded = export.from_compressed_tensors(nn.Sequential(nn.Linear(64, 16)), first)
    assert type(loaded[0]) is WeightOnlyInt4Linear and loaded[0].weight_bits == bits
    assert torch.equal(loaded[0].packed, model[0].packed)
    assert torch.equal(loaded(x), model(x))
    second = export.to_compressed_tensors(loaded, tmp_path / "second", serve=None)
    tensors, again = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert tensors.keys() == again.keys()
    assert ("0.weight_packed" in tensors) is not rounds
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())


@pytest.mark.exhaustive
def test_a_layer_that_two_parents_share(tmp_path: Path) -> None:
    def network() -> nn.Module:
        shared = nn.Linear(32, 32)
        return nn.Sequential(shared, nn.ReLU(), shared).eval()

    model, x = network(), torch.randn(2, 32)
    baraquant.quantize_(model, baraquant.W8A8())
    folder = export.to_compressed_tensors(model, tmp_path / "out")
    assert set(load_file(folder / "model.safetensors")) == {"0.weight", "0.weight_scale", "0.bias"}
    loaded = export.from_compressed_tensors(network(), folder)
    assert loaded[0] is loaded[2]
    assert torch.equal(loaded(x), model(x))


@pytest.mark.exhaustive
def test_files_of_the_source_folder_come_along(tmp_path: Path) -> None:
    """Tokenizer files and the pooling of a sentence encoder; no weights and no old index."""
    source = tmp_path / "source"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "onnx").mkdir()
    copied = {"tokenizer.json", "vocab.txt", "modules.json", "1_Pooling/config.json"}
    others = {"model.safetensors.index.json", "pytorch_model.bin", "onnx/model.onnx", ".hidden"}
    for name in (*copied, *others, "README.md"):
        (source / name).write_text("source")
    folder = export.to_compressed_tensors(quantized(), tmp_path / "out", source=source)
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert found == copied | {"README.md", "config.json", "model.safetensors"}
    assert (folder / "README.md").read_text() != "source"


@pytest.mark.exhaustive
def test_an_empty_folder_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    model = quantized()
    folder = export.to_compressed_tensors(model, tmp_path / "out")
    assert folder.stat().st_mode & 0o777 == (tmp_path / "out").stat().st_mode & 0o777
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class ScalesIfTied(nn.Module):
    """A language model that computes something else if its embeddings are not tied, as T5 does."""

    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(tie_word_embeddings=True, to_dict=dict)
        self.embed = nn.Embedding(32, 32)
        self.layer = nn.Linear(32, 32)
        self.head = nn.Linear(32, 32, bias=False)
        self.head.weight = self.embed.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.embed(ids))
        if self.config.tie_word_embeddings:
            x = x * 32**-0.5
        return self.head(x)


def test_ties_that_the_forward_computes_with(tmp_path: Path) -> None:
    model = ScalesIfTied().eval()
    baraquant.quantize_(model, {"*": baraquant.W8A8()})
    message = r"to_compressed_tensors: embed, head: .* computes something else .* map them to None"
    with pytest.raises(ValueError, match=message):
        export.to_compressed_tensors(model, tmp_path / "out", serve=None, float_embeddings=True)
    assert list(tmp_path.iterdir()) == []
    model = ScalesIfTied().eval()
    baraquant.quantize_(model, {"layer": baraquant.W8A8()})
    folder = export.to_compressed_tensors(model, tmp_path / "out", serve=None)
    loaded = export.from_compressed_tensors(ScalesIfTied().eval(), folder)
    ids = torch.arange(12).reshape(2, 6)
    assert torch.equal(loaded(ids), model(ids))


class Positions(nn.Module):
    """What no folder holds: a buffer that is in no state dict, and a plain tensor."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        if plain:
            self.table = torch.arange(32) / 32
        else:
            self.register_buffer("table", torch.arange(32) / 32, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.table)


@pytest.mark.parametrize("plain", [False, True], ids=["buffer", "plain"])
def test_what_a_constructor_computes(plain: bool, tmp_path: Path) -> None:
    """On the meta device an error that names it; a function that builds the model has it."""
    model = Positions(plain).eval()
    baraquant.quantize_(model, baraquant.W8A8())
    folder = export.to_compressed_tensors(model, tmp_path / "out")
    with torch.device("meta"):
        empty = Positions(plain).eval()
    message = "no buffer that a file could hold" if plain else "a buffer with data"
    with pytest.raises(ValueError, match=rf"table: .*{message}.*\(lambda: Model.*, folder\)"):
        export.from_compressed_tensors(empty, folder)
    assert type(empty.layer) is nn.Linear and empty.layer.weight.is_meta
    weights: list[bool] = []

    def build() -> nn.Module:
        built = Positions(plain).eval()
        weights.append(built.layer.weight.is_meta)
        return built

    loaded = export.from_compressed_tensors(build, folder)
    assert weights == [True]  # none was made only to be discarded
    x = torch.linspace(-1, 1, 96).reshape(3, 32)
    assert torch.equal(loaded(x), model(x))


of_norms = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Sound(nn.Module):
    def __init__(self, norm: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.conv = norm(nn.Conv1d(16, 16, 3, groups=2))
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.linear(self.conv(x).mT)


PARAMETERS = ["parametrizations.weight.original0", "parametrizations.weight.original1"]
NORMS: dict[str, tuple[Callable[..., nn.Module], list[str]]] = {
    "parametrized": (parametrizations.weight_norm, PARAMETERS),
    "dim": (lambda layer: parametrizations.weight_norm(layer, dim=2), PARAMETERS),
    "all": (lambda layer: parametrizations.weight_norm(layer, dim=None), PARAMETERS),
    "hooked": (torch.nn.utils.weight_norm, ["weight_g", "weight_v"]),
}


@of_norms
@pytest.mark.parametrize("way", ["quantize_", "convert_", "load_"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_folder_has_the_tensors_of_the_float_class(norm: str, way: str, tmp_path: Path) -> None:
    """A reader would start a missing parametrization with random numbers."""
    make, names = NORMS[norm]
    torch.manual_seed(0)
    model, x = Sound(make), torch.randn(2, 16, 7)
    fresh, other = Sound(make), Sound(make)
    fresh.load_state_dict(model.state_dict())
    if way == "convert_":
        qat.prepare_(model, baraquant.W8A8())
        qat.convert_(model)
    else:
        baraquant.quantize_(model, baraquant.W8A8())
    if way == "load_":
        baraquant.save(model, tmp_path / "it.safetensors")
        model = baraquant.load_(other, tmp_path / "it.safetensors")
    folder = export.to_compressed_tensors(model, tmp_path / "it", serve=None)
    found = load_file(folder / "model.safetensors")
    assert {f"conv.{name}" for name in (*names, "bias")} == {n for n in found if "conv" in n}
    again = export.from_compressed_tensors(fresh, folder)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), model.eval()(x), rtol=1e-5, atol=1e-6)


@of_norms
@pytest.mark.parametrize("kind", ["spectral_norm", "linear"])
def test_what_a_folder_cannot_hold_is_an_error(kind: str, tmp_path: Path) -> None:
    if kind == "linear":
        odd = parametrizations.weight_norm(nn.Linear(16, 16))
    else:
        odd = parametrizations.spectral_norm(nn.Conv1d(16, 16, 1))
    model = nn.ModuleDict({"odd": odd, "linear": nn.Linear(16, 16)})
    floating = copy.deepcopy(model)
    baraquant.quantize_(model, baraquant.W8A8())
    with pytest.raises(ValueError, match="odd: expected a weight that is a parameter"):
        export.to_compressed_tensors(model, tmp_path / "no", serve=None)
    baraquant.quantize_(floating, baraquant.W8A8(), filter_fn=lambda module, name: name != "odd")
    export.to_compressed_tensors(floating, tmp_path / "it", serve=None)


# --- the package compressed-tensors reads ours, and we read all that it writes --------------------


def int_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: m.weight for n, m in model.named_modules() if hasattr(m, "weight_scale")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_reads_what_the_package_writes(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = write_by_package(block(dtype), tmp_path / "theirs", kind, ["Linear"], ["o_proj"])
    ours = export.from_compressed_tensors(block(dtype, seed=1), tmp_path / "theirs")
    weights = int_weights(ours)
    assert weights.keys() == {"q_proj", "k_proj", "v_proj"}
    for path, weight in weights.items():
        # The package dequantizes in the dtype of the scale, baraquant in float32: one rounding.
        assert torch.equal(weight, theirs.get_submodule(path).weight), path
    assert torch.equal(ours.o_proj.weight, theirs.o_proj.weight)
    if KINDS[kind][1] is None:
        with products_of_pytorch():
            assert torch.equal(ours(IDS), theirs(IDS))
        return
    # Its dynamic scales are amax / 127.5, so some integers of the inputs differ by one.
    error = (ours(IDS) - theirs(IDS)).abs().max() / theirs(IDS).abs().max()
    assert error < (0.02 if dtype == torch.float32 else 0.04)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["int4 group", "int8 weights"])
def test_reads_embeddings_of_the_package(kind: str, tmp_path: Path) -> None:
    targets = ["Linear", "Embedding"]
    theirs = write_by_package(block(), tmp_path / "theirs", kind, targets, [])
    ours = export.from_compressed_tensors(block(seed=1), tmp_path / "theirs")
    assert isinstance(ours.embed, baraquant.nn.QuantizedEmbedding)
    with products_of_pytorch():
        assert torch.equal(ours(IDS), theirs(IDS))


SCHEMES = all_described(
    "int8, int8 per_token", "int8, int8 per_token asymmetric", "int8, int8 per_tensor static",
    "int8, int8 per_tensor asymmetric static", "int8", "int4", "int4 asymmetric",
    "int4, int8 per_token", "int4 per_group(32), int8 per_token", "int4 per_group(32) asymmetric",
    *(f"int{bits} per_group(32)" for bits in range(2, 8)),
    "int2 per_tensor ternary, int8 per_token",
    # No format has factors of groups: such layers leave as int8, bit for bit.
    "int4 per_group(32) factors, int8 per_token",
    "int4 per_group(32) asymmetric factors, int8 per_tensor static",
)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_package_reads_ours(scheme: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """It decompresses to exactly our weights, and from the folder we get our outputs."""
    model = block(dtype)
    config = {nn.Linear: SCHEMES[scheme], nn.Embedding: None}
    baraquant.quantize_(model, config, calibration=[IDS])
    wanted = model(IDS)
    folder = export.to_compressed_tensors(model, tmp_path / "ours", serve=None)
    theirs = compressed_folders.decompressed_by_package(folder, block(dtype, seed=1))
    for path, weight in int_weights(model).items():
        got = theirs.get_submodule(path).weight
        if got.dtype == torch.float32 != dtype:  # it computes in the scale's dtype, float32
            got = got.to(dtype)
        assert torch.equal(weight, got), path
    fresh = export.from_compressed_tensors(block(dtype, seed=1), folder)
    assert torch.equal(fresh(IDS), wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_on_a_lattice_keep_their_bits(
    bits: int, scale: torch.dtype, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Integers times scales, as quantization-aware training elsewhere leaves them."""
    for server in ("float32", str(scale).removeprefix("torch.")):
        model, weights = block(dtype), {}
        for path in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weight = model.get_submodule(path).weight
            weight.data = lattice((*weight.shape,), bits, scale, dtype)
            weights[path] = weight.detach().clone()
        scheme = described(f"int{bits} per_group(32)", scale_dtype=server)
        baraquant.quantize_(model, {nn.Linear: scheme, nn.Embedding: None})
        folder = export.to_compressed_tensors(model, tmp_path / server, serve=None)
        theirs = compressed_folders.decompressed_by_package(folder, block(dtype, seed=1))
        fresh = export.from_compressed_tensors(block(dtype, seed=1), folder)
        for path, weight in weights.items():
            assert torch.equal(theirs.get_submodule(path).weight.to(dtype), weight), path
            ours = model.get_submodule(path)
            assert torch.equal(fresh.get_submodule(path).weight, weight), path
            assert torch.equal(fresh.get_submodule(path).weight_scale, ours.weight_scale), path


@pytest.mark.exhaustive
def test_several_schemes_in_one_model(tmp_path: Path) -> None:
    model = block()
    rules = {
        "q_proj": baraquant.W8A8(), "k_proj": baraquant.W4A16(32), "v_proj": None, "o_proj":
        baraquant.W4A16(16, symmetric=False), nn.Embedding: baraquant.W8A16(),
    }  # fmt: skip
    baraquant.quantize_(model, rules)
    folder = export.to_compressed_tensors(model, tmp_path / "ours", serve=None)
    config = settings(folder)["quantization_config"]
    formats = {one["format"] for one in config["config_groups"].values()}
    assert config["format"] == "mixed-precision"
    assert formats == {"int-quantized", "pack-quantized"}
    theirs = compressed_folders.decompressed_by_package(folder, block(seed=1))
    for path, weight in int_weights(model).items():
        assert torch.equal(weight, theirs.get_submodule(path).weight), path
    fresh = export.from_compressed_tensors(block(seed=1), folder)
    assert torch.equal(fresh(IDS), model(IDS))
