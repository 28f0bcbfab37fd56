# SPDX-License-Identifier: BSD-3-Clause
"""Scripts of this folder in a process of their own, whose death is a failure like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_script(
    script: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it with this process's path; fail with what it printed."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env = (environment if environment is not None else env) | {"PYTHONPATH": env["PYTHONPATH"]}
    command = [sys.executable, "-X", "faulthandler", str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    message = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"[-6000:]
    assert done.returncode == 0, message
    return done
