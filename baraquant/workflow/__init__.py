# SPDX-License-Identifier: BSD-3-Clause
"""Quantizes whole models: prepare, convert, quantize, save and load."""
