# SPDX-License-Identifier: BSD-3-Clause
"""`generate` of transformers, with a cache and without one."""

from torch import Tensor, nn

from tests.support.tiny_transformers.models import Inputs

OPTIONS = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
CACHES = {"with a cache": True, "without a cache": False}


def tokens(model: nn.Module, inputs: Inputs, kinds: list[str]) -> dict[str, Tensor]:
    """The tokens of each kind of generation."""
    given = {k: v for k, v in inputs.items() if not k.startswith("decoder_")}
    options = {**OPTIONS, "pad_token_id": 0}
    image = getattr(model.config, "image_token_id", None)
    if image is not None:  # without a cache, one that is generated would need an image
        options["suppress_tokens"] = [image]
    return {kind: model.generate(**given, **options, use_cache=CACHES[kind]) for kind in kinds}


def kinds(model: nn.Module, inputs: Inputs) -> list[str]:
    """The kinds that a float model knows; one without a cache is refused by some."""
    found = ["with a cache"]
    try:
        tokens(model, inputs, ["without a cache"])
    except (ValueError, TypeError, AttributeError, RuntimeError):
        return found
    return [*found, "without a cache"]
