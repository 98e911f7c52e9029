"""Offers of the GIL in long work."""

from __future__ import annotations

import pytest

from splunk_profiler.system.gil import GilOffer


@pytest.mark.parametrize(("offer_s", "offers"), [(0.0005, 100), (0.04, 3)])
def test_gil_is_offered_rarely_where_an_offer_takes_long(offer_s: float, offers: int) -> None:
    now_s, offered = 1000.0, 0

    def sleep(_: float) -> None:
        nonlocal now_s, offered
        offered += 1
        now_s += offer_s

    offer = GilOffer(lambda: now_s, sleep)
    for _ in range(100):  # of a second's work
        now_s += 0.01
        offer()
    assert offered == offers
