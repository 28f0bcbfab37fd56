# SPDX-License-Identifier: BSD-3-Clause
"""No change of the sources changes a bit of a result: hashes of results, made once and kept.

`python -m tests.golden` compares more finely, and makes the file anew.
"""

import pytest
import torch

from tests.golden import hashes
from tests.golden.hashes import FAMILIES
from tests.support import cases

# Groups that the short run computes, with the dtype: by the beginnings of their titles.
SHORT = {
    "affine": (torch.float16, ("fake_quantize per_token", "learned per_channel(1)")),
    "range": (torch.bfloat16, ("from_data per_group(3,0)", "observe per_channel(0) asymmetric")),
    "int8_mm": (torch.float32, ("gradients", "grouped", "int8_linear uint8")),
    "modules": (torch.float32, ("linear", "file of every module")),
    "scaled": (torch.float16, ("scaled",)),
    "int4": (torch.bfloat16, ("int4 products asymmetric",)),
    "fused": (torch.bfloat16, ("activations",)),
}


def check(family: str, dtype: torch.dtype, device: str, begin: tuple[str, ...] = ("",)) -> None:
    chosen = [c for c in FAMILIES[family](dtype) if c.group.startswith(begin)]
    assert chosen
    found = hashes.hashes_of(chosen, device, with_private=begin == ("",))
    wrong = hashes.differences(found, hashes.stored())
    if wrong:
        look = hashes.cases_that_differ(chosen, wrong, device)
        lines = ["other bits than in the golden file:", *wrong, "", "of the cases:", *look]
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_some_bits_are_those_of_the_file(family: str, device: str) -> None:
    dtype, begin = SHORT[family]
    check(family, dtype, device, begin)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", cases.FLOAT_DTYPES, ids=cases.name_of)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_bits_are_those_of_the_file(family: str, dtype: torch.dtype, device: str) -> None:
    check(family, dtype, device)


def test_every_private_op_is_in_the_file() -> None:
    composed = "CompositeImplicitAutograd"  # what they turn into is in the file
    private = {
        schema.name.split("::")[1]
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("baraquant::_")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(schema.name, composed)
    }
    named = {title.split(" in ")[0] for title in hashes.stored()["cpu"] if title.startswith("_")}
    # These compute nothing but PyTorch's casts; and these the results of other ops, one for each of
    # some weights, with which tests/int8_mm/test_several.py compares them.
    casts = {"_unless_recomputing", "_round_master"}
    of_several = {"_int8_linears", "_int4_linears", "_weight_only_linears"}
    assert named == private - casts - of_several


def test_the_file_holds_nothing_else() -> None:
    """What is not computed any more has left the file; it is small."""
    groups = {
        c.group for family in FAMILIES.values() for d in cases.FLOAT_DTYPES for c in family(d)
    }
    stored = hashes.stored()
    titles = {title.split(" in ")[-1] for device in stored.values() for title in device}
    assert titles == groups
    assert hashes.FILE.stat().st_size < 200_000
