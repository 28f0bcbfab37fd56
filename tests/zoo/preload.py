# SPDX-License-Identifier: BSD-3-Clause
"""What every process of the zoo has imported: packages. No model has been built."""

import contextlib
import importlib
import logging
import os
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")

from tests.zoo import torchvision_support  # noqa: E402

# Each costs seconds; a decoder imports most of what the models of transformers share.
MODULES = ("transformers.generation.utils", "transformers.models.llama.modeling_llama")

torchvision_support.install()
for module in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
for module in ("tests.zoo.checks", "tests.zoo.loading"):
    importlib.import_module(module)

logging.getLogger("transformers").setLevel(logging.ERROR)
