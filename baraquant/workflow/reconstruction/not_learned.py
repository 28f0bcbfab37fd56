# SPDX-License-Identifier: BSD-3-Clause
"""``NotLearnedError``: why a block keeps the start of its learning."""


class NotLearnedError(Exception):
    """A block cannot be learned; the message says why, for the report."""
