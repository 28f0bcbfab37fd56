# SPDX-License-Identifier: BSD-3-Clause
"""The choice of one option for each group: as good as the best of all combinations."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baraquant
from baraquant.workflow.sensitivity.knapsack import least_bytes, solve
from baraquant.workflow.sensitivity.report import LayerSensitivity, Sensitivity

ERRORS = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3]), st.floats(0, 1), st.floats(0, 1e9))
OPTIONS = st.lists(st.tuples(st.integers(0, 60), ERRORS), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(st.lists(OPTIONS, max_size=5), st.integers(0, 120), st.sampled_from([0, 1 << 20]))
def test_small_cases_against_all_combinations(groups, spare, work):
    budget = least_bytes(groups) + spare
    solution = solve(groups, budget, work)
    every = itertools.product(*groups)
    best = min(sum(e for _, e in one) for one in every if sum(b for b, _ in one) <= budget)
    picked = [group[pick] for group, pick in zip(groups, solution.picks, strict=True)]
    assert sum(size for size, _ in picked) == solution.bytes <= budget
    assert solution.error == pytest.approx(best, rel=1e-12, abs=1e-12)
    assert solution.bound <= solution.error


def instance(count, seed):
    draw = random.Random(seed)
    groups = []
    for _ in range(count):
        size, error = draw.randint(10**6, 10**8), draw.random() ** 3
        groups.append([(size // 2, error), (size, error * draw.random() / 50), (2 * size, 0.0)])
    return groups, sum(group[0][0] for group in groups) * 5 // 4


@pytest.mark.parametrize("seed", range(3))
def test_a_large_case_is_the_best_and_the_same_each_time(seed):
    groups, budget = instance(200, seed)
    solution = solve(groups, budget)
    assert solution.bound == pytest.approx(solution.error, rel=1e-9)
    assert solution == solve(groups, budget)


@pytest.mark.parametrize("seed", range(3))
def test_without_room_the_bound_says_how_far_the_best_may_be(seed):
    groups, budget = instance(400, seed)
    best, rough = solve(groups, budget), solve(groups, budget, work=0)
    assert rough.bound <= best.error * (1 + 1e-9) and rough.bytes <= budget
    assert best.error <= rough.error * (1 + 1e-9) <= best.error * 1.01


COUNTS = st.integers(1, 10**9)
SIZES = st.lists(COUNTS, min_size=2, max_size=2)
LAYERS = st.lists(st.tuples(COUNTS, SIZES), min_size=1, max_size=6)


@settings(max_examples=500, deadline=None)
@given(LAYERS, st.floats(0, 1))
def test_the_bits_of_a_choice_allow_that_choice(layers, share):
    configs = {"small": baraquant.W4A16(), "large": baraquant.W8A8()}
    measured = tuple(
        LayerSensitivity(
            *(str(index), (str(index),), "Linear", parameters, 4 * max(sizes)),
            *(dict(zip(configs, sorted(sizes), strict=True)), {"small": 1.0, "large": 0.5}, {}),
            index,
        )
        for index, (parameters, sizes) in enumerate(layers)
    )
    report = Sensitivity(configs, measured)
    most = sum(max(sizes) for _, sizes in layers)
    least = sum(min(sizes) for _, sizes in layers)
    choice = report.choose(least + int(share * (most - least)))
    again = report.choose(bits=choice.bits)
    assert again.bytes <= choice.bytes and again.error <= choice.error and again.bits <= choice.bits
    with pytest.raises(ValueError, match="expected bits to be at least") as error:
        report.choose(bits=-1.0)
    named = float(str(error.value).split("at least ")[1].split(",")[0])
    assert report.choose(bits=named).bits <= named
