# SPDX-License-Identifier: BSD-3-Clause
"""The command line of ``language_model.py``."""

import argparse
import math
from pathlib import Path

import torch

from lm_decoder import MLPS, SIZES
from lm_experiment import DTYPES
from lm_report import MODES
from lm_schemes import BASELINE, DEFAULT, DEPLOYMENTS, SCHEMES, missing

PARTS = {
    "training": "every scheme from scratch and from a checkpoint",
    "deployment": "the checkpoint rounded by every scheme, and trained on at four bits",
    "few_bits": "4, 3 and 2 bits: rounded, reconstructed and trained",
    "sensitivity": "the schemes of layers within a budget of bytes",
}


def parse_args(argv: list[str] | None, description: str) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"Parts: {'; '.join(f'{name}: {what}' for name, what in PARTS.items())}. "
        f"The rows of training are compared with {BASELINE}, which has a floating backward pass. "
        f"Schemes: {', '.join(SCHEMES)}; the default: {', '.join(DEFAULT)}. "
        f"Deployments: {', '.join(DEPLOYMENTS)}; the default: all.",
    )
    _add_options(parser)
    args = parser.parse_args(argv)
    for name in ("steps", "batch", "learning_rate"):
        if getattr(args, name) is None:
            setattr(args, name, getattr(SIZES[args.size], name))
    if args.tuning_steps is None:
        args.tuning_steps = max(2, args.steps // 4)
    args.dtype = args.dtype or ("float32" if args.device.type == "cpu" else "bfloat16")
    args.missing = missing(args.schemes)
    args.schemes = [name for name in SCHEMES if name in args.schemes and name not in args.missing]
    args.parts = [name for name in PARTS if name in args.parts]
    args.deployments = [name for name in DEPLOYMENTS if name in args.deployments]
    _check(parser, args)
    return args


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    sizes = ", ".join(f"{name} {size.width} x {size.layers}" for name, size in SIZES.items())
    has_cuda = torch.cuda.is_available()
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="see below (default: all)")
    add("--size", choices=SIZES, default="cpu", help=f"width x layers: {sizes} (default: cpu)")
    add("--mlp", choices=MLPS, default="swiglu", help="the feed-forward part (default: swiglu)")
    add("--steps", type=int, help="of training from scratch (default: the size's)")
    add("--tuning-steps", type=int, help="from a checkpoint (default: a quarter of --steps)")
    add(
        "--tuning-rate",
        type=float,
        default=0.1,
        help="its share of --learning-rate (default: 0.1)",
    )
    add("--batch", type=int, help="windows in a step (default: the size's)")
    add("--learning-rate", type=float, help="its maximum (default: the size's)")
    add("--seeds", type=int, default=3, help="how many seeds, from 0 on (default: 3)")
    add(
        "--schemes", nargs="+", choices=SCHEMES, default=DEFAULT, metavar="SCHEME", help="see below"
    )
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="(default: both)")
    add(
        "--deployments",
        nargs="+",
        choices=DEPLOYMENTS,
        default=list(DEPLOYMENTS),
        metavar="NAME",
        help="see below; the float model is one in any case",
    )
    add("--cosine", type=int, default=0, metavar="N", help="compare gradients at N steps")
    add(
        "--device",
        type=torch.device,
        default="cuda" if has_cuda else "cpu",
        help="(default: cuda where there is a GPU)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        help="of floating products, and of the float model that is deployed; trained weights are "
        "float32 (default: bfloat16 on a GPU)",
    )
    add("--resume", type=Path, metavar="JSON", help="take the seeds that an earlier run completed")
    add("--strict", action="store_true", help="fail if anything asked is missing or not reached")
    add(
        "--out", type=Path, default=Path("results"), help="folder of the results (default: results)"
    )


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if min(args.seeds, args.batch) < 1 or min(args.steps, args.tuning_steps) < 2:
        parser.error("--seeds and --batch have to be at least 1, --steps and --tuning-steps 2")
    for name in ("learning_rate", "tuning_rate"):
        value = getattr(args, name)
        if not 0 < value < math.inf:
            option = "--" + name.replace("_", "-")
            parser.error(f"{option} has to be a positive number, but is {value}")
    if not args.schemes:
        parser.error(f"nothing to train: {'; '.join(args.missing.values())}")
    if not 0 <= args.cosine <= args.steps:
        parser.error(f"--cosine has to lie between 0 and --steps, which is {args.steps}")
    if args.cosine and not any(SCHEMES[name].is_asked for name in args.schemes):
        why = "; ".join(args.missing.values()) or "name one of those with a backward"
        parser.error(f"--cosine has no scheme to compare with {BASELINE}: {why}")
    if args.resume is not None and not args.resume.is_file():
        parser.error(f"--resume has to be the JSON of an earlier run, but {args.resume} is no file")
