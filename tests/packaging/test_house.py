# SPDX-License-Identifier: BSD-3-Clause
"""scripts/house.py counts what it says, and scripts/quick.py finds the tests of a change."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import house
import quick
import toolchain

FILES = {
    "csrc/low/types.h": '#include "high/ops.h"\n',
    "csrc/high/ops.h": '#include "low/types.h"\n',
    "csrc/high/schema.cpp": 'm.def("double_it(Tensor input) -> Tensor");\n',
    "csrc/high/dispatch.cpp": "TORCH_LIBRARY_IMPL(baraquant, CPU, m) {}\n"
    "TORCH_LIBRARY_IMPL(baraquant, Autograd, m) {}\nTORCH_LIBRARY_FRAGMENT(baraquant, m) {}\n",
    "csrc/top/api.h": '#include "high/ops.h"\n#include "nested/part.h"\n',
    "csrc/top/nested/part.h": "// double_it\n",
    "baraquant/__init__.py": "from . import one\n",
    "baraquant/one/__init__.py": "def late():\n    from ..two import _own\n",
    "baraquant/one/_part.py": "if TYPE_CHECKING:\n    from . import x\n",
    "baraquant/one/x.py": "from ._part import double_it\n",
    "baraquant/two/__init__.py": "from ..one import _part as part\n",
    "baraquant/two/_own.py": "# Written by scripts/x.py\nfrom .. import _C, one\n",
    "scripts/a.py": "",
}


@pytest.fixture
def now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    return house.numbers()


def test_the_numbers_of_a_small_house(now: dict[str, Any]) -> None:
    assert now["lines"]["csrc"] == 9
    assert now["lines"]["baraquant"] == 7  # without the file that a program wrote
    assert now["lines"]["product"] == 16
    assert now["op"] == ["double_it", 3]
    assert now["pairs"] == [["high", "low"]]
    assert now["circles"] == [["high", "low"], ["baraquant.one", "baraquant.two._own"]]
    assert now["crossings"] == [
        "baraquant.one -> baraquant.two._own",
        "baraquant.two -> baraquant.one._part",
    ]
    assert now["includes"] == {"high": ["low"], "low": ["high"], "top": ["high"]}
    assert now["rooms"] == ["csrc/high/dispatch.cpp: Autograd", "csrc/high/dispatch.cpp: schemas"]


def test_each_number_has_its_limit(now: dict[str, Any]) -> None:
    assert house.above(now, now) == []
    less = copy.deepcopy(now)
    less["lines"]["csrc"] -= 1
    less["op"][1] -= 1
    less["includes"]["top"] = []
    for name in ("pairs", "circles", "crossings", "rooms"):
        del less[name][0]
    assert [problem.split()[0] for problem in house.above(now, less)] == [
        *("csrc:", "pairs:", "circles:", "crossings:", "rooms:", "op:", "includes:")
    ]


def test_every_folder_has_tests_that_make_quick_finds() -> None:
    folders = {path.parent for top in ("baraquant", "csrc") for path in house.sources(top)}
    for folder in folders:
        name = str(folder.relative_to(toolchain.ROOT))
        found = quick.tests_of(f"{name}/some_file")
        assert found and all((toolchain.ROOT / test).is_dir() for test in found), name
    assert quick.tests_of("csrc/int8_mm/cpu/tile.h") == ["tests/int8_mm"]
    assert quick.tests_of("baraquant/workflow/serialization/save.py") == ["tests/serialization"]
    assert quick.tests_of("tests/nn/test_linear.py") == ["tests/nn/test_linear.py"]
    assert quick.tests_of("README.md") == []
