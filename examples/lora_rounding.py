# SPDX-License-Identifier: BSD-3-Clause
"""LoRA at four bits: what it costs to merge an adapter into integers, and how it costs nothing.

A small decoder learns the sources of Python's standard library. Then LoRA teaches it a text that it
does not know, the same sources with upper and lower case swapped, over three bases: the floating
model, integers with the adapter beside them, and a prepared model, with the adapter inside the
rounding. At last each adapter is merged, and the model is served in four bits.

Run ``python examples/lora_rounding.py``; the plot and all figures land in ``results/``.
"""

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import peft
import torch
from torch import Tensor, nn

import baraquant
import baraquant.peft  # PEFT knows quantized layers from here on
from lm_decoder import SIZES, Decoder
from lm_text import Text, batches, load_text, validation_batches
from lm_training import train, validate
from machine import processor

FLOAT, BESIDE, INSIDE = "bfloat16", "adapter beside integers", "adapter inside the rounding"
BLOCKS = "blocks.*"
TARGETS = ["qkv", "out", "up", "down"]
EXACT = torch.float32  # no autocast


def swapped(text: Text) -> Text:
    """Return the text with upper and lower case swapped."""
    table = torch.tensor([ord(bytes([byte]).swapcase()) for byte in range(256)], dtype=torch.uint8)
    halves = {name: table[getattr(text, name).long()] for name in ("training", "validation")}
    return replace(text, **halves)


def adapted(model: nn.Module, rank: int) -> Any:
    """Return the model with LoRA over all linear layers of its blocks."""
    torch.manual_seed(2)
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=TARGETS))


def base_of(name: str, model: nn.Module, scheme: Any) -> nn.Module:
    """Return the base of a run."""
    model = copy.deepcopy(model)
    if name == BESIDE:
        baraquant.quantize_(model, {BLOCKS: scheme}, progress=False)
    elif name == INSIDE:
        baraquant.qat.prepare_(model, {BLOCKS: scheme})
    return model


def served(name: str, adapter: Any, scheme: Any) -> nn.Module:
    """Merge the adapter, and return the model in integers."""
    model: nn.Module = copy.deepcopy(adapter).merge_and_unload()
    if name == INSIDE:
        baraquant.qat.convert_(model)
    else:
        baraquant.quantize_(model, {BLOCKS: scheme}, progress=False)
    return model


@torch.no_grad()
def distance(model: nn.Module, other: nn.Module, tokens: list[Tensor]) -> float:
    """Return by how much logits differ, relative to their norm; 0 means that no bit does."""
    pairs = [(model(batch[:, :-1]).float(), other(batch[:, :-1]).float()) for batch in tokens]
    apart = torch.stack([(a - b).square().sum() for a, b in pairs]).sum()
    return float((apart / torch.stack([a.square().sum() for a, _ in pairs]).sum()).sqrt())


def main(arguments: list[str] | None = None) -> None:
    """Run everything, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=["tiny", "cpu"], default="cpu")
    parser.add_argument("--steps", type=int, default=200, help="of LoRA")
    parser.add_argument("--pretraining", type=int, default=None, help="steps before; as the size")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args(arguments)
    size, scheme = SIZES[args.size], baraquant.W4A16(group_size=SIZES[args.size].group)
    text = load_text(torch.device("cpu"))
    torch.manual_seed(1)
    model = Decoder(size)
    shape = size.batch, size.context
    steps = args.pretraining or size.steps
    train(model, batches(text, 0, *shape), steps, size.learning_rate, EXACT, lambda *_: None)
    other = swapped(text)
    unseen = validation_batches(other, size.windows, *shape)
    model.to(torch.bfloat16)
    rows: dict[str, Any] = {}
    for name in (FLOAT, BESIDE, INSIDE):
        base = base_of(name, model, scheme)
        before = validate(base, unseen, EXACT)
        adapter = adapted(base, args.rank)
        learned = train(
            adapter, batches(other, 3, *shape), args.steps, 3e-3, EXACT, lambda *_: None
        )
        final = served(name, adapter, scheme)
        rows[name] = {
            "before": before,
            "trained": validate(adapter, unseen, EXACT),
            "served": validate(final, unseen, EXACT),
            "moved": distance(adapter, final, unseen),
            "step_seconds": learned.step_seconds,
            "cpu_seconds": learned.cpu_seconds,
            "chunk": learned.chunk,
            "curve": learned.curve,
        }
        cells = (f"{rows[name][key]:.4f}" for key in ("before", "trained", "served"))
        print(f"{name:28}", *cells, f"logits moved by {rows[name]['moved']:.2%}")
    about = {"scheme": str(scheme), "rank": args.rank, "steps": args.steps, "pretraining": steps}
    about |= {"machine": processor(), "torch": torch.__version__, "peft": peft.__version__}
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"about": about, "rows": rows}
    (args.out / "lora_rounding.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(rows, args.out / "lora_rounding.png")


def plot(rows: dict[str, Any], path: Path) -> None:
    """Draw the losses of training, and what is trained and served against the floating model."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for index, (name, row) in enumerate(rows.items()):
        steps = [row["chunk"] * (chunk + 1) for chunk in range(len(row["curve"]))]
        left.plot(steps, row["curve"], ("-", "--", ":")[index], linewidth=2, label=name)
    places = range(len(rows))
    for key, shift in (("trained", -0.2), ("served", 0.2)):
        apart = [1e3 * (row[key] - rows[FLOAT]["trained"]) for row in rows.values()]
        label = {"trained": "as trained", "served": "merged, in four bits"}[key]
        right.bar([place + shift for place in places], apart, 0.4, label=label)
    right.axhline(0, color="gray", linewidth=1)
    right.set_xticks(places, [name.replace(" ", "\n", 1) for name in rows])
    right.set_ylabel(f"validation loss − {FLOAT} as trained, 10⁻³")
    left.set_xlabel("step of LoRA")
    left.set_ylabel("training loss, nats per byte")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
