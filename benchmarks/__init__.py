# SPDX-License-Identifier: BSD-3-Clause
"""Programs that measure the ops: `python -m benchmarks.bench_affine`, or `make bench`."""
