# SPDX-License-Identifier: BSD-3-Clause
"""Names of linear layers that read one input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# Names of layers that vLLM computes as one, where they are children of one module.
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)


def fused_paths(
    paths: Iterable[str], names: Iterable[tuple[str, ...]] = FUSED
) -> Iterator[list[str]]:
    """Yield the groups of paths that a server fuses, each with at least two."""
    known = set(paths)
    parents = dict.fromkeys(path.rpartition(".")[0] for path in known)
    for parent in sorted(parents):
        prefix = f"{parent}." if parent else ""
        for group_names in names:
            group = [f"{prefix}{name}" for name in group_names if f"{prefix}{name}" in known]
            if len(group) > 1:
                yield group
