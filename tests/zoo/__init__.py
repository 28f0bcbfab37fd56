# SPDX-License-Identifier: BSD-3-Clause
"""Whole models that nobody here wrote, under every scheme: `make zoo`; run.py says how."""
