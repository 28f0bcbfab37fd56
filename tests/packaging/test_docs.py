# SPDX-License-Identifier: BSD-3-Clause
"""The documents: their Python runs, and what they name exists, also in other libraries."""

import builtins
import importlib
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
import torch.distributed.tensor

import baraquant
import baraquant.parallel
import lint
from baraquant import calibration
from tests.support import documents
from tests.support.aot_inductor import CRASHES_ON_CPU
from tests.support.cases import OP_NAMES
from tests.support.documents import DOCUMENTS, FENCE, ROOT, anchors, blocks, links, name_of
from tests.support.models.made import prepared, quantized
from tests.workflow import registered_layer

DOCS = [path for path in DOCUMENTS if path.parent == ROOT / "docs"]
README, OPS, MIGRATION = ROOT / "README.md", ROOT / "docs/ops.md", ROOT / "docs/migration.md"
FOLDERS = ("csrc", "baraquant", "tests", "benchmarks", "examples", "scripts", "cmake", ".github")
by_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
WITH_PYTHON = [path for path in DOCS if {"python", "pycon"} & {block[0] for block in blocks(path)}]
OWN = (
    *(baraquant, baraquant.nn, baraquant.qat, baraquant.configs, baraquant.graph),
    *(baraquant.parallel, calibration, torch, torch.nn, torch.optim, torch.nn.parallel),
    *(torch.distributed.fsdp, torch.distributed.tensor, torch.utils.data, builtins),
)
# Section of migration.md, the package that it is about, and where its names are.
OTHERS = {
    "From torch.ao.quantization": (
        *("torch.ao.quantization", "torch.ao.quantization", "torch.ao.quantization.quantize_fx"),
        *("torch.ao.quantization._learnable_fake_quantize", "torch"),
    ),
    "From torchao": (
        *("torchao", "torchao.quantization", "torchao.quantization.qat", "torch"),
        *("torchao.quantization.pt2e.quantize_pt2e", "torchao.prototype.smoothquant"),
    ),
    "From bitsandbytes": ("bitsandbytes", "bitsandbytes.nn", "bitsandbytes.optim"),
}
# Packages that a block may need and that may be missing; those of others no test installs.
OF_OTHERS = {"executorch", "torchao", "vllm"}
OPTIONAL = {"accelerate", "compressed_tensors", "gguf", "huggingface_hub", "onnx", "onnxruntime"}
OPTIONAL |= {"peft", "transformers", *OF_OTHERS}
NEEDED = {"_compressed_tensors": ("huggingface_hub",), "baraquant.peft": ("peft",)}
NEEDED |= {"AutoModelForCausalLM": ("transformers",), "TrainingArguments": ("accelerate",)}
NEEDED |= {"to_gguf": ("gguf", "transformers"), "to_onnx": ("onnx", "onnxscript", "onnxruntime")}
# Classes of transformers, accelerate, huggingface_hub and PyTorch that the pages name.
FOREIGN = {"Accelerator", "AveragedModel", "CompileConfig", "PyTorchModelHubMixin", "StaticCache"}
FOREIGN |= {"Trainer"}
ARGUMENTS = {"filter_fn", "scale_rule"}  # in the documents as what a reader hands over
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
]


def imported(text: str) -> set[str]:
    """The packages that a block imports itself, or that a part of baraquant needs."""
    found = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))
    return found | {name for part, names in NEEDED.items() if part in text for name in names}


forgotten = registered_layer.forgotten  # the guide registers a layer


def can_run(text: str) -> bool:
    """Whether the packages of a block are here; in CI only those of others may be missing."""
    missing = {name for name in imported(text) & OPTIONAL if find_spec(name) is None}
    if os.environ.get("CI") == "true":
        assert missing <= OF_OTHERS
    return not missing and not (CRASHES_ON_CPU and "aoti_load_package" in text)


