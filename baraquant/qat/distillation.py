# SPDX-License-Identifier: BSD-3-Clause
"""A prepared model as its own teacher, and the loss that lets it learn from one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..nn.shared.precision import wide
from ..nn.shared.quantizer import training_quantizers, without_rounding
from ..workflow.view import check_is_module


@contextmanager
def teacher(model: nn.Module) -> Iterator[None]:
    """Let a prepared model compute without rounding within a ``with`` block.

    The same modules compute with the floating weights that are trained (rounded to the ``master``,
    if there is one) and with floating inputs, in training and in evaluation mode, also where a
    layer computes integers otherwise. So the model is
    its own teacher, without a second copy. Scales and ranges stay as they are: nothing is observed,
    and a learned scale has no gradient. What is no prepared layer computes as ever: dropout drops
    in training mode, and converted layers stay integers. Adapters are a part of the weights.

    At the end of the block the model rounds again, also after an exception. Blocks may be nested,
    for a model and for a part of it. The switch belongs to the model: it acts in every thread, as
    ``model.eval()`` does, and holds until the last of the blocks has ended. A copy that is made
    within the block rounds.

    A compiled model gets a second graph, which is chosen by a guard: open the block outside the
    compiled function. A captured CUDA graph keeps what it was captured with. Models that are
    wrapped (DistributedDataParallel, ``fully_shard``) work as well, but with
    :func:`baraquant.parallel.quantize_all_gather` the floating weights are not there, which is an
    error.

    Use it within ``torch.no_grad()``, as the gradient of a teacher is not wanted. With activation
    checkpointing there is no such gradient: what is recomputed in a backward pass is always the
    student. In eager code this holds for a backward pass within the block too; with compiled code
    that is checkpointed, call ``backward`` after it.

    Args:
        model: A model prepared by :func:`prepare_`, or a module within one.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: It has no prepared layer.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
        >>> x = torch.randn(3, 4)
        >>> expected = model(x)
        >>> report = baraquant.qat.prepare_(model, baraquant.W8A8())
        >>> with torch.no_grad(), baraquant.qat.teacher(model):
        ...     torch.equal(model(x), expected)
        True
    """
    check_is_module(model, "baraquant.qat.teacher")
    quantizers = training_quantizers(model)
    if not quantizers:
        raise ValueError(
            "baraquant.qat.teacher: expected a model prepared by baraquant.qat.prepare_, but "
            f"{type(model).__name__} has no prepared layer"
        )
    with without_rounding(quantizers):
        yield


def distillation_loss(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the Kullback-Leibler divergence of a student from its teacher, mean over tokens.

    ``temperature^2 * mean(sum(p * (log(p) - log(q))))``, where ``p`` and ``q`` are the softmax of
    the teacher's and of the student's logits, divided by the temperature, over the last dimension
    ("Distilling the Knowledge in a Neural Network", Hinton et al. 2015; their factor keeps the size
    of the gradients). It is computed in float32 (float64 for float64 logits), under autocast too.
    Where the teacher's logit is minus infinity, a class counts nothing.

    The gradient goes to the student alone. To leave out padding, select the other tokens first:
    ``student_logits[mask]``.

    Args:
        student_logits: ``[..., classes]``.
        teacher_logits: Of the same shape.
        temperature: Above 0.

    Returns:
        A scalar in nats, NaN for no tokens.

    Raises:
        ValueError: The shapes differ, or the temperature is not above 0.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> baraquant.qat.distillation_loss(logits, logits.flip(1))
        tensor(1.5232)
    """
    if student_logits.shape != teacher_logits.shape or student_logits.dim() == 0:
        raise ValueError(
            "distillation_loss: expected student_logits and teacher_logits [..., classes] of one "
            f"shape, but got {list(student_logits.shape)} and {list(teacher_logits.shape)}"
        )
    if not temperature > 0:
        raise ValueError(
            f"distillation_loss: expected temperature to be above 0, but got {temperature}"
        )
    expected = _log_softmax(teacher_logits.detach(), temperature)
    share = expected.exp()
    terms = share * (expected - _log_softmax(student_logits, temperature))
    return terms.where(share > 0, 0.0).sum(-1).mean() * temperature**2


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    return torch.log_softmax(wide(logits) / temperature, -1)
