# SPDX-License-Identifier: BSD-3-Clause
"""python -m baraquant.info: what it says, and that it notices what is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import baraquant
import baraquant.info
from baraquant import _C, _gpus, _library
from tests.support.cases import OP_NAMES
from tests.support.instruction_sets import ISAS, lowered
from tests.support.processes import MadeOnce, run


def test_json() -> None:
    result = run(sys.executable, "-m", "baraquant.info", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    info = json.loads(result.stdout)
    assert info["problems"] == [] and info["baraquant"] == baraquant.__version__
    assert info["torch"] == info["built_for_torch"] == torch.__version__
    assert Path(info["library"]).is_file()
    assert info["self_check"]["cpu"] is True and all(info["self_check"].values())
    assert bool(info["cuda_architectures"]) == info["with_cuda"]
    assert info["nvcc"] or not info["with_cuda"]
    assert not info["hopper_kernels"] or "9.0a" in info["cuda_architectures"]


def test_every_op_is_listed_with_its_keys() -> None:
    ops = baraquant.info.registered_ops()
    assert {f"baraquant::{name}" for name in OP_NAMES} <= set(ops)
    assert ops["baraquant::observe_min_max_"] == ["CompositeImplicitAutograd"]
    for core in ("_choose_qparams", "_dynamic_quantize", "_observe_min_max_", "_observe_qparams_"):
        assert {"Autograd", "FuncTorchBatched"} <= set(ops[f"baraquant::{core}"])
    private = [keys for op, keys in ops.items() if op.startswith("baraquant::_")]
    cores = [keys for keys in private if "CompositeImplicitAutograd" not in keys]
    expected = {"CPU", "Meta"} | ({"CUDA"} if _C.build_info()["with_cuda"] else set())
    assert cores and all(expected <= set(keys) for keys in cores)
    assert _C.build_info()["with_cuda"] == any("CUDA" in keys for keys in ops.values())


# What --json prints for each instruction set, in files. PyTorch is imported once for all.
FOR_EACH = """
import os, sys, torch
for isa in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["BARAQUANT_CPU_ISA"] = isa
        from baraquant.info import main
        sys.stdout = open(isa, "w")
        sys.exit(main(["--json"]))
    assert os.wait()[1] == 0, isa