@pytest.mark.packaging
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("path", [README, *WITH_PYTHON], ids=name_of)
def test_runs_from_the_top(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Python block, as a reader would type them, in a folder of its own.

    A page that does not speak of Inductor's own functions compiles graphs, but no C++ out of them.
    """
    if "torch._inductor" not in path.read_text():
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # the one way that every machine has
    torch.manual_seed(0)
    torch._dynamo.reset()
    python = [text for kind, text, _ in blocks(path) if kind in ("python", "pycon")]
    try:
        ran = list(documents.run(path, documents.module_for(path), can_run))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert python and ran == list(filter(can_run, python))


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def without_strings(span: str) -> str:
    return re.sub(r'"[^"]*"', "", span)


def classes_in(spans: Iterable[str]) -> set[str]:
    """Words with a capital letter first and a small one later."""
    text = "\n".join(map(without_strings, spans))
    return set(re.findall(r"(?<![\w.])(?:\w+\.)*([A-Z]\w*[a-z]\w*)", text))


def functions_in(spans: Iterable[str]) -> set[str]:
    """Words in front of a bracket, and spans that are one word with an underscore."""
    plain = [without_strings(span) for span in spans]
    called = {word for span in plain for word in re.findall(r"\b([a-z_]\w*)(?=\()", span)}
    return called | {span for span in plain if re.fullmatch(r"[a-z]+_[a-z_0-9]+", span)}


def is_in(name: str, places: Iterable[Any]) -> bool:
    return any(hasattr(place, name) for place in places)


def section(title: str) -> str:
    _, _, rest = MIGRATION.read_text().partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def columns(title: str) -> tuple[list[str], list[str]]:
    """The code in the first column and in the second of a section's first table."""
    text = section(title)
    table = text[text.index("|---") :].partition("\n\n")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", table, re.MULTILINE)
    firsts = [span for first, _ in rows for span in code_spans(first)]
    return firsts, [span for _, second in rows for span in code_spans(second)]


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_dotted_names_exist(path: Path) -> None:
    """``baraquant.nn.FakeQuantizedLinear``, ``ops.int8_linear``, ``bnn.enable_observer``."""
    roots = {"baraquant": baraquant, "ops": baraquant.ops, "bnn": baraquant.nn}
    spans = code_spans(path.read_text())
    dotted = r"(?<![\w./])(baraquant|ops|bnn)((?:\.[A-Za-z_]\w*)+)(?![\w.*{])"
    for root, rest in re.findall(dotted, " ".join(spans)):
        place: Any = roots[root]
        for name in rest[1:].split("."):
            if place is baraquant and not hasattr(place, name):
                importlib.import_module(f"baraquant.{name}")
            assert hasattr(place, name), f"{root}{rest}"
            place = getattr(place, name)


@pytest.mark.parametrize("path", [p for p in WITH_PYTHON if p != MIGRATION], ids=name_of)
def test_classes_exist(path: Path) -> None:
    missing = {n for n in classes_in(code_spans(path.read_text())) if not is_in(n, OWN)}
    assert missing <= FOREIGN


@pytest.mark.parametrize("title", OTHERS)
def test_names_after_migration_exist(title: str) -> None:
    _, spans = columns(title)
    assert len(spans) > 5
    layer = baraquant.nn.QuantizedLinear(torch.ones(1, 1, dtype=torch.int8), torch.ones(1))
    own = (*OWN, baraquant.ops, baraquant.nn.FakeQuantize, layer, torch.nn.utils.fusion)
    own += (calibration.MinMaxObserver,)
    missing = {n for n in classes_in(spans) | functions_in(spans) if not is_in(n, own)}
    assert missing - ARGUMENTS == set()


@pytest.mark.parametrize("title", OTHERS)
def test_names_before_migration_exist(title: str) -> None:
    package, *homes = OTHERS[title]
    pytest.importorskip(package, reason=f"{package} is not installed")
    spans, _ = columns(title)
    places = [importlib.import_module(home) for home in homes]
    observer = torch.ao.quantization.MinMaxObserver
    places += [torch.nn, torch.Tensor, torch.nn.Module, observer, builtins]
    names = classes_in(spans) | functions_in(spans)
    assert len(names) > 5
    assert {name for name in names if not is_in(name, places)} - ARGUMENTS == set()


def linear(features: int = 4) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(features, 2))


def spoiled() -> torch.nn.Module:
    model = linear()
    torch.nn.init.constant_(model[0].weight, float("nan"))
    return model


def load_changed(folder: Path, change: Callable[[bytes], bytes]) -> None:
    file = folder / "model.safetensors"
    baraquant.save(quantized(linear(), W8A8), file)
    data = file.read_bytes()
    assert change(data) != data
    file.write_bytes(change(data))
    baraquant.load_(linear(), file)


def damaged(folder: Path) -> None:
    load_changed(folder, lambda data: data[:-1] + bytes([data[-1] ^ 1]))


def newer(folder: Path) -> None:
    load_changed(folder, lambda data: data.replace(b'\\"format\\": 1', b'\\"format\\": 9'))


def unseen(folder: Path) -> None:
    baraquant.qat.convert_(prepared(linear(), STATIC))


def unreached(folder: Path) -> None:
    model = torch.nn.ModuleDict({"used": linear(), "other": linear()})
    rules, x = {"other.*": STATIC}, torch.ones(1, 4)
    baraquant.quantize_(model, rules, calibration=lambda m: m["used"](x), progress=False)


