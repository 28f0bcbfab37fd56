# SPDX-License-Identifier: BSD-3-Clause
"""The memory that from_pretrained takes while it quantizes, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hf.models import saved

pytest.importorskip("transformers")

# The peak of what is resident above what is there before: private memory only, as the kernel may
# drop the pages of the mapped file at any time.
PROGRAM = """
import ctypes, gc, sys, threading, time
import torch, transformers, baraquant
from baraquant.transformers import BaraquantConfig
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
def private():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
def measured(load):
    gc.collect(); ctypes.CDLL(None).malloc_trim(0)
    before, peak, done = private(), [0], threading.Event()
    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], private() - before)
            time.sleep(0.001)
    thread = threading.Thread(target=watch); thread.start()
    model = load()
    done.set(); thread.join()
    tensors = (*model.parameters(), *model.buffers())
    return peak[0], sum(tensor.numel() * tensor.element_size() for tensor in tensors)
kind, folder = transformers.LlamaForCausalLM, sys.argv[1]
warm = kind.from_pretrained(sys.argv[2], quantization_config=BaraquantConfig(baraquant.W8A8()))
config = BaraquantConfig({"*": baraquant.W8A8()})
print(*measured(lambda: kind.from_pretrained(folder, quantization_config=config)))
print(*measured(lambda: kind.from_pretrained(folder)))
"""


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_float_model_is_never_in_memory(tmp_path: Path) -> None:
    """The peak stays below that of the float model: one float layer at a time, and the integers."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}
    folder = saved(tmp_path / "float", "llama", **sizes)
    warm = saved(tmp_path / "warm", "llama")
    command = [sys.executable, "-c", PROGRAM, str(folder), str(warm)]
    # Each tensor has pages of its own, so that freed memory counts as freed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line.split() for line in result.stdout.splitlines()[-2:]]
    (peak, integers), (_, floats) = [[int(word) for word in line] for line in lines]
    assert integers < 0.3 * floats
    assert peak < integers + 0.35 * floats, (peak / floats, integers / floats)