"""


@pytest.fixture(scope="module")
def printed(made_once: MadeOnce) -> Path:
    def make(folder: Path) -> None:
        done = run(sys.executable, "-c", FOR_EACH, *ISAS, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once("info_of_instruction_sets", make)


@pytest.mark.process
@pytest.mark.skipif("BARAQUANT_CPU_ISA" in os.environ, reason="BARAQUANT_CPU_ISA is set")
@pytest.mark.parametrize("isa", ISAS)
def test_instruction_set_can_be_lowered(isa: str, printed: Path) -> None:
    assert json.loads((printed / isa).read_text())["cpu_isa"] == lowered(isa)


@pytest.mark.skipif("BARAQUANT_CPU_ISA" in os.environ, reason="BARAQUANT_CPU_ISA is set")
def test_the_best_instruction_set_is_chosen() -> None:
    assert _C.cpu_isa() == lowered("avx512_vnni")  # AMX has to be asked for


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert baraquant.info.main([]) == 0
    output = capsys.readouterr().out
    assert "self-check, cpu" in output and "All is well." in output


OPS = ("quantize_per_tensor", "fake_quantize_per_tensor", "observe_min_max_", "qat_linear")


@pytest.mark.parametrize("name", OPS)
def test_wrong_number_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = getattr(baraquant.ops, name)
    wrong = lambda x, *rest, **options: right(x + x, *rest, **options)  # noqa: E731
    monkeypatch.setattr(baraquant.ops, name, wrong)
    assert baraquant.info.main([]) == 1
    output = capsys.readouterr().out
    assert f"WRONG: {name} on cpu" in output and "Something is wrong." in output


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = baraquant.ops.fake_quantize_per_tensor

    def wrong(x: torch.Tensor, *rest: object) -> torch.Tensor:
        return right(x, *rest).detach() + 0 * x

    monkeypatch.setattr(baraquant.ops, "fake_quantize_per_tensor", wrong)
    assert len(baraquant.info.self_check("cpu")) == 4


def test_exception_in_the_self_check_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> list[str]:
        raise RuntimeError(f"no kernel image for {device}")

    monkeypatch.setattr(baraquant.info, "self_check", broken)
    info = baraquant.info.gather()
    assert info["self_check"]["cpu"] is False
    assert "RuntimeError: no kernel image for cpu" in info["problems"][0]


def test_missing_kernels_are_noticed() -> None:
    ops = {"baraquant::a": ["CompositeImplicitAutograd"], "baraquant::_b": ["CPU", "Meta"]}
    missing = baraquant.info.missing_kernels
    assert missing(ops, with_cuda=False) == []
    assert missing(ops, with_cuda=True) == ["baraquant::_b has no CUDA kernel"]
    assert missing({}, with_cuda=False) == ["no op is registered"]


# --- GPUs without the kernels that were made for them, on a machine that is faked

Gpu = tuple[str, tuple[int, int]]
See = Callable[..., None]
H200, A100, A10, B200 = ("H200", (9, 0)), ("A100", (8, 0)), ("A10", (8, 6)), ("B200", (10, 0))


def built(architectures: str, cutlass: bool = False, cuda: bool = True) -> _C.BuildInfo:
    faked = {"with_cuda": cuda, "cuda_architectures": architectures, "with_cutlass": cutlass}
    return {**_C.build_info(), **faked}


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> See:
    """`see(*gpus)`: these are the GPUs that torch sees."""

    def fake(*gpus: Gpu) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: gpus[index][0])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index][1])

    return fake


@pytest.mark.parametrize(
    ("entries", "gpu", "runs"),
    [
        ("8.0", A100, True),
        ("8.0", A10, True),  # machine code runs on later minor versions
        ("8.6", A100, False),
        ("8.0", H200, False),
        ("8.0+PTX", H200, True),
        ("9.0a", H200, True),
        ("9.0a", B200, False),
        ("9.0a+PTX", B200, False),  # the PTX of 9.0a runs there alone
        ("10.0f+PTX", ("B300", (10, 3)), True),
        ("10.0f+PTX", ("RTX", (12, 0)), False),
        ("8.0;9.0a;10.0+PTX;12.0+PTX", ("later", (13, 0)), True),
        ("Ampere", H200, True),  # a name says nothing: the self-check finds out
    ],
)
def test_code_runs_where_it_was_made_for(entries: str, gpu: Gpu, runs: bool) -> None:
    assert _gpus.runs_on(_gpus.architectures(built(entries)), gpu[1]) == runs


NO_CUDA = "torch sees a GPU (H200), but baraquant was built without CUDA"
BUILD_H200 = "BARAQUANT_CUDA=1 TORCH_CUDA_ARCH_LIST='9.0a' make -C"
NO_HOPPER = "Hopper's tensor cores were not built, but H200 (9.0) is visible"
BUILD_HOPPER = "BARAQUANT_CUTLASS=1 BARAQUANT_CUDA=1 TORCH_CUDA_ARCH_LIST='8.0;9.0a' make -C"
NO_B200 = "no CUDA kernel was built for B200 (10.0), but for 8.0, 9.0a"
BUILD_B200 = "Run: BARAQUANT_CUDA=1 TORCH_CUDA_ARCH_LIST='10.0' make -C"


@pytest.mark.parametrize(
    ("gpus", "build", "problem", "command"),
    [
        ((), built("", cuda=False), None, ""),
        ((H200, A100), built("8.0;9.0a;10.0+PTX;12.0+PTX", cutlass=True), None, ""),
        ((A100,), built("8.0;9.0a"), None, ""),  # nobody would use the kernels for Hopper
        ((H200,), built("", cuda=False), NO_CUDA, BUILD_H200),
        ((A100, H200, H200), built("8.0;9.0a"), NO_HOPPER, BUILD_HOPPER),
        ((A100, H200, H200), built("8.0;8.0+PTX", cutlass=True), NO_HOPPER, BUILD_HOPPER),
        ((B200,), built("8.0;9.0a", cutlass=True), NO_B200, BUILD_B200),
    ],
)
def test_gpus_without_their_kernels_are_a_problem(
    gpus: tuple[Gpu, ...], build: _C.BuildInfo, problem: str | None, command: str, see: See
) -> None:
    see(*gpus)
    found = _gpus.problems(build)
    assert len(found) == (problem is not None)
    assert all(str(problem) in one and command in one for one in found)


def test_an_installed_package_names_headers(see: See, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "LIBRARY", Path("site-packages/baraquant/libbaraquant.so"))
    see(H200)
    (problem,) = _gpus.problems(built("9.0a", cutlass=False))
    assert "Run: pip install --no-deps nvidia-cutlass && BARAQUANT_CUTLASS=1" in problem
    assert "pip install --no-build-isolation --no-deps --force-reinstall" in problem


def test_each_kind_of_gpu_is_checked(see: See) -> None:
    see(H200, H200, A100)
    assert _gpus.devices() == ["cuda", "cuda:2"]


@pytest.mark.parametrize("cutlass", [False, True])
def test_text_is_not_content_with_such_a_gpu(
    cutlass: bool, see: See, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = built("9.0a", cutlass)
    monkeypatch.setattr(_C, "build_info", lambda: build)
    monkeypatch.setattr(baraquant.info, "checked", lambda device: [])
    monkeypatch.setattr(baraquant.info, "missing_kernels", lambda ops, with_cuda: [])
    see(H200)
    assert baraquant.info.main([]) == (0 if cutlass else 1)
    output = capsys.readouterr().out
    (line,) = [line for line in output.splitlines() if "Hopper's kernels" in line]
    assert ("built, used" if cutlass else "not built") in line
    assert ("WRONG: the kernels for Hopper" in output) == (not cutlass)
    assert output.strip().endswith("All is well." if cutlass else "Something is wrong.")
