# SPDX-License-Identifier: BSD-3-Clause
"""What every process of the zoo has imported: packages, and no model."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")

from zoo import torchvision_support  # noqa: E402

torchvision_support.install()

with contextlib.suppress(ImportError):
    pass

import zoo.checks  # noqa: E402
import zoo.loading  # noqa: E402, F401

logging.getLogger("transformers").setLevel(logging.ERROR)
