# SPDX-License-Identifier: BSD-3-Clause
"""A file with modules of every kind."""

from pathlib import Path

import pytest

import baraquant
from tests.support.models.every_layer import Every
from tests.support.models.outlier_models import seeded


@pytest.fixture
def every(tmp_path: Path) -> tuple[Path, Every]:
    """The file, and its model."""
    model = seeded(Every).quantize()
    baraquant.save(model, tmp_path / "every.safetensors")
    return tmp_path / "every.safetensors", model
