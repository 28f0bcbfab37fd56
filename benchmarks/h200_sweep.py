# SPDX-License-Identifier: BSD-3-Clause
"""What an H200 has been seen to reach: facts to compare with, measured apart from any run.

From a sweep on one H200 on 2026-11-20 (CUDA 13.0, full-range random integers, rotated weights, CUDA
graphs): CUTLASS kernels of up to ten tiles, clusters and rasters, with the dequantization fused and
bfloat16 output. For each shape the time of the fastest, which is what no rule that chooses a tile
can beat by much. Valid for that card alone.
"""

ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # M

# (N, K): microseconds, for each of ROWS.
_MICROSECONDS = {
    (4096, 4096): (7.1, 6.8, 8.5, 7.2, 7.5, 10.1, 14.5, 24.3, 46.1, 93.7, 191),
    (28672, 4096): (31.3, 31, 34.8, 32.9, 35.3, 48.8, 83.9, 158.2, 342.5, 689.8, 1374.7),
    (4096, 14336): (17.7, 17.2, 21.5, 18.8, 19.4, 27.2, 40.7, 75.1, 163.2, 322.5, 677.8),
    (8192, 8192): (18.5, 18.4, 19.6, 19.3, 21.3, 27.1, 46.1, 89, 190.6, 375.2, 802.3),
    (57344, 8192): (108.5, 110.9, 113, 120.7, 123.4, 197.6, 308.1, 631.1, 1334, 2647.8, 5486.5),
}


def sweep_seconds(device: str, m: int, n: int, k: int) -> float | None:
    """The best time of the sweep; None on another card, or for a shape that it did not measure."""
    if "H200" not in device or m not in ROWS or (n, k) not in _MICROSECONDS:
        return None
    return _MICROSECONDS[n, k][ROWS.index(m)] * 1e-6
