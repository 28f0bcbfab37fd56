# SPDX-License-Identifier: BSD-3-Clause
"""Whether the first batch was seen, and whether it may come: not within a wrapped model."""

import torch.distributed as dist
from torch import Tensor, nn


def is_known(scale: Tensor) -> bool:
    """Read whether a scale that starts as NaN has been set; False on the meta device."""
    values = scale.detach()
    # If the tensor is sharded, look at the part of this process.
    values = values.to_local() if hasattr(values, "to_local") else values
    return not values.is_meta and not bool(values.isnan().any())


def is_zero(input: Tensor) -> bool:
    """Read whether a batch holds only zeros; False on the meta device."""
    if input.is_meta or input.numel() == 0:
        return False
    found = input.detach().any()
    return not bool(found.full_tensor() if hasattr(found, "full_tensor") else found)


def check_unwrapped(quantizer: nn.Module) -> None:
    """Check that a module that sets its parameters is not within a wrapper for several processes.

    With DistributedDataParallel, which broadcasts parameters only when it is constructed, each
    process would set them from its own data. With ``fully_shard`` they would be set in a copy that
    is discarded.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    from torch.distributed._composable_state import _module_state_mapping
    from torch.nn.parallel import DistributedDataParallel

    wrapped = [(type(model).__name__, model) for model in _module_state_mapping]
    running = DistributedDataParallel._get_active_ddp_module()
    if running is not None:
        wrapped.insert(0, (type(running).__name__, running.module))
    for wrapper, model in wrapped:
        for name, module in model.named_modules():
            if module is quantizer:
                raise RuntimeError(
                    f"{type(quantizer).__name__}: {name}: expected the first batch before the "
                    f"model is wrapped for several processes, but it runs in {wrapper}; run one "
                    "batch in training mode (the same on every process), or load a checkpoint, "
                    "then wrap"
                )
