# SPDX-License-Identifier: BSD-3-Clause
"""`make serve-check`: vLLM on a CPU serves what baraquant exports."""
