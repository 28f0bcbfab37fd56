# SPDX-License-Identifier: BSD-3-Clause
"""Packages of AOTInductor, and where it itself does not work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

import toolchain

# Seen on an H200, with a package of a ReLU and without baraquant: the process dies
# of a segmentation fault in aoti_load_package.
CRASHES_ON_CPU = torch.__version__.startswith("2.11.") and torch.version.cuda is not None
REASON = "AOTInductor of torch 2.11 for CUDA crashes when it loads any package for the CPU"


def packaged(
    program: torch.export.ExportedProgram, path: Path, device: str = "cpu", **configs: Any
) -> Callable[..., Any]:
    """The program, compiled by a compiler whose libraries may load torch, and loaded."""
    if CRASHES_ON_CPU and device == "cpu":
        pytest.skip(REASON)
    compiler = {"cpp.cxx": (None, toolchain.program_compiler())}
    with torch.no_grad(), torch._inductor.config.patch(compiler):
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=configs
        )
    return torch._inductor.aoti_load_package(package)
