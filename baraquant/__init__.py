# SPDX-License-Identifier: BSD-3-Clause
"""Integer quantization for PyTorch: C++ and CUDA ops that give the same bits on every device.

Importing the package registers ``torch.ops.baraquant.*``. ``baraquant.ops`` holds a typed,
documented function for each of them, ``baraquant.reference`` the same functions in plain PyTorch,
and ``baraquant.nn`` the modules. :func:`plan` shows which kernels a call would launch,
:func:`can_implement` whether an op takes it. ``python -m baraquant.info`` shows what was built and
checks it.
"""

from baraquant import _library

_library.load()

from baraquant import _vmap, nn, ops, planning, reference  # noqa: E402
from baraquant._C import build_info as _build_info  # noqa: E402
from baraquant.planning import can_implement, plan  # noqa: E402

_vmap.register()

__version__ = _build_info()["version"]

__all__ = ["__version__", "can_implement", "nn", "ops", "plan", "planning", "reference"]