NAN, W8A8 = torch.full((1, 4), float("nan")), baraquant.W8A8()
STATIC = baraquant.W8A8Static()
GROUPS_OF_3 = baraquant.QuantConfig(baraquant.TensorConfig(4, "per_group", group_size=3))
FAULTS: dict[str, Callable[[Path], Any]] = {
    "expected a model with a Linear ... to quantize, but ... has none": (
        lambda _: quantized(torch.nn.Sequential(torch.nn.ReLU()), W8A8)
    ),
    "expected a model that contains the layers": lambda _: quantized(torch.nn.Linear(4, 2), W8A8),
    "expected group_size to divide in_features": lambda _: prepared(linear(4), GROUPS_OF_3),
    "expected in_features to be at most 131071": lambda _: prepared(linear(131072), W8A8),
    "batch 0: expected the batch, a list of 2, to be the arguments": (
        lambda _: quantized(linear(), STATIC, [torch.ones(1, 4), torch.ones(1)])
    ),
    "expected a finite weight": lambda _: quantized(spoiled(), W8A8),
    "expected finite calibration data": lambda _: quantized(linear(), STATIC, NAN),
    "expected the calibration data to reach the module": unreached,
    "expected the range of its input to be known": unseen,
    "expected a model before it is wrapped for several processes": (
        lambda _: baraquant.qat.convert_(torch.nn.DataParallel(linear()))
    ),
    "expected the data that was saved, but its checksum differs": damaged,
    "expected format 1": newer,
}


def test_messages_of_the_guide() -> None:
    """The table of messages names those that are tried below."""
    _, _, rest = (ROOT / "docs" / "guide.md").read_text().partition("\n| the message says | do |\n")
    firsts = re.findall(r"^\| (.*?) \| ", rest.partition("\n\n")[0], re.MULTILINE)
    messages = {span for first in firsts for span in code_spans(first)}
    assert messages - {"convert_"} == set(FAULTS)


@pytest.mark.parametrize("message", FAULTS)
def test_message(message: str, tmp_path: Path) -> None:
    pattern = ".*".join(map(re.escape, message.split(" ... ")))
    with pytest.raises((ValueError, TypeError), match=pattern):
        FAULTS[message](tmp_path)


# --- all documents, and those at the top


def test_readme_is_short() -> None:
    """What is reference is on pages of its own."""
    assert len(README.read_text().splitlines()) <= 150


def test_table_of_ops_is_whole() -> None:
    _, *rests = OPS.read_text().split("| op | computes |")
    tables = [rest.partition("\n\n")[0] for rest in rests]
    cells = re.findall(r"^\| (`[^|]+`) \|", "\n".join(tables), re.MULTILINE)
    families = re.findall(r"`([\w{}]+)`", "\n".join(cells))
    kinds = ("tensor", "channel", "token", "group")
    named = {family.replace("{G}", kind) for family in families for kind in kinds}
    assert sorted(named) == OP_NAMES


@by_document
def test_links_lead_somewhere(path: Path) -> None:
    for target in links(path):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@by_document
def test_named_files_exist(path: Path) -> None:
    words = re.findall(r"`([\w./-]+)`", path.read_text())
    for word in words:
        if word.split("/")[0] in FOLDERS and "/" in word:
            assert (ROOT / word).exists(), word


@by_document
def test_named_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(text for language, text, _ in blocks(path) if language == "bash")
    named = re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)
    named += re.findall(r"`make ([\w-]+)", path.read_text())
    assert set(named) <= targets


def test_variables_are_those_of_the_code() -> None:
    """CONTRIBUTING.md names every variable that the code reads; no document names another."""
    sources = [ROOT / "setup.py", ROOT / "scripts/toolchain.py", *(ROOT / "csrc").rglob("*.cpp")]
    read = set()
    for source in sources:
        read |= set(re.findall(r'(?:get|getenv)\("(BARAQUANT_\w+)"', source.read_text()))
    assert read
    variable = re.compile(r"\bBARAQUANT_[A-Z_]+")
    macros = set(re.findall(r"#define (\w+)", (ROOT / "csrc/api/export.h").read_text()))
    assert set(variable.findall((ROOT / "CONTRIBUTING.md").read_text())) - macros == read
    for path in DOCUMENTS:
        assert set(variable.findall(path.read_text())) - macros <= read


@by_document
def test_no_path_of_one_machine(path: Path) -> None:
    assert not lint.FORBIDDEN.search(path.read_text())
