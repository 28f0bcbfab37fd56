# SPDX-License-Identifier: BSD-3-Clause
"""Fuses quantization into what precedes it, in graphs of ``torch.compile`` and ``torch.export``.

In a quantized model each linear layer quantizes its own input: three layers that read the same
norm quantize its output three times. Here the graph of the model is changed so that

* layers with the same input and the same scheme share one quantization,
* a float op of :mod:`baraquant.ops` (``rms_norm``, ``layer_norm``, ``silu_mul``, ``gelu``,
  ``hadamard``) that only such layers read becomes its ``_quantize_per_token`` form,
* products of the same input become one call,

and no bit of a result changes. :class:`Fuse` is for ``torch.compile`` and AOTInductor,
:func:`fuse_` for an exported program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._lazy import imported

if TYPE_CHECKING:
    from .exported import fuse_
    from .inductor import Fuse
    from .report import Fusion, Report

# A name is imported when it is first used: `import baraquant` does not import TorchInductor.
_HOMES = {"Fuse": "inductor", "Fusion": "report", "Report": "report", "fuse_": "exported"}

__all__ = ["Fuse", "Fusion", "Report", "fuse_"]


def __getattr__(name: str) -> Any:
    return imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
