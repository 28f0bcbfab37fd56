# SPDX-License-Identifier: BSD-3-Clause
"""What turns a whole model into one of integers: prepare, convert, quantize, save and load."""
