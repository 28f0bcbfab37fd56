# SPDX-License-Identifier: BSD-3-Clause
"""Damaged files, in Python and in C++: `python -m tests.serialization.fuzz [--files N]`.

Each file is loaded into the model that it was saved from, and into another one. It loads if what it
says is true of the model, and then a save of the model says the same again. Else there is a
`ValueError` that names the file, and the model is bit for bit as it was. C++ has the same answer,
at the same place, and writes the same bytes. A layer that was loaded computes. No file kills a
process, or takes more memory than `ROOM` and `TIMES` its own size, or more seconds of a processor
than `SECONDS` and `SECONDS_OF_A_BYTE` for each of its bytes: Linux tells both of each load, in both
processes. Under a sanitizer, C++ also stops at an allocation beyond `LARGEST_MIB`.

`damages.py` makes the files, and `readers.py` has what other readers read. `--only N` takes one of
them, and says what was done to it.
"""

import argparse
import collections
import faulthandler
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

import baraquant
from baraquant import W4A8, W8A8
from baraquant.nn import HoldsIntegers, QuantizedEmbedding
from cpp_programs import build_program, environment
from tests.cpp_api.file_models import EVERY, FUSED, LINE, TIED, Network, all_widths, every
from tests.serialization.damages import Contents, damaged
from tests.serialization.readers import READERS
from tests.support.models.every_layer import Every

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120  # seconds for one file
# Bytes that a load may take: for one of the file's, and besides. A sanitizer keeps what is freed.
TIMES, ROOM = 64, (192 if os.environ.get("BARAQUANT_SANITIZE") else 48) << 20
LARGEST_MIB = 64
# Of a processor, however busy the machine is.
SECONDS, SECONDS_OF_A_BYTE = (60, 5e-5) if os.environ.get("BARAQUANT_SANITIZE") else (6, 5e-6)
OF_OTHERS = 0.25  # of the numbers go to the other readers
PROGRAM = ROOT / "tests" / "cpp_api" / "files.cpp"


# --- models ---------------------------------------------------------------------------------------


@dataclass
class Seed:
    """A saved model: a file to be damaged."""

    contents: Contents
    build: Callable[[], nn.Module]  # its float model, in Python
    description: str  # the same, as files.cpp builds it
    dtype: str = "float32"
    has_twin: bool = True  # C++ has all of its classes


