# SPDX-License-Identifier: BSD-3-Clause
"""Integer quantization for PyTorch: C++ and CUDA ops that give the same bits on every device.

Importing the package registers ``torch.ops.baraquant.*``. :mod:`baraquant.ops` has a typed,
documented function for each of them, :mod:`baraquant.reference` has the same functions in plain
PyTorch, and :mod:`baraquant.nn` has the modules. :mod:`baraquant.qat` trains a model for integers,
and :func:`quantize_` quantizes it after training, as :func:`reconstruct_` does, which learns block
by block; :func:`sensitivity` finds which layer bears which scheme. :func:`save` and :func:`load_`
store it, and :mod:`baraquant.export` writes it in the formats of other programs.
:mod:`baraquant.graph` fuses quantization in compiled and exported models.
:func:`plan` shows which kernels a call would launch, and :func:`can_implement` whether an op takes
the call. ``python -m baraquant.info`` shows what was built, and checks it.
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from baraquant import _library

_library.forget_interrupted()
_library.load()

from baraquant import (  # noqa: E402
    _vmap,
    calibration,
    configs,
    export,
    graph,
    nn,
    ops,
    planning,
    qat,
    reference,
)
from baraquant._C import build_info as _build_info  # noqa: E402
from baraquant._lazy import imported as _imported  # noqa: E402
from baraquant.configs import QuantConfig, TensorConfig  # noqa: E402
from baraquant.granularity import PerChannel, PerGroup, PerTensor, PerToken  # noqa: E402
from baraquant.planning import can_implement, plan  # noqa: E402
from baraquant.schemes import (  # noqa: E402
    AWQ,
    GPTQ,
    W2A8,
    W2A16,
    W3A8,
    W3A16,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    Algorithm,
    SmoothQuant,
    W8A8Static,
)
from baraquant.workflow.fused_ops import use_fused_ops_  # noqa: E402
from baraquant.workflow.layers import register_layer  # noqa: E402
from baraquant.workflow.merge_linears import merge_linears_, split_linears_  # noqa: E402
from baraquant.workflow.optimize import optimize_for_inference_  # noqa: E402
from baraquant.workflow.passes import Pass, register_pass  # noqa: E402
from baraquant.workflow.quantize import quantize_  # noqa: E402
from baraquant.workflow.reconstruction import Reconstruction, reconstruct_  # noqa: E402
from baraquant.workflow.serialization import load_, save  # noqa: E402

if _TYPE_CHECKING:
    from baraquant.workflow.sensitivity.measure import sensitivity
    from baraquant.workflow.sensitivity.report import Choice, LayerSensitivity, Sensitivity

_vmap.register()

# A name is imported when it is first used.
_REPORTS = ("Choice", "LayerSensitivity", "Sensitivity")
_HOMES = {"sensitivity": "workflow.sensitivity.measure"}
_HOMES |= dict.fromkeys(_REPORTS, "workflow.sensitivity.report")

__version__ = _build_info()["version"]

__all__ = [
    "AWQ",
    "GPTQ",
    "W2A8",
    "W2A16",
    "W3A8",
    "W3A16",
    "W4A8",
    "W4A16",
    "W8A8",
    "W8A16",
    "Algorithm",
    "Choice",
    "LayerSensitivity",
    "Pass",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "PerToken",
    "QuantConfig",
    "Reconstruction",
    "Sensitivity",
    "SmoothQuant",
    "TensorConfig",
    "W8A8Static",
    "__version__",
    "calibration",
    "can_implement",
    "configs",
    "export",
    "graph",
    "load_",
    "merge_linears_",
    "nn",
    "ops",
    "optimize_for_inference_",
    "plan",
    "planning",
    "qat",
    "quantize_",
    "reconstruct_",
    "reference",
    "register_layer",
    "register_pass",
    "save",
    "sensitivity",
    "split_linears_",
    "use_fused_ops_",
]


def __getattr__(name: str) -> _Any:
    return _imported(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_sys.meta_path.insert(0, _library.Imported)  # the import is done
