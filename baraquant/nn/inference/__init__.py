# SPDX-License-Identifier: BSD-3-Clause
"""Modules of integers, to serve; public as :mod:`baraquant.nn`."""
