# SPDX-License-Identifier: BSD-3-Clause
"""Whether the first batch has been, and whether it may come: not inside of a wrapped model."""

import torch.distributed as dist
from torch import Tensor, nn


def is_known(scale: Tensor) -> bool:
    """Return whether a scale that was NaN has been set; False on the meta device. Reads it."""
    values = scale.detach()
    # This process's part, where the tensor is sharded.
    values = values.to_local() if hasattr(values, "to_local") else values
    return not values.is_meta and not bool(values.isnan().any())


def is_zero(input: Tensor) -> bool:
    """Return whether a batch is of zeros alone; False on the meta device. Reads it."""
    if input.is_meta or input.numel() == 0:
        return False
    found = input.detach().any()
    return not bool(found.full_tensor() if hasattr(found, "full_tensor") else found)


def check_unwrapped(quantizer: nn.Module) -> None:
    """Check that no wrapper for several processes is around a module that sets its parameters.

    Each process would set them from data of its own (DistributedDataParallel, which sends
    parameters once, when it is made), or into a copy that is thrown away (``fully_shard``).

    Raises:
        RuntimeError: There is one. The message has the module's path within it.
    """
    for wrapper, model in _wrapped():
        for name, module in model.named_modules():
            if module is quantizer:
                raise RuntimeError(
                    f"{type(quantizer).__name__}: {name}: expected the first batch before the "
                    f"model is wrapped for several processes, but it runs in {wrapper}; run one "
                    "batch in training mode (the same on every process), or load a checkpoint, "
                    "then wrap"
                )


def _wrapped() -> list[tuple[str, nn.Module]]:
    """Return wrappers and what is in them: DDP while it runs, and all of ``fully_shard``."""
    if not (dist.is_available() and dist.is_initialized()):
        return []
    from torch.distributed._composable_state import _module_state_mapping
    from torch.nn.parallel import DistributedDataParallel

    running = DistributedDataParallel._get_active_ddp_module()
    wrapped = [(type(model).__name__, model) for model in _module_state_mapping]
    return wrapped if running is None else [(type(running).__name__, running.module), *wrapped]
