# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ rounds the weights of linear layers so that the errors of a row cancel on typical inputs."""

from .layers import GPTQPass as GPTQPass
