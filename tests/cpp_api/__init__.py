# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the public C++ headers, in programs against LibTorch."""
