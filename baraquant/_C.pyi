# SPDX-License-Identifier: BSD-3-Clause
from typing import TypedDict

class BuildInfo(TypedDict):
    version: str
    torch_version: str
    compiler: str
    nvcc_version: str
    cuda_architectures: str
    with_cuda: bool

def build_info() -> BuildInfo: ...
def cpu_isa() -> str: ...
