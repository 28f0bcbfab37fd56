# SPDX-License-Identifier: BSD-3-Clause
"""``python -m baraquant.info``: what was built, what runs here, and whether its numbers are right.

Exit code 1 when something is wrong: an op lacks its kernels, a self-check fails, or the library
lacks the kernels that were made for a visible GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

import baraquant
from baraquant import _C, _gpus, _library

# The order in which an op's keys are shown.
KEYS = (
    "CompositeImplicitAutograd",
    "Autograd",
    "CPU",
    "CUDA",
    "Meta",
    "AutocastCPU",
    "AutocastCUDA",
    "FuncTorchBatched",
)

# The input has two ties, both clamps and a zero point. All values are exact in every floating
# dtype.
_SCALE, _ZERO_POINT, _RANGE = 0.5, 1, (-8, 7)
_INPUT = (-9.0, -0.75, 0.25, 1.25, 1.5, 2.0, 64.0)
_INTEGERS = (-8, -1, 1, 3, 4, 5, 7)
_FAKE = (-4.5, -1.0, 0.0, 1.0, 1.5, 2.0, 3.0)
_GRADIENT = (0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0)
# For a scale from the data: the range from -2.5 to 5 has 15 steps of 0.5, with two ties.
_DATA = (-2.5, -0.75, 0.25, 1.25, 5.0)
_DATA_INTEGERS, _DATA_SCALE, _DATA_ZERO_POINT = (-8, -5, -3, -1, 7), 0.5, -3
_DATA_ENDS = (-2.5, 5.0)
# Rows with scales of 0.5 and 1, symmetric and not, times rows of weights with scales of 1 and 0.5:
# nothing is rounded but the results.
_ROWS, _ASYMMETRIC_ROWS = ((1.0, 63.5), (-2.0, 127.0)), ((-51.0, 76.5), (0.0, 255.0))
_WEIGHT, _BIAS = ((127.0, -2.0), (0.5, 63.5)), (1.0, -1.0)
_PRODUCTS, _ASYMMETRIC_PRODUCTS = (
    (1.0, 4031.75, -507.0, 8062.5),
    (-6629.0, 4831.25, -509.0, 16191.5),
)


def registered_ops() -> dict[str, list[str]]:
    """The dispatch keys for which each op of the library has a kernel.

    In a build without CUDA the kernel of the key CUDA only raises an error, so it does not count.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = [key for key in KEYS if key != "CUDA" or _C.build_info()["with_cuda"]]
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("baraquant::"))
    return {name: [key for key in keys if has_kernel(name, key)] for name in names}


def missing_kernels(ops: dict[str, list[str]], with_cuda: bool) -> list[str]:
    """Which ops lack a kernel that the build should have given them."""
    wanted = ["CPU", "Meta"] + (["CUDA"] if with_cuda else [])
    problems = [
        f"{name} has no {key} kernel"
        for name, keys in ops.items()
        if "CompositeImplicitAutograd" not in keys
        for key in wanted
        if key not in keys
    ]
    return problems if ops else ["no op is registered"]


def self_check(device: str) -> list[str]:
    """Quantizes a few values on a device, and returns the wrong results.

    Args:
        device: ``"cpu"`` or ``"cuda"``.

    Returns:
        One line for each wrong result; an empty list if all are right.
    """
    problems = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for what, got, expected in (
            *_affine_results(device, dtype),
            *_range_results(device, dtype),
            *_product_results(device, dtype),
        ):
            if got.tolist() != list(expected):
                problems.append(
                    f"{what} on {device}, {dtype}: expected {list(expected)}, got {got.tolist()}"
                )
    return problems


Results = list[tuple[str, torch.Tensor, tuple[float, ...]]]


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _affine_results(device: str, dtype: torch.dtype) -> Results:
    """What was computed, the result, and the expected result."""
    ops = torch.ops.baraquant
    x = torch.tensor(_INPUT, dtype=dtype, device=device)
    scale = torch.tensor(_SCALE, dtype=_compute_dtype(dtype), device=device)
    zero_point = torch.tensor(_ZERO_POINT, dtype=torch.int32, device=device)
    weight = torch.arange(1, len(_INPUT) + 1, dtype=dtype, device=device)

    q = ops.quantize_per_tensor(x, scale, zero_point, *_RANGE)
    y = ops.dequantize_per_tensor(q, scale, zero_point, dtype=dtype)
    x.requires_grad_()
    fake = ops.fake_quantize_per_tensor(x, scale, zero_point, *_RANGE)
    (gradient,) = torch.autograd.grad((fake * weight).sum(), x)
    return [
        ("quantize_per_tensor", q, _INTEGERS),
        ("dequantize_per_tensor", y, _FAKE),
        ("fake_quantize_per_tensor", fake, _FAKE),
        ("the gradient of fake_quantize_per_tensor", gradient, _GRADIENT),
    ]


def _range_results(device: str, dtype: torch.dtype) -> Results:
    """The same for ops whose scale comes from the data."""
    ops = torch.ops.baraquant
    x = torch.tensor(_DATA, dtype=dtype, device=device)
    low, high = torch.tensor(
        [torch.inf, -torch.inf], dtype=_compute_dtype(dtype), device=device
    ).unbind()

    q, scale, zero_point = ops.dynamic_range_quantize_per_tensor(x, *_RANGE, symmetric=False)
    ops.observe_min_max_(x, low, high)
    return [
        ("dynamic_range_quantize_per_tensor", q, _DATA_INTEGERS),
        ("the scale of dynamic_range_quantize_per_tensor", scale[None], (_DATA_SCALE,)),
        ("the zero point of it", zero_point[None], (_DATA_ZERO_POINT,)),
        ("observe_min_max_", torch.stack([low, high]), _DATA_ENDS),
    ]


