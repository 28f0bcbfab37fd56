# SPDX-License-Identifier: BSD-3-Clause
"""python -m baraquant.info: what it says, and that it notices what is wrong."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import baraquant
import baraquant.info
import toolchain
from baraquant import _C


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baraquant.info", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=toolchain.ROOT,
        env={**os.environ, **environment},
    )


def test_json() -> None:
    result = command("--json")
    assert result.returncode == 0, result.stdout + result.stderr
    info = json.loads(result.stdout)
    assert info["problems"] == []
    assert info["baraquant"] == baraquant.__version__
    assert info["torch"] == torch.__version__
    assert info["built_for_torch"] == torch.__version__
    assert Path(info["library"]).is_file()
    assert info["self_check"]["cpu"] is True
    assert info["self_check"].get("cuda", True) is True
    if info["with_cuda"]:
        assert info["nvcc"]
        assert info["cuda_architectures"]
    else:
        assert info["cuda_architectures"] == []


def test_every_op_is_listed_with_its_keys() -> None:
    ops = baraquant.info.registered_ops()
    for direction in ("quantize", "dequantize", "fake_quantize"):
        for granularity in ("tensor", "channel", "token", "group"):
            for suffix in ("", "_backward"):
                assert f"baraquant::{direction}_per_{granularity}{suffix}" in ops
    for verb in ("choose_qparams", "dynamic_range_quantize", "dynamic_fake_quantize"):
        for granularity in ("tensor", "channel", "token", "group"):
            assert f"baraquant::{verb}_per_{granularity}" in ops
    for name in ("observe_min_max_", "observe_fake_quantize"):
        assert ops[f"baraquant::{name}"] == ["CompositeImplicitAutograd"]
    for core in ("_choose_qparams", "_dynamic_quantize", "_observe_min_max_", "_observe_qparams_"):
        assert {"Autograd", "FuncTorchBatched"} <= set(ops[f"baraquant::{core}"])
    hooks = {"baraquant::_int8_kernels", "baraquant::_force_int8_kernel"}  # take no tensor
    cores = [keys for op, keys in ops.items() if op.startswith("baraquant::_") and op not in hooks]
    assert cores
    expected = {"CPU", "Meta"} | ({"CUDA"} if _C.build_info()["with_cuda"] else set())
    assert all(expected <= set(keys) for keys in cores)
    assert any("Autograd" in keys for keys in cores)
    assert _C.build_info()["with_cuda"] == any("CUDA" in keys for keys in ops.values())


@pytest.mark.skipif("BARAQUANT_CPU_ISA" in os.environ, reason="BARAQUANT_CPU_ISA is set")
@pytest.mark.parametrize("isa", ["default", "avx2", "avx512", "avx512_vnni"])
def test_instruction_set_can_be_lowered(isa: str) -> None:
    levels = ["default", "avx2", "avx512", "avx512_vnni"]
    result = command("--json", BARAQUANT_CPU_ISA=isa)
    assert result.returncode == 0, result.stdout + result.stderr
    lowered = json.loads(result.stdout)["cpu_isa"]
    assert levels.index(lowered) == min(levels.index(isa), levels.index(_C.cpu_isa()))


def test_text_names_versions_and_says_all_is_well() -> None:
    result = command(COLUMNS="200")
    assert result.returncode == 0, result.stdout + result.stderr
    for text in (baraquant.__version__, torch.__version__, _C.build_info()["compiler"]):
        assert text in result.stdout
    assert "fake_quantize_per_channel" in result.stdout
    assert "All is well." in result.stdout


def test_text_without_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def no_rich(name: str, *arguments: object, **keywords: object) -> object:
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_rich)
    assert baraquant.info.main([]) == 0
    output = capsys.readouterr().out
    assert "self-check, cpu" in output
    assert "All is well." in output


def test_cmake_prefix_names_both_packages() -> None:
    result = command("--cmake-prefix")
    assert result.returncode == 0
    ours, torchs = result.stdout.strip().split(";")
    assert (Path(ours) / "share/cmake/baraquant/baraquantConfig.cmake").is_file()
    assert (Path(torchs) / "Torch/TorchConfig.cmake").is_file()


@pytest.mark.parametrize(
    ("name", "wrong", "what"),
    [
        ("_INTEGERS", (-8, -1, 1, 3, 4, 5, 6), "quantize_per_tensor"),
        ("_DATA_INTEGERS", (-8, -5, -3, -1, 6), "dynamic_range_quantize_per_tensor"),
        ("_DATA_ENDS", (-2.5, 2.5), "observe_min_max_"),
    ],
)
def test_wrong_number_is_noticed(
    name: str,
    wrong: tuple[float, ...],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(baraquant.info, name, wrong)
    assert baraquant.info.main([]) == 1
    output = capsys.readouterr().out
    assert f"WRONG: {what} on cpu" in output
    assert "Something is wrong." in output


def test_exception_in_the_self_check_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> list[str]:
        raise RuntimeError(f"no kernel image for {device}")

    monkeypatch.setattr(baraquant.info, "self_check", broken)
    info = baraquant.info.gather()
    assert info["self_check"]["cpu"] is False
    assert "RuntimeError: no kernel image for cpu" in info["problems"][0]


def test_missing_kernels_are_noticed() -> None:
    ops = {"baraquant::a": ["CompositeImplicitAutograd"], "baraquant::_b": ["CPU", "Meta"]}
    assert baraquant.info.missing_kernels(ops, with_cuda=False) == []
    assert baraquant.info.missing_kernels(ops, with_cuda=True) == [
        "baraquant::_b has no CUDA kernel"
    ]
    assert baraquant.info.missing_kernels({}, with_cuda=False) == ["no op is registered"]


def test_gpu_without_cuda_kernels_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    build = _C.build_info()
    assert baraquant.info.gpu_notes({**build, "with_cuda": True}) == []
    assert "built without CUDA" in baraquant.info.gpu_notes({**build, "with_cuda": False})[0]
