"""The samples of a source, with equal stacks and facets kept once, and what a selection takes of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from splunk_profiler.viewer.columns import Columns, ColumnsBuilder, joined_pairs, last_times, without_ended
from splunk_profiler.viewer.labels import Labels
from splunk_profiler.viewer.latest_answers import LatestAnswers
from splunk_profiler.viewer.model import (
    FACETS,
    LABEL,
    LONG_PROFILE_NS,
    MINUTE_NS,
    NEVER_NS,
    OTHER_TRACES,
    SPAN_ID,
    TRACE,
    Facets,
    FacetValues,
    Function,
    Sample,
    Selection,
    Series,
    Span,
    Timeline,
    facet_value,
)
from splunk_profiler.viewer.stacks import Numbers, Stacks

OTHER = "(other)"
_MAX_SERIES = 8
_MAX_VALUES = 100  # of a facet
_MAX_LABELS = 20  # that are shown as facets
_MAX_TRACES = 200  # of each part of a source, and of these, that are shown
_KEPT_WEIGHTS = 4  # of the last selections and what they are compared with
_OF_SPANS = frozenset({TRACE, SPAN_ID})
IN_USE = "inuse_"  # begins values that say what is, not what was added: those of the last profile count
_Rows = tuple[Columns, slice | Numbers]


class SampleRow(NamedTuple):
    """The row of a sample that was added."""

    builder: ColumnsBuilder
    row: int


class Recording:
    """Samples, and tables of what they refer to.

    Attributes:
        units: of each value, in the order in which values were found.
        values: those that any sample has.
        stacks: the table of stacks.
        labels: those that samples have.
        spans: by trace, then by their id.
        loaded: samples that were not added one by one.
        note: on what is missing; empty if nothing is.
    """

    def __init__(self, min_step_ns: int = 1) -> None:
        """`min_step_ns` is the shortest step of a timeline: samples were counted in such."""
        self._min_step_ns = min_step_ns
        self.units: dict[str, str] = {}
        self.functions: list[Function] = []
        self.stacks = Stacks()
        self.facets: list[Facets] = []
        self.labels = Labels()
        self._function_ids: dict[tuple[str, str], int] = {}
        self._facet_ids: dict[Facets, int] = {}
        self._codes: dict[str, tuple[array[int], dict[str, int]]] = {}
        self._begin_samples()

    def _begin_samples(self) -> None:
        self.values: set[str] = set()
        self.spans: dict[str, dict[str, Span]] = {}
        self.loaded: list[Columns] = []
        self.note = ""
        self._builders: dict[tuple[str, ...], ColumnsBuilder] = {}
        self._last_rows = LatestAnswers[tuple[Selection, int], list[_Rows]](1)  # they are as many as there are samples
        self._last_labels = LatestAnswers[int, list[str]](1)
        self._last_weights = LatestAnswers[tuple[Selection, int], Numbers](_KEPT_WEIGHTS)

    def sibling(self) -> Recording:
        """Return a recording without samples that has the same tables. Indexes are valid in both."""
        other = copy(self)
        other._begin_samples()
        return other

    def function_id(self, name: str, file: str, kind: str) -> int:
        """Return the index of a function in the table."""
        function = Function(name, file, kind).encodable()
        found = self._function_ids.setdefault((function.name, function.file), len(self.functions))
        if found == len(self.functions):
            self.functions.append(function)
        return found

    def find_function(self, name: str, file: str) -> int:
        """Return the index of a function in the table; -1 if it is not there."""
        return self._function_ids.get((name, file), -1)

    def facets_id(self, facets: Facets) -> int:
        """Return the index of these facets in the table."""
        found = self._facet_ids.setdefault(facets, len(self.facets))
        if found == len(self.facets):
            self.facets.append(facets.encodable())
            self.labels.add(found, (name for name, _ in self.facets[found].labels))
        return found

    def facet_names(self) -> list[str]:
        """Return the names of the facets that are shown."""
        return [*FACETS, TRACE, *(LABEL + name for name in self._ranked_labels()[:_MAX_LABELS])]

    def _ranked_labels(self) -> list[str]:
        def rank(facets: int) -> list[str]:
            counts = (np.bincount(each.facets, minlength=facets) for each in self.columns())
            return self.labels.ranked(sum(counts, np.zeros(facets)))

        return self._last_labels.get(self.columns(), len(self.facets), rank) if self.labels else []

    def remarks(self) -> list[str]:
        """Return what is not shown, or not where it was."""
        more = len(self._ranked_labels()) - _MAX_LABELS
        longest_ns = max((columns.longest_ns for columns in self.columns()), default=0)
        long = f"A profile is as long as {longest_ns // MINUTE_NS:,} minutes: all its samples are at its start."
        labels = f"{more:,} labels are not among the filters: they are on the fewest samples."
        return [long] * (longest_ns > LONG_PROFILE_NS) + [labels] * (more > 0)

    def add(self, sample: Sample) -> SampleRow:
        """Add a sample; its values must be in `units`."""
        names = tuple(sample.weights)
        builder = self._builders.setdefault(names, ColumnsBuilder(names))
        self.values.update(name for name, weight in sample.weights.items() if weight)
        return SampleRow(builder, builder.add(sample))

    def name_span(self, at: SampleRow, name: str, endpoint: str = "") -> None:
        """Put the name of its span into a sample, and the endpoint if one is given."""
        facets = self.facets[at.builder.facets(at.row)]
        named = facets._replace(span=name, endpoint=endpoint or facets.endpoint)
        at.builder.set_facets(at.row, self.facets_id(named))

    def note_heap(self, process: str, time_ns: int, duration_ns: int = 0) -> None:
        """Note a profile of what is in use: what it does not have is not in use any more."""
        facets = self.facets_id(Facets(process=process))
        nothing = {name: 0 for name in self.units if name.startswith(IN_USE)}
        self.add(Sample(time_ns, self.stacks.index(b""), facets, nothing, duration_ns=duration_ns))

    def clear_added(self) -> None:
        """Forget the samples that were added one by one."""
        self._builders.clear()

    def columns(self) -> list[Columns]:
        """Return all samples."""
        return [*self.loaded, *(builder.built() for builder in self._builders.values())]

    def count(self) -> int:
        """Return the number of samples, or of aggregates of them."""
        return sum(map(len, self.columns()))

    def period_ns(self) -> tuple[int, int]:
        """Return two times between which all samples are; 0 if there are none."""
        ends = [(int(each.time_ns[0]), int(each.time_ns[-1])) for each in self.columns() if len(each)]
        return (min(first for first, _ in ends), max(last for _, last in ends) + 1) if ends else (0, 0)

    def has_trace(self, trace: str) -> bool:
        """Return True if any sample is of that trace."""
        return any((columns.spans.traces == trace.encode()).any() for columns in self.columns())

    def weights(self, selection: Selection) -> Numbers:
        """Return the weight of each stack in a selection.

        Of values that say what is in use, those of each process's last profile count.

        Raises:
            ValueError: there is no such facet.
        """
        return self._last_weights.get(self.columns(), (selection, len(self.stacks)), self._sum_stacks)

    def ends_ns(self, selection: Selection) -> tuple[int, int]:
        """Return when a selection begins and ends; without times of its own it is of the whole period.

        That ends with the last profile, whose samples are all at its start.
        """
        since_ns, until_ns = selection.times_in(self.period_ns())
        has_end = selection.until_ns is not None
        ends_ns = [each.end_ns for each in self.columns() if selection.value in each.weights and not has_end]
        return since_ns, max([until_ns, *ends_ns])

    def duration_ns(self, selection: Selection) -> int:
        """Return how long a selection is; 1 for what is in use, which does not grow with time."""
        since_ns, until_ns = self.ends_ns(selection)
        return 1 if selection.value.startswith(IN_USE) else max(1, until_ns - since_ns)

    def facet_values(
        self, selection: Selection, names: Collection[str] | None = None, search: str = ""
    ) -> dict[str, FacetValues]:
        """Return for each facet its values, without the filter by it: so that others can be chosen.

        Args:
            selection: of which samples.
            names: of the facets; None for all that are shown.
            search: only values that have this text, without regard to case.

        Of a source in parts a trace has its weight where it is one of the heaviest two hundred, of a part and of all.

        Raises:
            ValueError: there is no such facet.
        """
        names = self.facet_names() if names is None else names
        self._check_facets(names)
        by_facets = self._sum_facets(selection)
        found = {}
        for name in names:
            others, more = selection.without(name), 0
            if name == TRACE:
                sums, more = self._sum_traces(others, search=search.casefold())
            else:
                sums = self._sum_values(name, by_facets * self._allowed(others.filters), search.casefold())
            heaviest = [(value, round(weight)) for value, weight in sums.most_common(_MAX_VALUES)]
            found[name] = FacetValues(heaviest, more + len(sums) - len(heaviest))
        return found

    def timeline(self, selection: Selection, facet: str, buckets: int) -> Timeline:
        """Return the weights over the time of a selection, by the value of a facet, heaviest first.

        There are fewer than `buckets` where these would have parts of profiles: all samples of one are at its start, so
        one bucket would have more of them than the next.

        Raises:
            ValueError: there is no such facet.
        """
        self._check_facets({facet})
        start_ns, end_ns = selection.times_in(self.period_ns())
        whole_ns = max(0, end_ns - start_ns)
        usual_ns = max([1, *(each.usual_ns for each in self.columns() if each.has_any(start_ns, end_ns))])
        step_ns = max(self._min_step_ns, min(-(-whole_ns // (buckets * usual_ns)) * usual_ns, whole_ns))
        buckets = min(buckets, -(-whole_ns // step_ns)) or 1
        sums = (
            self._sum_traces(selection, step_ns)[0]
            if facet == TRACE
            else self._sum_values(facet, self._sum_facets(selection, step_ns) * self._allowed(selection.filters))
        )
        names = [name for name, _ in sums.most_common(_MAX_SERIES)]
        cells = np.zeros((len(names) + 1, buckets))
        edges = [min(start_ns + step_ns * index, NEVER_NS) for index in range(buckets + 1)]
        for columns, rows in self._rows(selection, step_ns):
            line, weights = self._ranks(columns, rows, facet, names), columns.weights[selection.value][rows]
            ends = np.searchsorted(columns.time_ns[rows], edges)
            for bucket in np.flatnonzero(np.diff(ends)).tolist():
                inside = slice(ends[bucket], ends[bucket + 1])
                cells[:, bucket] += np.bincount(line[inside], weights[inside], len(cells))
        lines = np.rint(cells).astype(np.int64).tolist()
        series = [Series(*each) for each in zip([*names, OTHER], lines, strict=True)]
        return Timeline(start_ns, step_ns, series if any(lines[-1]) else series[:-1])

    def span_weights(self, selection: Selection) -> Counter[str]:
        """Return the weights of a selection by the id of the span."""
        weights: Counter[str] = Counter()
        for columns, rows in self._rows(selection):
            sums = np.bincount(columns.span[rows], columns.weights[selection.value][rows])
            for index in np.flatnonzero(sums).tolist():
                weights[columns.spans.ids[index].decode()] += round(sums[index])
        return weights

    def _sum_stacks(self, question: tuple[Selection, int]) -> Numbers:
        selection, count = question
        sums = np.zeros(count)
        chosen = (
            (columns.stack[rows], columns.weights[selection.value][rows]) for columns, rows in self._rows(selection)
        )
        for stack, weights in joined_pairs(chosen):
            sums += np.bincount(stack, weights, count)
        return sums

    def _rows(self, selection: Selection, step_ns: int = 0) -> list[_Rows]:
        """Return the samples of a selection; of what is in use those of each process's last profile in each step."""
        step_ns = step_ns if selection.value.startswith(IN_USE) else 0
        return self._last_rows.get(self.columns(), (selection, step_ns), lambda question: [*self._find_rows(*question)])

    def _find_rows(self, selection: Selection, step_ns: int) -> Iterator[_Rows]:
        allowed = self._allowed(selection.filters)
        last = self._last_profiles(selection, step_ns) if selection.value.startswith(IN_USE) else None
        for columns in self.columns():
            if selection.value not in columns.weights:
                continue
            rows = columns.rows_between(selection.since_ns, selection.until_ns)
            masks = [] if allowed.all() else [allowed.take(columns.facets[rows])]
            if not _OF_SPANS.isdisjoint(selection.filters):
                masks.append(columns.spans.allowed_by(selection.filters).take(columns.span[rows]))
            if last is not None:
                masks.append(last[self._profile_of(columns, rows, selection, step_ns)] == columns.time_ns[rows])
            yield columns, rows.start + np.flatnonzero(np.logical_and.reduce(masks)) if masks else rows

    def _last_profiles(self, selection: Selection, step_ns: int) -> Numbers:
        """Return when the last profile of each process was, in each step of the selected time; -1: it has ended."""
        chosen = [columns for columns in self.columns() if selection.value in columns.weights]
        last_ns = last_times(
            [
                (self._profile_of(columns, rows, selection, step_ns), columns.time_ns[rows])
                for columns in chosen
                for rows in [columns.rows_between(selection.since_ns, selection.until_ns)]
            ]
        )
        return without_ended(last_ns, len(self._codes_of("process")[1]), chosen)

    def _profile_of(self, columns: Columns, rows: slice, selection: Selection, step_ns: int) -> Numbers:
        """Return for each of a selection's samples a number for its process and its step."""
        processes, names = self._codes_of("process")
        step = (columns.time_ns[rows] - selection.times_in(self.period_ns())[0]) // step_ns if step_ns else 0
        return processes[columns.facets[rows]] + len(names) * step

    def _sum_facets(self, selection: Selection, step_ns: int = 0) -> Numbers:
        """Return the weights of a selection by facets, without its filters by these."""
        of_spans = {name: values for name, values in selection.filters.items() if name in _OF_SPANS}
        sums = np.zeros(len(self.facets))
        for columns, rows in self._find_rows(replace(selection, filters=of_spans), step_ns):
            found = columns.sum_facets(selection.value, rows)
            sums[: len(found)] += found
        return sums

    def _sum_values(self, facet: str, by_facets: Numbers, search: str = "") -> Counter[str]:
        codes, names = self._codes_of(facet)
        sums = np.bincount(codes, by_facets, len(names))
        found = ((names[index], sums[index]) for index in np.flatnonzero(sums).tolist())
        return Counter({name: weight for name, weight in found if search in name.casefold()})

    def _sum_traces(self, selection: Selection, step_ns: int = 0, search: str = "") -> tuple[Counter[str], int]:
        """Return the weights of the heaviest traces of each part, and of these, and how many others the parts have."""
        parts, count = [(np.zeros(0, "S1"), np.zeros(0))], 0
        for columns, rows in self._rows(selection, step_ns):
            spans = columns.spans
            by_span = np.bincount(columns.span[rows], columns.weights[selection.value][rows], len(spans.ids))
            sums = np.bincount(spans.trace_of, by_span)
            if search:
                sums[np.char.find(spans.traces, search.encode(errors="replace")) < 0] = 0
            found = np.flatnonzero(sums)
            count += len(found)
            parts.append(_heaviest(spans.traces[found], sums[found]))
        traces, sums = _heaviest(*map(np.concatenate, zip(*parts, strict=True)))
        weights = Counter[str]()
        for trace, weight in zip(traces.tolist(), sums.tolist(), strict=True):
            weights[trace.decode()] += weight
        has_others = weights.pop(OTHER_TRACES, 0) > 0  # they count as one: how many they are is not known
        return weights, count - len(traces) + has_others

    def _ranks(self, columns: Columns, rows: slice | Numbers, facet: str, names: Sequence[str]) -> Numbers:
        """Return for each of some samples the index of its value among `names`; their number for others."""
        indexes = {name: index for index, name in enumerate(names)}
        if facet == TRACE:
            ranks = np.full(len(columns.spans.traces), len(names), np.int8)
            for name, index in indexes.items():
                ranks[columns.spans.traces == name.encode()] = index
            return ranks[columns.spans.trace_of].take(columns.span[rows])
        codes, values = self._codes_of(facet)
        return np.array([indexes.get(value, len(names)) for value in values], np.int8)[codes].take(columns.facets[rows])

    def _allowed(self, filters: Mapping[str, frozenset[str]]) -> Numbers:
        """Return for all facets if the filters let them through.

        Raises:
            ValueError: there is no such facet.
        """
        self._check_facets(filters.keys() - {SPAN_ID})
        allowed = np.ones(len(self.facets), bool)
        for name, wanted in filters.items():
            if name not in _OF_SPANS:
                codes, names = self._codes_of(name)
                allowed &= np.array([value in wanted for value in names], bool)[codes]
        return allowed

    def _codes_of(self, facet: str) -> tuple[Numbers, list[str]]:
        """Return the values of a facet, and for all facets the index of theirs."""
        codes, indexes = self._codes.get(facet, (array("i"), {}))
        if facet in FACETS or facet.removeprefix(LABEL) in self.labels:  # names come from outside
            self._codes[facet] = codes, indexes
        for facets in self.facets[len(codes) :]:
            codes.append(indexes.setdefault(facet_value(facets, facet), len(indexes)))
        return np.array(codes, np.int32), list(indexes)

    @staticmethod
    def _check_facets(names: Collection[str]) -> None:
        for name in names:
            if name not in FACETS and name != TRACE and not name.startswith(LABEL):
                raise ValueError(f"there is no facet {name}")


def _heaviest(traces: Numbers, sums: Numbers) -> tuple[Numbers, Numbers]:
    """Return the heaviest of some traces, and their weights."""
    if len(sums) <= _MAX_TRACES:
        return traces, sums
    indexes = np.argpartition(-sums, _MAX_TRACES)[:_MAX_TRACES]
    return traces[indexes], sums[indexes]
