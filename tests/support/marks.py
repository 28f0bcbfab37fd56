# SPDX-License-Identifier: BSD-3-Clause
"""The axes that most tests of ops have, as decorators."""

import pytest

from tests.support import cases

by_dtype = pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
by_kind = pytest.mark.parametrize("granularity", cases.KINDS, ids=str)
by_mode = pytest.mark.parametrize("symmetric", (True, False), ids=("symmetric", "asymmetric"))
