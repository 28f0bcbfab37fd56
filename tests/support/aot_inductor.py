# SPDX-License-Identifier: BSD-3-Clause
"""Where AOTInductor itself does not work."""

import pytest
import torch

# Seen on an H200, with a package of a ReLU and without baraquant: the process dies
# of a segmentation fault in aoti_load_package.
CRASHES_ON_CPU = torch.__version__.startswith("2.11.") and torch.version.cuda is not None
REASON = "AOTInductor of torch 2.11 for CUDA crashes when it loads any package for the CPU"


def skip_where_it_crashes(device: str) -> None:
    if CRASHES_ON_CPU and device == "cpu":
        pytest.skip(REASON)