def _product_results(device: str, dtype: torch.dtype) -> Results:
    """The same for the matrix products."""
    ops = torch.ops.baraquant

    def tensor(values: tuple[Any, ...]) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    x, skewed, weight, bias = map(tensor, (_ROWS, _ASYMMETRIC_ROWS, _WEIGHT, _BIAS))
    w, sw, _ = ops.dynamic_range_quantize_per_channel(weight, 0)
    products, skewed_products = (
        tuple(tensor(values).tolist()) for values in (_PRODUCTS, _ASYMMETRIC_PRODUCTS)
    )
    asymmetric = ops.quantized_linear(skewed, w, sw, bias, symmetric=False)
    return [
        ("quantized_linear", ops.quantized_linear(x, w, sw, bias).flatten(), products),
        ("qat_linear", ops.qat_linear(x, weight, bias).flatten(), products),
        ("quantized_linear, asymmetric", asymmetric.flatten(), skewed_products),
    ]


def checked(device: str) -> list[str]:
    """The self-check, with an exception counted as a wrong result."""
    try:
        return self_check(device)
    except Exception as error:  # whatever it is, the report should show it
        return [f"the self-check on {device} failed: {type(error).__name__}: {error}"]


def gather() -> dict[str, Any]:
    """Everything the command shows, as plain data; ``problems`` is empty when all is well."""
    build = _C.build_info()
    devices = ["cpu", *(_gpus.devices() if build["with_cuda"] else [])]
    ops = registered_ops()
    checks = {device: checked(device) for device in devices}
    gpus = _gpus.visible()
    return {
        "baraquant": build["version"],
        "library": str(_library.LIBRARY),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "built_for_torch": build["torch_version"],
        "compiler": build["compiler"],
        "cpu_isa": _C.cpu_isa(),
        "cpu_threads": torch.get_num_threads(),
        "with_cuda": build["with_cuda"],
        "torch_cuda": torch.version.cuda,
        "nvcc": build["nvcc_version"],
        "cuda_architectures": _gpus.architectures(build),
        "hopper_kernels": _gpus.has_hopper(build),
        "hopper_kernels_used": _gpus.uses_hopper(build),
        "gpus": [f"{name} ({major}.{minor})" for name, (major, minor) in gpus],
        "ops": ops,
        "self_check": {device: not problems for device, problems in checks.items()},
        "problems": [
            *missing_kernels(ops, build["with_cuda"]),
            *_gpus.problems(build),
            *(problem for problems in checks.values() for problem in problems),
        ],
    }


def facts(info: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of the first table."""
    cuda = "not built"
    if info["with_cuda"]:
        cuda = f"nvcc {info['nvcc']}, for {', '.join(info['cuda_architectures'])}"
    hopper = "not built"
    if info["hopper_kernels"]:
        hopper = "built, " + ("used" if info["hopper_kernels_used"] else "no Hopper GPU is visible")
    return [
        ("baraquant", f"{info['baraquant']} ({info['library']})"),
        ("python", info["python"]),
        ("torch", f"{info['torch']} (baraquant was built for {info['built_for_torch']})"),
        ("compiler", info["compiler"]),
        ("CPU kernels", f"{info['cpu_isa']}, {info['cpu_threads']} threads"),
        ("CUDA kernels", cuda),
        ("Hopper's kernels", hopper),
        ("torch's CUDA", info["torch_cuda"] or "none (a CPU build)"),
        ("GPUs", ", ".join(info["gpus"]) or "none visible"),
        *(
            (f"self-check, {d}", "passed" if ok else "FAILED")
            for d, ok in info["self_check"].items()
        ),
    ]


def show(info: dict[str, Any]) -> None:
    """Prints tables, with rich if it is installed, else as plain text."""
    rows = facts(info)
    ops = [
        (name.removeprefix("baraquant::"), ", ".join(keys)) for name, keys in info["ops"].items()
    ]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for pairs in (rows, ops):
            width = max((len(name) for name, _ in pairs), default=0)
            print("\n".join(f"{name:<{width}}  {value}" for name, value in pairs), end="\n\n")
    else:
        console = Console()
        for title, pairs in (
            ("Build and machine", rows),
            ("Registered ops (CompositeImplicitAutograd: calls an op with an underscore)", ops),
        ):
            table = Table(title=title, show_header=False, title_justify="left")
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for name, value in pairs:
                table.add_row(name, value)
            console.print(table)
    for problem in info["problems"]:
        print(f"WRONG: {problem}")
    print("Something is wrong." if info["problems"] else "All is well.")


def cmake_prefix() -> str:
    """CMAKE_PREFIX_PATH for find_package(baraquant), torch's own included."""
    package = Path(baraquant.__file__).resolve().parent
    return f"{package};{torch.utils.cmake_prefix_path}"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m baraquant.info", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print everything as JSON")
    form.add_argument(
        "--cmake-prefix", action="store_true", help="print CMAKE_PREFIX_PATH and do nothing else"
    )
    options = parser.parse_args(arguments)
    if options.cmake_prefix:
        print(cmake_prefix())
        return 0
    info = gather()
    if options.json:
        print(json.dumps(info, indent=2))
    else:
        show(info)
    return 1 if info["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
