"""A cache of the last answers about samples, valid while the samples are the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import is_
from typing import Generic, TypeVar

from splunk_profiler.viewer.columns import Columns

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


class LatestAnswers(Generic[_Question, _Answer]):
    """A cache of the last answers, valid while the samples are the same: clicks repeat questions of other clicks."""

    def __init__(self, size: int) -> None:
        self._answers: deque[tuple[_Question, _Answer]] = deque(maxlen=size)
        self._about: list[Columns] = []

    def get(self, about: list[Columns], question: _Question, answer: Callable[[_Question], _Answer]) -> _Answer:
        """Return the cached answer about samples; else call `answer` and cache its result."""
        if len(about) != len(self._about) or not all(map(is_, about, self._about)):
            self._answers.clear()
            self._about = about
        for asked, found in self._answers:
            if asked == question:
                return found
        found = answer(question)
        self._answers.append((question, found))
        return found
