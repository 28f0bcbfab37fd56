# SPDX-License-Identifier: BSD-3-Clause
import sys
from pathlib import Path

# What pytest is told by pyproject.toml, for the programs among the tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
