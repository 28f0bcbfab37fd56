# SPDX-License-Identifier: BSD-3-Clause
from collections.abc import Callable
from typing import Any, TypedDict

class BuildInfo(TypedDict):
    version: str
    torch_version: str
    compiler: str
    nvcc_version: str
    cuda_architectures: str
    with_cuda: bool
    with_cutlass: bool

def build_info() -> BuildInfo: ...
def cpu_isa() -> str: ...
def eager_call(qualified_name: str, overloads: list[str]) -> Callable[..., Any]: ...
def plan(call: Callable[[], object]) -> list[dict[str, Any]]: ...
