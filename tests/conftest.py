# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of all tests: the devices, and where the helpers of this folder are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import setuptools  # noqa: F401 - before distutils, which it replaces and torch.compile imports
import torch

sys.path.insert(0, str(Path(__file__).parent))


def missing_cuda() -> str | None:
    """Why CUDA cannot be tested here; None where it can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    import baraquant  # noqa: F401  (registers the kernels that are asked for below)

    if not torch._C._dispatch_has_kernel_for_dispatch_key("baraquant::_fake_quantize", "CUDA"):
        return "baraquant built without CUDA"
    return None


@pytest.fixture
def cuda() -> str:
    """The CUDA device; skips where there is none."""
    reason = missing_cuda()
    if reason is not None:
        pytest.skip(reason)
    return "cuda"


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that computes."""
    return request.getfixturevalue("cuda") if request.param == "cuda" else "cpu"


@pytest.fixture(params=["cpu", "meta", "cuda"])
def any_device(request: pytest.FixtureRequest) -> str:
    """Each device that checks arguments."""
    return request.getfixturevalue("cuda") if request.param == "cuda" else request.param
