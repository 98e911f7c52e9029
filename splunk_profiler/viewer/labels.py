"""The labels of samples, and in which order they are shown. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from splunk_profiler.user_labels.sample_labels import RESERVED_NAMES, RESERVED_PREFIXES
from splunk_profiler.viewer.stacks import Numbers


class Labels:
    """The names of the labels that facets have."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}
        self._labels, self._facets = array("i"), array("i")  # each pair of a label and of facets that have it

    def __len__(self) -> int:
        return len(self._indexes)

    def __contains__(self, name: str) -> bool:
        return name in self._indexes

    def add(self, facets: int, names: Iterable[str]) -> None:
        """Note the labels of facets."""
        for name in names:
            self._labels.append(self._indexes.setdefault(name, len(self._indexes)))
            self._facets.append(facets)

    def ranked(self, samples: Numbers) -> list[str]:
        """Return those of any sample, the service's own before the profiler's, and those of the most samples first.

        Args:
            samples: how many there are of each facets.
        """
        counts = np.bincount(np.array(self._labels), samples[np.array(self._facets)], len(self._indexes))
        found = ((_is_ours(name), -count, name) for name, count in zip(self._indexes, counts, strict=True) if count)
        return [name for *_, name in sorted(found)]


def _is_ours(name: str) -> bool:
    """Return True for a label that the profiler gives: those of the service's own have other names."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES)
