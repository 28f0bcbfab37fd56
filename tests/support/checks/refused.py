# SPDX-License-Identifier: BSD-3-Clause
"""What a tool refuses leaves the model as it was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from tests.support.models.outlier_models import unchanged


def refused(
    call: Callable[..., Any],
    message: str,
    model: nn.Module,
    *arguments: Any,
    error: Any = ValueError,
    **options: Any,
) -> BaseException:
    """Call a tool with a model; there is an error with this message, and the model is unchanged."""
    original = copy.deepcopy(model)
    with pytest.raises(error, match=message) as raised:
        call(model, *arguments, **options)
    assert unchanged(model, original)
    return raised.value
