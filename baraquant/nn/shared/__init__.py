# SPDX-License-Identifier: BSD-3-Clause
"""What layers in training and for inference share, and the other folders with them."""
