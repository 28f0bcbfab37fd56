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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import baraquant
from baraquant import _C, _gpus, _library, ops, reference

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

# Two ties, both clamps, and rows whose scales are no powers of two.
_VALUES = ((-9.0, -0.75, 0.25, 1.25), (1.5, 2.0, 64.0, -2.5))


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
    """Calls some ops with a few values; returns a line for each result that is not the reference's.

    The reference computes on the CPU.
    """
    problems = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for name, arguments, options in _calls(dtype):
            right = _results(getattr(reference, name), "cpu", arguments, options)
            got = _results(getattr(ops, name), device, arguments, options)
            if got != right:
                problems.append(f"{name} on {device}, {dtype}: expected {right}, but got {got}")
    return problems


def _calls(dtype: torch.dtype) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The op, its arguments and its options."""
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    x, scale = torch.tensor(_VALUES, dtype=dtype), torch.tensor(0.5, dtype=compute)
    low, high = torch.tensor([torch.inf, -torch.inf], dtype=compute).unbind()
    integers = torch.tensor(_VALUES).to(torch.int8)
    rows, bias = torch.tensor([1.0, 0.3], dtype=compute), x[:, 0].contiguous()
    given = (scale, torch.tensor(1, dtype=torch.int32))
    return [
        ("quantize_per_tensor", (x, *given, -8, 7), {}),
        ("dequantize_per_tensor", (integers, *given), {"dtype": dtype}),
        ("fake_quantize_per_tensor", (x.clone().requires_grad_(), *given, -8, 7), {}),
        ("dynamic_range_quantize_per_tensor", (x, -8, 7), {"symmetric": False}),
        ("observe_min_max_", (x, low, high), {}),
        ("quantized_linear", (x, integers, rows, bias), {}),
        ("quantized_linear", (x, integers, rows, bias), {"symmetric": False}),
        ("qat_linear", (x, x, bias), {}),
    ]


def _results(
    op: Callable[..., Any], device: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> list[list[Any]]:
    """What an op returns, what it writes into its arguments, and the gradient of the first one."""
    moved = [
        one.detach().to(device, copy=True).requires_grad_(one.requires_grad)
        if isinstance(one, torch.Tensor)
        else one
        for one in arguments
    ]
    returned = op(*moved, **options)
    outputs = [returned] if isinstance(returned, torch.Tensor) else [*(returned or ())]
    for output in outputs:
        if output.requires_grad:
            weights = torch.arange(output.numel(), dtype=output.dtype, device=device)
            (output.flatten() * weights).sum().backward()
    tensors = [*outputs, *(one for one in moved if isinstance(one, torch.Tensor)), moved[0].grad]
    return [one.tolist() for one in tensors if one is not None]


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
    registered = registered_ops()
    checks = {device: checked(device) for device in devices}
    gpus, hopper = _gpus.visible(), _gpus.has_hopper(build)
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
        "hopper_kernels": hopper,
        "hopper_kernels_used": hopper and any(one == _gpus.HOPPER for _, one in gpus),
        "gpus": [f"{name} ({major}.{minor})" for name, (major, minor) in gpus],
        "ops": registered,
        "self_check": {device: not problems for device, problems in checks.items()},
        "problems": [
            *missing_kernels(registered, build["with_cuda"]),
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
    """Prints tables."""
    registered = [
        (name.removeprefix("baraquant::"), ", ".join(keys)) for name, keys in info["ops"].items()
    ]
    for title, rows in (
        ("Build and machine", facts(info)),
        ("Registered ops (CompositeImplicitAutograd: calls an op with an underscore)", registered),
    ):
        width = max((len(name) for name, _ in rows), default=0)
        print(title, *(f"{name:<{width}}  {value}" for name, value in rows), sep="\n", end="\n\n")
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
