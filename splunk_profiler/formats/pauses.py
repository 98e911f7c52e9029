"""Pauses in long loops, which let other threads run. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")
_ITEMS_PER_PAUSE = 64  # less than a millisecond's work


def iter_with_pauses(items: Iterable[_T], pause: Callable[[], None] | None) -> Iterator[_T]:
    """Yield `items`; call `pause`, if there is one, after each 64."""
    for number, item in enumerate(items, 1):
        yield item
        if pause is not None and number % _ITEMS_PER_PAUSE == 0:
            pause()
