# SPDX-License-Identifier: BSD-3-Clause
"""The visible GPUs, and whether the library holds the kernels that were made for them."""

from __future__ import annotations

import re

import torch

from baraquant import _C, _library

HOPPER = (9, 0)  # a compute capability


def visible() -> list[tuple[str, tuple[int, int]]]:
    """The name and the compute capability of each GPU that torch sees."""
    if not torch.cuda.is_available():
        return []
    return [
        (torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
        for index in range(torch.cuda.device_count())
    ]


def architectures(build: _C.BuildInfo) -> list[str]:
    """The entries of TORCH_CUDA_ARCH_LIST for which the library was built."""
    return [entry for entry in re.split(r"[;, ]+", build["cuda_architectures"]) if entry]


def runs_on(built: list[str], capability: tuple[int, int]) -> bool:
    """Whether code for one of these entries of TORCH_CUDA_ARCH_LIST runs on such a GPU.

    Machine code runs on later minor versions, PTX on everything later, and code for an architecture
    with ``a`` only on that one. An entry that is a name (such as "Ampere") counts as code, because
    nothing is known about it.
    """
    for entry in built:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", entry)
        if match is None:
            return True
        made_for = (int(match[1]), int(match[2]))
        if made_for == capability:
            return True
        later = capability > made_for and match[3] != "a"
        if later and (made_for[0] == capability[0] or (match[4] and not match[3])):
            return True
    return False


def has_hopper(build: _C.BuildInfo) -> bool:
    """Whether the products for Hopper's tensor cores were built."""
    return build["with_cutlass"] and bool(re.search(r"\b9\.0a", build["cuda_architectures"]))


def rebuild(capabilities: list[tuple[int, int]]) -> str:
    """The command that builds the library for these GPUs, with CUTLASS's headers where needed."""
    wanted = dict.fromkeys(
        f"{major}.{minor}" + ("a" if (major, minor) == HOPPER else "")
        for major, minor in sorted(capabilities)
    )
    variables = f"BARAQUANT_CUDA=1 TORCH_CUDA_ARCH_LIST='{';'.join(wanted)}'"
    if HOPPER not in capabilities:
        return f"{variables} {_library.mend()}"
    command = f"BARAQUANT_CUTLASS=1 {variables} {_library.mend()}"
    if _library.checkout() is not None:
        return command  # make installs CUTLASS's headers by itself
    return f"pip install --no-deps nvidia-cutlass && {command}"


def problems(build: _C.BuildInfo) -> list[str]:
    """What this library lacks for the visible GPUs, each with the command that fixes it."""
    gpus = visible()
    if not gpus:
        return []
    command = rebuild([capability for _, capability in gpus])
    if not build["with_cuda"]:
        return [
            f"torch sees a GPU ({gpus[0][0]}), but baraquant was built without CUDA (nvcc was not "
            "found, or BARAQUANT_CUDA=0): its ops run on the CPU only. With nvcc on the PATH, or "
            f"CUDA_HOME set, run: {command}"
        ]
    built = architectures(build)
    found = []
    for name, capability in dict.fromkeys(gpus):
        chip = f"{name} ({capability[0]}.{capability[1]})"
        if not runs_on(built, capability):
            found.append(
                f"no CUDA kernel was built for {chip}, but for {', '.join(built)}: no op "
                f"runs there. Run: {command}"
            )
        elif capability == HOPPER and not has_hopper(build):
            found.append(
                f"the kernels for Hopper's tensor cores were not built, but {chip} is visible: "
                f"products of integers run at a third of their speed. Run: {command}"
            )
    return found


def devices() -> list[str]:
    """A device for each kind of GPU that is visible; the first is the current one."""
    first: dict[tuple[int, int], str] = {}
    for index, (_, capability) in enumerate(visible()):
        first.setdefault(capability, f"cuda:{index}" if first else "cuda")
    return list(first.values())
