# SPDX-License-Identifier: BSD-3-Clause
"""Compares the hashes of results with those of the file, or makes that anew.

    python -m tests.golden [--device cuda] --check   compare with the file
    python -m tests.golden [--device cuda] --write   make the file anew
    python -m tests.golden [--device cuda] --cases   print the digest of every single case

The hashes under "every device" hold on the CPU and on GPUs, and `--write` on a GPU leaves them as
they are. To find what a change did, compare what `--cases` prints before and after it.
"""

import argparse

from tests.golden import hashes
from tests.golden.hashes import EVERYWHERE, FAMILIES
from tests.support import cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("check", "write", "cases"):
        action.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    made: hashes.Hashes = {EVERYWHERE: {}, given.device: {}}
    wrong: list[str] = []
    for family, cases_of in FAMILIES.items():
        for dtype in cases.FLOAT_DTYPES:
            chosen = list(cases_of(dtype))
            if given.cases:
                for case in chosen:
                    digest = hashes.case_digest(case, given.device)
                    print(digest, case.group, case.name, sep="\t")
                continue
            found = hashes.hashes_of(chosen, given.device)
            for where, groups in found.items():
                made[where].update(groups)
            if not given.write:
                own = hashes.differences(found, hashes.stored())
                wrong += own
                print(family, dtype, f"{len(own)} of {sum(map(len, found.values()))} differ")
                print("\n".join(own + hashes.cases_that_differ(chosen, own, given.device)))
    stored = hashes.stored()
    if given.write:
        kept = {EVERYWHERE: stored[EVERYWHERE]} if given.device != "cpu" else {}
        hashes.store(stored | made | kept)
    elif not given.cases and given.device not in stored:
        print(f"the file has no hashes of {given.device}'s own yet: --write makes them")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
