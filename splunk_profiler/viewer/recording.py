"""The samples of a source in memory, with equal stacks and facets kept once, and what a selection takes of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from splunk_profiler.viewer.model import (
    FACETS,
    LABEL,
    Facets,
    Frame,
    Function,
    Sample,
    Selection,
    Series,
    Span,
    Timeline,
    Weighted,
    facet_value,
)

OTHER = "(other)"
_MAX_SERIES = 8
_MAX_VALUES = 100  # of a facet
_MAX_LABELS = 20  # that are shown as facets
IN_USE = "inuse_"  # begins values that say what is, not what was added: those of the last profile count


class Recording:
    """Samples, and tables of what they refer to.

    Attributes:
        units: of each value, in the order in which values were found.
        labels: the names of labels that samples have.
        spans: by trace, then by their id.
        since_ns, until_ns: all samples lie between; 0 if there are none.
    """

    def __init__(self) -> None:
        self.units: dict[str, str] = {}
        self.functions: list[Function] = []
        self.stacks: list[tuple[Frame, ...]] = []
        self.facets: list[Facets] = []
        self.samples: list[Sample] = []
        self.labels: set[str] = set()
        self.spans: dict[str, dict[str, Span]] = {}
        self.since_ns = self.until_ns = 0
        self._function_ids: dict[tuple[str, str], int] = {}
        self._stack_ids: dict[tuple[Frame, ...], int] = {}
        self._facet_ids: dict[Facets, int] = {}
        self._heap_times_ns: dict[str, set[int]] = {}  # by process: of profiles of what is in use

    def function_id(self, name: str, file: str, kind: str) -> int:
        """Return the place of a function in the table."""
        found = self._function_ids.setdefault((name, file), len(self.functions))
        if found == len(self.functions):
            self.functions.append(Function(name, file, kind))
        return found

    def find_function(self, name: str, file: str) -> int:
        """Return the place of a function in the table; -1 if it is not there."""
        return self._function_ids.get((name, file), -1)

    def stack_id(self, frames: tuple[Frame, ...]) -> int:
        """Return the place of a stack, root first, in the table."""
        found = self._stack_ids.setdefault(frames, len(self.stacks))
        if found == len(self.stacks):
            self.stacks.append(frames)
        return found

    def facets_id(self, facets: Facets) -> int:
        """Return the place of these facets in the table."""
        found = self._facet_ids.setdefault(facets, len(self.facets))
        if found == len(self.facets):
            self.facets.append(facets)
            self.labels.update(name for name, _ in facets.labels)
        return found

    def facet_names(self) -> list[str]:
        """Return the names of the facets that are shown."""
        return [*FACETS, *(LABEL + name for name in sorted(self.labels)[:_MAX_LABELS])]

    def add(self, sample: Sample) -> None:
        """Add a sample; its values must be in `units`."""
        self.since_ns = min(self.since_ns or sample.time_ns, sample.time_ns)
        self.until_ns = max(self.until_ns, sample.time_ns + 1)
        self.samples.append(sample)

    def note_heap(self, process: str, time_ns: int) -> None:
        """Note a profile of what is in use: what it does not have is not in use any more."""
        self._heap_times_ns.setdefault(process, set()).add(time_ns)

    def select(self, selection: Selection) -> list[Sample]:
        """Return the samples of a selection; of values that say what is in use, those of each process's last profile.

        Raises:
            ValueError: there is no such facet.
        """
        return self._only_last(self._chosen(selection), selection, 1 << 63)

    def weighted(self, selection: Selection) -> list[Weighted]:
        """Return the stacks of a selection with their weights."""
        weights: Counter[int] = Counter()
        for sample in self.select(selection):
            weights[sample.stack] += sample.weights[selection.value]
        return [Weighted(self.stacks[stack], weight) for stack, weight in weights.items() if weight]

    def duration_ns(self, selection: Selection) -> int:
        """Return how long a selection is; 1 for what is in use, which does not grow with time."""
        if selection.value.startswith(IN_USE):
            return 1
        since_ns = self.since_ns if selection.since_ns is None else selection.since_ns
        until_ns = self.until_ns if selection.until_ns is None else selection.until_ns
        return max(1, until_ns - since_ns)

    def facet_weights(self, selection: Selection) -> dict[str, list[tuple[str, int]]]:
        """Return for each facet its values, heaviest first, without the filter by it: so that others can be chosen."""
        return {name: self._weights_by(name, selection).most_common(_MAX_VALUES) for name in self.facet_names()}

    def timeline(self, selection: Selection, facet: str, buckets: int) -> Timeline:
        """Return the weights over the whole time of the recording, by the value of a facet, heaviest first."""
        self._check_facets({facet})
        step_ns = max(1, -(-(self.until_ns - self.since_ns) // buckets))
        whole = Selection(selection.value, self.since_ns, self.until_ns, selection.filters)
        lines: dict[str, list[int]] = defaultdict(lambda: [0] * buckets)
        for sample in self._only_last(self._chosen(whole), whole, step_ns):
            value = facet_value(self.facets[sample.facets], facet)
            lines[value][(sample.time_ns - self.since_ns) // step_ns] += sample.weights[selection.value]
        ranked = sorted(lines.items(), key=lambda item: -sum(item[1]))
        series = [Series(value, weights) for value, weights in ranked[:_MAX_SERIES]]
        if rest := [weights for _, weights in ranked[_MAX_SERIES:]]:
            series.append(Series(OTHER, [sum(column) for column in zip(*rest, strict=True)]))
        return Timeline(self.since_ns, step_ns, series)

    def _weights_by(self, facet: str, selection: Selection) -> Counter[str]:
        filters = {name: values for name, values in selection.filters.items() if name != facet}
        others = Selection(selection.value, selection.since_ns, selection.until_ns, filters)
        weights: Counter[int] = Counter()
        for sample in self.select(others):
            weights[sample.facets] += sample.weights[selection.value]
        by_value: Counter[str] = Counter()
        for place, weight in weights.items():
            by_value[facet_value(self.facets[place], facet)] += weight
        return by_value

    def _chosen(self, selection: Selection) -> list[Sample]:
        """Return the samples of a selection."""
        self._check_facets(selection.filters.keys())
        allowed = [
            all(facet_value(facets, name) in values for name, values in selection.filters.items())
            for facets in self.facets
        ]
        since_ns = self.since_ns if selection.since_ns is None else selection.since_ns
        until_ns = self.until_ns if selection.until_ns is None else selection.until_ns
        return [
            sample
            for sample in self.samples
            if selection.value in sample.weights and since_ns <= sample.time_ns < until_ns and allowed[sample.facets]
        ]

    def span_weights(self, selection: Selection) -> Counter[str]:
        """Return the weights of a selection by the id of the span."""
        weights: Counter[str] = Counter()
        for sample in self.select(selection):
            weights[self.facets[sample.facets].span_id] += sample.weights[selection.value]
        return weights

    @staticmethod
    def _check_facets(names: Collection[str]) -> None:
        for name in names:
            if name not in FACETS and name != "span_id" and not name.startswith(LABEL):
                raise ValueError(f"there is no facet {name}")

    def _only_last(self, samples: list[Sample], selection: Selection, step_ns: int) -> list[Sample]:
        """Return of what is in use each process's last profile in each bucket of the selected time; else all."""
        if not selection.value.startswith(IN_USE):
            return samples
        since_ns, until_ns = selection.since_ns or 0, selection.until_ns or 1 << 63
        last: dict[tuple[str, int], int] = {}
        for process, times_ns in self._heap_times_ns.items():
            for time_ns in sorted(time_ns for time_ns in times_ns if since_ns <= time_ns < until_ns):
                last[process, (time_ns - self.since_ns) // step_ns] = time_ns
        keys = [(self.facets[each.facets].process, (each.time_ns - self.since_ns) // step_ns) for each in samples]
        return [each for key, each in zip(keys, samples, strict=True) if each.time_ns == last.get(key)]
