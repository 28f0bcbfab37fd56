# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant's statistics leave out what is not finite, and count it."""

import math

import torch

from baraquant.workflow.smoothquant.smoothing import ALPHAS, AlphaSearch, ChannelRange
from tests.support.models.outlier_models import batches


def test_a_channel_that_is_not_finite_takes_no_part():
    data, watcher = [batch.clone() for batch in batches()], ChannelRange()
    for batch in data:
        watcher.observe(batch)
    wanted = watcher.absmax
    bad = data[0] * 100
    bad[..., 3] = math.inf
    watcher.observe(bad)
    assert watcher.skipped_batches == 1 and watcher.absmax[3] == wanted[3]
    others = torch.arange(16) != 3
    assert torch.equal(watcher.absmax[others], (bad.reshape(-1, 16).abs().amax(0))[others])
    assert not bool(watcher.unusable())
    never = ChannelRange()
    never.observe(bad)
    assert bool(never.unusable())


def test_the_search_leaves_out_what_is_not_finite():
    weight, data = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)), batches()
    factors = torch.stack([torch.ones(16)] * len(ALPHAS))
    clean, search = (AlphaSearch(weight, factors, None, symmetric=True) for _ in range(2))
    for batch in data:
        clean.observe(batch)
        search.observe(batch)
        bad = batch.clone()
        bad.view(-1)[-1] = math.nan
        search.observe(bad)
    assert torch.equal(search.errors, clean.errors)
    assert search.skipped_batches == len(data) and not bool(search.unusable())
    never = AlphaSearch(weight, factors, None, symmetric=True)
    never.observe(bad)
    assert bool(never.unusable())
