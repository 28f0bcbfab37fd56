# SPDX-License-Identifier: BSD-3-Clause
"""The docstrings of ``baraquant.parallel``: their examples run."""

import pytest

from baraquant import parallel
from tests.support.docstrings import run_examples


@pytest.mark.parametrize("name", sorted(parallel.__all__))
def test_examples(name: str) -> None:
    run_examples(getattr(parallel, name), name)
