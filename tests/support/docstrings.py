# SPDX-License-Identifier: BSD-3-Clause
"""Running the examples of docstrings."""

import doctest

import torch

import baraquant


def run_examples(object_: object, name: str) -> None:
    """Those of one object; fails where one of them does, and where there is none."""
    examples = doctest.DocTestFinder(recurse=False).find(
        object_, name, globs={"torch": torch, "baraquant": baraquant}
    )
    assert sum(len(e.examples) for e in examples) > 0, f"{name} has no example"
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in examples:
        runner.run(example, out=output.append)
    assert runner.failures == 0, "".join(output)
