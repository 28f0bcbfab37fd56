# SPDX-License-Identifier: BSD-3-Clause
"""Calls of every op and of the main modules whose results must keep their bits.

`values.py` makes the inputs, `affine.py`, `range.py`, `int8_mm.py` and `modules.py` the calls,
and `hashes.py` turns the results into hashes. `test_golden.py` compares those with
`tests/data/golden_hashes.json`; `python -m tests.golden` writes that file.
"""