class Whole(Every):
    """With what C++ lacks: other convolutions, attentions, and buffers of no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.register_buffer("positions", torch.arange(3), persistent=False)
        self.eval()


def make_seeds(folder: Path) -> list[Seed]:
    """Save a model of each class and width, and some of many modules."""
    torch.manual_seed(5)

    def contents(model: nn.Module) -> Contents:
        baraquant.save(model, folder / "seed")
        return Contents.read(folder / "seed")

    seeds = [Seed(contents(every()), lambda: Network(EVERY), EVERY)]
    texts = f"{LINE} norm:LayerNorm,8", TIED, TIED, FUSED
    for config, text in zip((W8A8(), W8A8(), W4A8(4), W8A8()), texts, strict=True):
        network = Network(text)
        baraquant.quantize_(network, config)
        seeds.append(Seed(contents(network), lambda text=text: Network(text), text))
    for dtype in (torch.float32, torch.bfloat16):
        descriptions, model = all_widths(dtype)
        for text in descriptions.split():
            network, name = Network(text, dtype), text.partition(":")[0]
            network.add_module(name, model.get_submodule(name))
            build = lambda text=text, dtype=dtype: Network(text, dtype)  # noqa: E731
            name = str(dtype).removeprefix("torch.")
            seeds.append(Seed(contents(network), build, text, name))
    whole = Whole()
    baraquant.quantize_(whole, W8A8(), filter_fn=lambda _, path: path.startswith("attention"))
    seeds.append(Seed(contents(whole.quantize()), Whole, EVERY, has_twin=False))
    return seeds


def bits_of(model: nn.Module) -> dict[str, Any]:
    """Everything of a model that a load may change."""
    kept: dict[str, Any] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        kept[path] = (id(module), module.training, sorted(vars(module)))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                values = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                kept[f"{path}.{name}"] = (id(tensor), tensor.dtype, tensor.shape, values)
    return kept


# --- the two shells -------------------------------------------------------------------------------

Answer = tuple[str, str]  # the kind of error and its text, or "ok" and nothing


class ExcessError(AssertionError):
    """More memory or time than a file of some size may take."""


class Usage:
    """What a process takes from `start` on: the peak of its memory, and time of a processor."""

    def __init__(self, process: int | str = "self") -> None:
        self.folder = Path("/proc") / str(process)
        self.before, self.ticks = 0, 0

    def _bytes(self, key: str) -> int:
        (line,) = re.findall(rf"{key}:\s+(\d+) kB", (self.folder / "status").read_text())
        return int(line) << 10

    def _ticks(self) -> int:
        fields = (self.folder / "stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def start(self) -> None:
        (self.folder / "clear_refs").write_text("5")  # the peak is from now on
        self.before, self.ticks = self._bytes("VmRSS"), self._ticks()

    def check(self, size: int) -> int:
        """Check that it is in proportion to a size in bytes; return the peak."""
        peak = self._bytes("VmHWM") - self.before
        if peak > ROOM + TIMES * size:
            raise ExcessError(f"{peak} bytes of memory for {size}")
        used = (self._ticks() - self.ticks) / os.sysconf("SC_CLK_TCK")
        if used > SECONDS + SECONDS_OF_A_BYTE * size:
            raise ExcessError(f"{used} seconds of a processor for {size} bytes")
        return peak


class Python:
    """`load_` in this process, into models that an error leaves as they were."""

    def __init__(self) -> None:
        self.models: dict[int, tuple[nn.Module, dict[str, Any]]] = {}
        self.usage = Usage()

    def load(self, file: Path, seed: Seed, again: Path) -> Answer:
        """Load a file; save the model again where that succeeds."""
        if id(seed) not in self.models:
            model = seed.build()
            self.models[id(seed)] = model, bits_of(model)
        model, before = self.models[id(seed)]
        try:
            baraquant.load_(model, file)
        except ValueError as error:
            assert bits_of(model) == before, "the model has changed in Python"
            return "ValueError", str(error)
        del self.models[id(seed)]
        baraquant.save(model, again)
        compute(model)
        return "ok", ""


def compute(model: nn.Module) -> None:
    """Run each layer of integers on three rows: some of `file_models` have a scale for each."""
    for module in model.modules():
        if not isinstance(module, HoldsIntegers):
            continue
        if isinstance(module, QuantizedEmbedding):
            module(torch.zeros(3, dtype=torch.long))
            continue
        kernel = getattr(module, "kernel_size", ())
        channels = module.in_channels if kernel else module.in_features
        shape = (1, channels, *(9 for _ in kernel)) if kernel else (3, channels)
        module(torch.zeros(shape, dtype=module.dtype))


class Cpp:
    """`load_` of files.cpp, a process that takes a job a line."""

    def __init__(self, program: Path) -> None:
        variables = environment() | {"BARAQUANT_TEST_JOBS": "/dev/stdin"}
        sanitizer = variables.get("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=0")
        variables["ASAN_OPTIONS"] = f"{sanitizer}:max_allocation_size_mb={LARGEST_MIB}"
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self.process = subprocess.Popen([program], env=variables, **pipes)
        self.usage = Usage(self.process.pid)
        self.printed = b""

    def send(self, file: Path, seed: Seed, again: Path) -> None:
        job = "\t".join(("copy", seed.dtype, seed.description, str(file), str(again), "-"))
        assert self.process.stdin is not None
        self.process.stdin.write(job.encode() + b"\n")

    def answer(self) -> Answer:
        assert self.process.stdout is not None
        while b"\n" not in self.printed:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            assert ready, "C++ hangs"
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            assert part, f"C++ died, exit code {self.process.wait()}"
            self.printed += part
        line, _, self.printed = self.printed.partition(b"\n")
        kind, *rest = line.decode().split("\t")
        if kind == "ok":
            return kind, ""
        assert rest[-1] == "unchanged", "the model has changed in C++"
        return kind, "\t".join(rest[:-1])


# --- a file ---------------------------------------------------------------------------------------


def place_of(message: str) -> str:
    """What a message leads with: the function, the file, and the path or the name, if it has one.

    The words behind that are each language's own.
    """
    parts = message.split(": ")[:3]
    return ": ".join(part for part in parts if not part.startswith("expected "))


def rule_of(message: str) -> str:
    """The words that tell one kind of error from another."""
    found = re.search(r"expected [^,:;('\"\[]*", re.sub(r"-?\d+", "N", message))
    return " ".join(found[0].split()[:5]) if found else "none"


@dataclass
class Fuzz:
    """The files of one run, what became of them, and the most memory that one took.

    Without a program there is Python alone.
    """

    folder: Path
    program: Path | None
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    rules: collections.Counter[str] = field(default_factory=collections.Counter)
    most: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seeds = make_seeds(self.folder)
        self.python, self.cpp = Python(), Cpp(self.program) if self.program else None
        self.file = self.folder / "damaged.safetensors"
        self.again = self.folder / "python", self.folder / "cpp"
        self.readers = [kind(self.folder / kind.__name__) for kind in READERS]
        for seed in self.seeds:  # what is whole loads; a first load takes memory that stays
            self.file.write_bytes(seed.contents.file())
            self._check_load(seed, seed, 1 << 30)
        assert self.counts.keys() == {"ok"}
        self.most.clear()

    def check(self, number: int) -> str:
        """Make a file and load it; return what was done to it."""
        random = Random(number)
        if random.random() < OF_OTHERS:
            return self._check_other(number, random)
        seed = random.choice(self.seeds)
        raw, what = damaged(random, seed.contents)
        self.file.write_bytes(raw)
        for target in (seed, random.choice(self.seeds)):
            given = seed, target, len(raw), " " not in what
            try:
                try:
                    self._check_load(*given)
                except ExcessError:  # PyTorch may have loaded code; the second time is the file's
                    self._check_load(*given)
            except Exception as error:
                pair = f"of {seed.description} into {target.description}"
                raise AssertionError(f"file {number} ({what}), {pair}: {error}") from error
        return what

    def _check_other(self, number: int, random: Random) -> str:
        """Let another reader read something damaged; return its name."""
        (reader,) = random.choices(self.readers, list(READERS.values()))
        name = type(reader).__name__
        try:
            size, usage = reader.make(random), self.python.usage
            usage.start()
            try:
                reader.read()
                self.counts["ok"] += 1
            except reader.errors as error:
                self.counts[type(error).__name__] += 1
                self.rules[rule_of(str(error))] += 1
                reader.check_error(str(error))
            self.most[name] = max(self.most.get(name, 0), usage.check(size))
        except Exception as error:
            raise AssertionError(f"file {number} ({name}): {error!r:.2000}") from error
        return name

    def _check_load(self, seed: Seed, target: Seed, size: int, is_one: bool = True) -> None:
        usages = {"Python": self.python.usage}
        if self.cpp is not None:
            usages["C++"] = self.cpp.usage
        for usage in usages.values():
            usage.start()
        if self.cpp is not None:
            self.cpp.send(self.file, target, self.again[1])
        got = self.python.load(self.file, target, self.again[0])
        cpp = self.cpp.answer() if self.cpp is not None else None
        for name, usage in usages.items():
            self.most[name] = max(self.most.get(name, 0), usage.check(size))
        self._check_answer(got)
        if cpp is not None:
            self._check_same(got, cpp, is_one and seed.has_twin and target.has_twin)

    def _check_answer(self, answer: Answer) -> None:
        kind, text = answer
        self.counts[kind] += 1
        self.rules[rule_of(text)] += 1
        if kind == "ok":
            saved, given = (Contents.read(path) for path in (self.again[0], self.file))
            assert given.is_kept_by(saved), "loaded, but not what it says"
        else:
            self._check_text(text)

    def _check_text(self, text: str) -> None:
        assert text.startswith(f"baraquant.load_: {self.file.name}: "), text[:2000]
        assert len(text) < 1000, text

    def _check_same(self, python: Answer, cpp: Answer, has_place: bool) -> None:
        """Compare the languages; of several damages, each may find another one first."""
        if "baraquant.load_ of Python" in cpp[1]:  # C++ lacks it
            return
        if cpp[0] != "ok":
            self._check_text(cpp[1])
        places = [place_of(text)[:300] if has_place else "" for _, text in (python, cpp)]
        assert (python[0], places[0]) == (cpp[0], places[1]), (python, cpp)
        if cpp[0] == "ok" and not Contents.read(self.file).config["channels_last"]:
            (tensors, ties), (copies, fewer) = (Contents.read(path).shared() for path in self.again)
            if fewer < ties:  # C++ copies into parameters that the file shares, but not the model
                assert tensors == copies, "Python and C++ load different tensors"
            else:
                files = [path.read_bytes() for path in self.again]
                assert files[0] == files[1], "Python and C++ write different files"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--program", type=Path, help="files.cpp, built; else it is built first")
    parser.add_argument("--python", action="store_true", help="without C++")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        program = options.program
        if program is None and not options.python:
            program = Path(name) / "files"
            build_program(PROGRAM, program)
        fuzz = Fuzz(Path(name), program)
        if options.only is not None:
            print(fuzz.check(options.only), fuzz.rules)
            return
        start = time.monotonic()
        damages: collections.Counter[str] = collections.Counter()
        for number in range(options.first, options.first + options.files):
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            damages[fuzz.check(number).split(" ")[0]] += 1
        faulthandler.cancel_dump_traceback_later()
        seconds = time.monotonic() - start
    print(f"{options.files} files, {seconds:.0f} s, loads {dict(fuzz.counts)}")
    print(f"damages {dict(damages)}")
    print("\n".join(f"{count:8} {rule}" for rule, count in fuzz.rules.most_common()))
    print("peaks in MiB:", {name: round(most / 2**20, 1) for name, most in fuzz.most.items()})


if __name__ == "__main__":
    main()
