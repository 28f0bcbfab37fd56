# SPDX-License-Identifier: BSD-3-Clause
"""Writes what the C++ examples read: the digits as CSV, and a trained network in three forms.

Usage: ``python examples/cpp/export_digits.py FOLDER [--device cuda]``. The folder gets

* ``digits.csv``: in each line a label and 64 pixels in 0 to 16, in a random order;
* ``network.safetensors``, ``network.pt`` (TorchScript) and ``network.pt2`` (AOTInductor): a network
  that was trained with W8A8 and converted to integers;
* ``input.pt`` and ``output.pt``: test images and the outputs of training's last evaluation.
"""

import argparse
import sys
from pathlib import Path

import numpy
import torch
from rich.progress import track
from sklearn.datasets import load_digits

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2]))  # finds a build in place as well

import baraquant
from digits import evaluate, float_network, load_split, train

FLOAT_EPOCHS, EPOCHS = 20, 5


def write_csv(path: Path) -> None:
    """Writes all 1797 digits."""
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(0).permutation(len(labels))
    rows = numpy.column_stack([labels, images]).astype(int)[order]
    numpy.savetxt(path, rows, fmt="%d", delimiter=",")


def export(folder: Path, device: torch.device) -> None:
    """Trains a network and writes it in every form; the forms' outputs are checked in C++."""
    torch.manual_seed(0)
    digits = load_split(0, device)
    network = float_network().to(device)
    for _ in track(train(network, digits, FLOAT_EPOCHS, 0), "float", FLOAT_EPOCHS):
        pass
    baraquant.qat.prepare_(network, baraquant.W8A8())
    for _ in track(train(network, digits, EPOCHS, 0), "W8A8", EPOCHS):
        pass
    accuracy, output = evaluate(network, digits)
    baraquant.qat.convert_(network)
    network.eval()
    baraquant.save(network, folder / "network.safetensors")
    input = digits.test_images
    torch.save(input.cpu(), folder / "input.pt")
    torch.save(output.cpu(), folder / "output.pt")
    torch.jit.script(network).save(folder / "network.pt")
    rows = torch.export.Dim("rows", min=1, max=1 << 20)
    with torch.no_grad():
        exported = torch.export.export(network, (input,), dynamic_shapes=({0: rows},))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "network.pt2"))
    print(f"accuracy {accuracy:.2f} %; written to {folder}")


def main(argv: list[str] | None = None) -> None:
    """Reads the command line, and writes everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--csv-only", action="store_true", help="write the digits alone")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    write_csv(args.folder / "digits.csv")
    if not args.csv_only:
        export(args.folder, args.device)


if __name__ == "__main__":
    main()
