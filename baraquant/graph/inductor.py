# SPDX-License-Identifier: BSD-3-Clause
"""The pass for TorchInductor: ``torch.compile`` and AOTInductor."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V

from ._fuse import fuse
from ._merge import merge_products
from ._patterns import INTEGER_PRODUCTS, is_own

# AOTInductor of torch 2.11 hands a dtype on to a custom op as another one. The ops that quantize
# take one, quantized_linear does not.
_IS_2_11 = torch.__version__.startswith("2.11.")


class Fuse(CustomGraphPass):  # type: ignore[misc]
    """Fuses quantization into what precedes it, in models that TorchInductor compiles.

    It is one of Inductor's options, and goes with all others::

        torch.compile(model, options={"post_grad_custom_pre_pass": baraquant.graph.Fuse()})
        torch._inductor.aoti_compile_and_package(
            program, inductor_configs={"post_grad_custom_pre_pass": baraquant.graph.Fuse()}
        )

    Layers with the same input share one quantization, and a float op of :mod:`baraquant.ops` that
    only quantized layers read is computed together with it, as :func:`fuse_` describes. Layers with
    the same quantized input, or with one floating input and weights of integers, are one call: on
    a GPU, where there are few rows, one launch. What the model returns has the bits that it has
    when it is compiled without the pass. Graphs with symbolic shapes are fused too. In training the
    layers that are frozen and symmetric are fused; those that keep a mask for the gradient stay as
    they are.

    Inductor keeps what it compiled in its cache as usual; the key has the version of the pass.
    AOTInductor of PyTorch 2.11 cannot call the fused ops: there the pass changes nothing.

    Raises:
        TypeError: It was called with something other than a graph.

    Example:
        >>> layer = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
        >>> baraquant.quantize_(layer, baraquant.W8A8(), progress=False)
        >>> options = {"post_grad_custom_pre_pass": baraquant.graph.Fuse()}
        >>> compiled = torch.compile(layer, options=options)
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change a graph of Inductor, after autograd and before the lowering."""
        if not isinstance(graph, torch.fx.Graph):
            raise TypeError(
                f"baraquant.graph.Fuse: expected a torch.fx.Graph, but got {type(graph).__name__}; "
                'give Fuse() to torch.compile(model, options={"post_grad_custom_pre_pass": '
                "Fuse()}), or call baraquant.graph.fuse_ on an exported program"
            )
        if _IS_2_11 and V.aot_compilation:
            return
        fuse(graph, recorded=False)
        merge_products(graph)
        _write_out_dtypes(graph)
        _freeze_attributes(graph)
        graph.lint()

    def uuid(self) -> str:
        """Return what stands for the pass in the keys of Inductor's cache."""
        return f"baraquant.graph.Fuse {_hash_of_sources()}"

    def __eq__(self, other: object) -> bool:
        """Whether both are this pass: else each new one would make torch.compile start again."""
        return type(other) is Fuse

    def __hash__(self) -> int:
        """Return one number for all, as all are equal."""
        return hash(Fuse)


def _write_out_dtypes(graph: torch.fx.Graph) -> None:
    """Give products of integers their dtype, which AOTInductor cannot leave to its default."""
    for node in graph.nodes:
        if node.target in INTEGER_PRODUCTS and "dtype" not in node.kwargs:
            node.kwargs = {**node.kwargs, "dtype": torch.float32}


def _freeze_attributes(graph: torch.fx.Graph) -> None:
    """Let no parameter that an op of the library reads require a gradient.

    AOTInductor calls each op with the parameters themselves, as attributes of a module of its own,
    and the ops that quantize refuse what requires a gradient. The graph is past autograd.
    """
    for node in graph.nodes:
        if node.op != "get_attr" or not any(map(is_own, node.users)):
            continue
        path, _, name = node.target.rpartition(".")
        owner = graph.owning_module.get_submodule(path)
        value = getattr(owner, name)
        if isinstance(value, nn.Parameter) and value.requires_grad:
            setattr(owner, name, nn.Parameter(value.detach(), requires_grad=False))


@cache
def _hash_of_sources() -> str:
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
