# SPDX-License-Identifier: BSD-3-Clause
"""The limits of the integer products; the C++ checks refuse what exceeds them."""

# The longest rows whose products of int8 surely sum to an int32: 131071 * 128 * 128 < 2^31. With
# a zero point, or with uint8, a factor reaches 255: 65536 * 255 * 128 < 2^31.
MAX_FEATURES, MAX_SHIFTED_FEATURES = 131071, 65536
