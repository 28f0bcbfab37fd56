# SPDX-License-Identifier: BSD-3-Clause
"""setup.py: what it refuses, and which kernels it leaves out."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import toolchain
from tests.support.processes import run


def run_setup(before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; {before}; sys.argv = ['setup.py', '--version']; import runpy; "
    code += "runpy.run_path('setup.py', run_name='__main__')"
    return run(sys.executable, "-c", code, cwd=toolchain.ROOT, env=environment)


def test_setup_without_torch_says_so_in_one_line() -> None:
    result = run_setup("sys.modules['torch'] = None")
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert "setup.py needs PyTorch" in line
    assert "pip install --no-build-isolation ." in line


def test_setup_with_a_wrong_choice_of_cuda() -> None:
    result = run_setup("pass", BARAQUANT_CUDA="yes")
    assert result.returncode == 1
    assert "expected BARAQUANT_CUDA to be 0 or 1, but got 'yes'" in result.stderr


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is a CUDA build")
def test_setup_with_cuda_demanded_of_a_cpu_torch() -> None:
    result = run_setup("pass", BARAQUANT_CUDA="1")
    assert result.returncode == 1
    assert "this environment lacks a CUDA build of torch" in result.stderr


def test_hopper_kernels_need_cutlass_and_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    monkeypatch.delenv("BARAQUANT_CUTLASS", raising=False)
    for architectures in ("8.0;9.0a", "9.0a+PTX", toolchain.DEFAULT_ARCHITECTURES):
        with pytest.raises(SystemExit, match="Run: pip install --no-deps nvidia-cutlass "):
            toolchain.hopper_headers(architectures)
    assert toolchain.hopper_headers("8.0;10.0+PTX") is None
    monkeypatch.setenv("BARAQUANT_CUTLASS", "0")
    assert toolchain.hopper_headers("9.0a") is None
    monkeypatch.setenv("BARAQUANT_CUTLASS", "1")
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    (tmp_path / "include" / "cutlass" / "cutlass.h").touch()
    for architectures in ("8.0;9.0a;12.0+PTX", "8.0 9.0a", "9.0a+PTX"):
        assert toolchain.hopper_headers(architectures) == tmp_path / "include"


def test_hopper_is_built_with_its_own_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BARAQUANT_CUTLASS", raising=False)
    assert toolchain.for_hopper("8.0 9.0 10.0+PTX") == "8.0;9.0a;10.0+PTX"
    assert toolchain.for_hopper("9.0;9.0a") == "9.0a"
    for entry in ("9.0+PTX", "Hopper"):
        with pytest.raises(SystemExit, match=r"to name Hopper as 9\.0a, but got"):
            toolchain.for_hopper(f"8.0;{entry}")
        assert toolchain.for_hopper(f"9.0a;{entry}") == f"9.0a;{entry}"
    monkeypatch.setenv("BARAQUANT_CUTLASS", "0")
    assert toolchain.for_hopper("8.0;9.0;9.0+PTX") == "8.0;9.0;9.0+PTX"
    monkeypatch.setenv("BARAQUANT_CUTLASS", "no")
    with pytest.raises(SystemExit, match="expected BARAQUANT_CUTLASS to be 0 or 1, but got 'no'"):
        toolchain.for_hopper("8.0")
