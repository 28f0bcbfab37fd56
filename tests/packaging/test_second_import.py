# SPDX-License-Identifier: BSD-3-Clause
"""A second import in one process: after an interrupt, by a reload, after `del sys.modules`."""

import sys
import textwrap
from collections.abc import Sequence

import pytest

import toolchain
from tests.support.processes import run

# Interrupts the import at lines of baraquant, again and again, and keeps what the exceptions hold.
# The last import has to be a whole one: ops, rules of vmap, and attributes of the package. A seed
# has a process of its own, which begins with PyTorch imported.
INTERRUPTED = """
    import os
    import random
    import sys

    import torch

    folder, times, *seeds = sys.argv[1], *map(int, sys.argv[2:])
    for seed in seeds:
        child = os.fork()
        if child == 0:
            break
        assert os.waitpid(child, 0)[1] == 0, seed
    else:
        sys.exit()
    chance, held = random.Random(seed), []
    left = 0

    def ran(frame, event, value):
        global left
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return ran

    def called(frame, event, value):
        return ran if frame.f_code.co_filename.startswith(folder) else None

    for _ in range(times):
        left = chance.choice((chance.randint(0, 200), chance.randint(0, 9000)))
        sys.settrace(called)
        try:
            import baraquant
        except KeyboardInterrupt as error:
            held.append(error)
        finally:
            sys.settrace(None)
        if "baraquant" in sys.modules:
            break
    import baraquant

    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    baraquant.quantize_(model, baraquant.W8A8())
    x = torch.ones(2, 8, requires_grad=True)
    model(x).sum().backward()
    rounded = torch.func.vmap(lambda row: baraquant.ops.dynamic_fake_quantize_per_tensor(row))(x)
    switch = baraquant.ops.recompute.unless_recomputing(torch.ones(1))
    modules = [name for name in sys.modules if name.startswith("baraquant.")]
    for name in modules:
        parent, _, child = name.rpartition(".")
        assert hasattr(sys.modules[parent], child), name
    print(len(held), type(model[0]).__name__, baraquant.workflow.__name__, switch.item())
"""

SECOND = """
    import importlib
    import sys

    import baraquant

    for name in sorted(name for name in sys.modules if name.split(".")[0] == "baraquant"):
        if name == "baraquant._C":
            continue
        try:
            importlib.reload(sys.modules[name])
        except ImportError as error:
            assert str(error).startswith(f"{name} was imported"), error
            assert "start a new process" in str(error) and "\\n" not in str(error)
        else:
            raise AssertionError(name)
    assert baraquant.W8A8().weight.bits == 8
    own = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("baraquant")}
    try:
        import baraquant
    except ImportError as error:
        print(error)
    sys.modules.update(own)
    import baraquant.export.onnx  # what is not imported yet can be
"""


def printed(code: str, *arguments: object) -> str:
    command = (sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code))
    done = run(*command, *map(str, arguments), cwd=toolchain.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("times", "seeds"), [(4, [0]), pytest.param(15, range(1, 6), marks=pytest.mark.exhaustive)]
)
def test_an_interrupted_import_can_be_done_again(times: int, seeds: Sequence[int]) -> None:
    lines = printed(INTERRUPTED, toolchain.ROOT / "baraquant", times, *seeds).splitlines()
    assert len(lines) == len(seeds)
    for interrupts, *words in map(str.split, lines):
        assert int(interrupts) > 0 and words == ["QuantizedLinear", "baraquant.workflow", "1.0"]


def test_a_second_import_is_one_clear_error() -> None:
    assert printed(SECOND) == (
        "baraquant was imported in this process already, and a second copy of its classes and ops "
        "would not fit the first: start a new process (in a notebook, restart the kernel) to "
        "import it again.\n"
    )
