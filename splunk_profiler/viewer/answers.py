"""The answers of the page's server as data for JSON, from the files that are shown. Runs on any thread.

Times are text, since JavaScript's numbers do not hold nanoseconds since the epoch.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from splunk_profiler.viewer import exports
from splunk_profiler.viewer.columns import is_span_key
from splunk_profiler.viewer.model import SPAN_ID, TRACE, Baseline, FacetValues, Function, Selection, TopRow
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.source import Source
from splunk_profiler.viewer.source_lines import read_source, source_rows
from splunk_profiler.viewer.stacks import Numbers
from splunk_profiler.viewer.trees import SMALL, call_tree, line_weights, span_tree, top_table

MAX_FRAMES = 50_000
_MAX_ROWS = 500
_MAX_SPANS = 2000
_BUCKETS = 120
_VALUES_FIRST = ("cpu", "wall", "samples")
_SMALL_FRAMES = Function("(small)", "", "")
_PLACES = {"parent", "function", "line"}  # columns of frames that are not weights
_KINDS = {"application": 1, "library": 2, "standard-library": 3}


class _BaselineWeights(NamedTuple):
    """The weights of a baseline, and the factor by which they are to be scaled."""

    weights: Numbers
    scale: float


class Answers:
    """The answers about `live`; each reads first what has been added. One at a time.

    A facet or a way to compare that is not known raises `ValueError`.
    """

    def __init__(self, live: Source) -> None:
        self._live = live
        self._lock = threading.Lock()
        self._pages_being_made = 0

    def overview(self) -> dict[str, Any]:
        """Return the values that there are, the time, and what was read."""
        with self._lock:
            recording = self._refreshed()
            since_ns, until_ns = recording.period_ns()
            return {
                "values": [{"name": name, "unit": recording.units[name]} for name in _values(recording)],
                "facets": recording.facet_names(),
                "since": str(since_ns),
                "until": str(until_ns),
                "samples": recording.count(),
                "source": self._live.name,
                "version": self._live.version,
                "follows": self._live.follows,
                "note": self._live.note,
            }

    def flame(
        self,
        selection: Selection,
        inverted: bool,
        baseline: Baseline | None = None,
        function: tuple[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return a call tree: functions (name, file, kind), and frames by column, of which the first is the root.

        Columns are packed: weights in floating point of 64 bits, all others as whole numbers of 32 bits.

        Args:
            selection: of which samples.
            inverted: from leaves to roots.
            baseline: frames then have the column `before`.
            function: name and file of the one with which the tree begins: its callees, or its callers if `inverted`.
        """
        with self._lock:
            recording = self._refreshed()
            weights, before = self._compared(selection, baseline)
            index = None if function is None else recording.find_function(*function)
            return {**_flame(recording, weights, inverted, before, index), "version": self._live.version}

    def top(
        self,
        selection: Selection,
        search: str,
        baseline: Baseline | None = None,
        *,
        by_total: bool = False,
        only_gone: bool = False,
    ) -> dict[str, Any]:
        """Return the functions whose name or file has the text, those with the most of their own or in all first.

        With a baseline each row ends with both weights there, and what differs most comes first. `gone` are then the
        number of functions that only the baseline has, and their own weights; `only_gone` leaves out all others.
        """
        with self._lock:
            recording = self._refreshed()
            weights, before = self._compared(selection, baseline)
            rows = top_table(recording.stacks, weights, *(before or ()), by_total=by_total)
            gone = [row for row in rows if not row.total]
            shown = _shown(recording, gone if only_gone else rows, search, is_compared=before is not None)
            of_gone = len(gone), round(sum(row.own_before for row in gone))
            return {"total": round(weights.sum()), **shown, "gone": of_gone, "version": self._live.version}

    def facets(self, selection: Selection, facet: str = "", search: str = "") -> dict[str, Any]:
        """Return by facet the heaviest `facets`, each a value and its weight, and how many `more` values there are.

        Args:
            selection: of which samples; the filter by a facet does not choose among its own values.
            facet: this one alone, if it is given.
            search: only values that have this text, and how many more have it. The whole id of a trace is asked for.
        """
        with self._lock:
            known = self._refreshed().facet_names()
            names = [facet] if facet else known
            by_recording: dict[Recording, list[str]] = {}
            for name in names:
                asked = selection.without(name)
                if name == TRACE and search and is_span_key((search, "")):
                    asked = selection.of_trace(search.casefold())
                by_recording.setdefault(self._live.recording_of(asked), []).append(name)
            found: dict[str, FacetValues] = {}
            for recording, of_it in by_recording.items():
                found.update(recording.facet_values(selection, of_it, search))
            return {
                "facets": {name: found[name].values for name in names},
                "more": {name: found[name].more for name in names},
                "version": self._live.version,
            }

    def timeline(self, selection: Selection, facet: str) -> dict[str, Any]:
        """Return the weights over the time of a selection, by a facet."""
        with self._lock:
            self._refreshed()
            line = self._live.recording_of(selection).timeline(selection, facet, _BUCKETS)
            times = {"start": str(line.start_ns), "step": str(line.step_ns)}
            return {**times, "series": line.series, "version": self._live.version}

    def source(
        self, selection: Selection, function: tuple[str, str], baseline: Baseline | None = None
    ) -> dict[str, Any]:
        """Return the lines of a function with their weights, and as `total` that of all stacks that have it.

        Rows are number, text, own and total, with a baseline also both there. The text is empty unless the file is on
        this machine, and one of Python. Lines around are there without weights.
        """
        with self._lock:
            recording = self._refreshed()
            of_stacks, before = self._compared(selection, baseline)
            index = recording.find_function(*function)
            weights = line_weights(recording.stacks, of_stacks, index)
            if before is not None:
                earlier = line_weights(recording.stacks, before.weights, index)
                weights = {
                    line: (
                        *weights.get(line, (0, 0)),
                        *(_round(before.scale * each) for each in earlier.get(line, (0, 0))),
                    )
                    for line in weights.keys() | earlier.keys()
                }
            having, _, _ = recording.stacks.built().parts_of(index, False, of_stacks != 0)
            version = self._live.version
        texts = read_source(Path(function[1])) if index >= 0 else []
        rows = source_rows(texts, weights)
        total = round(of_stacks[having].sum())
        return {"total": total, "isFound": bool(texts), "rows": rows, "version": version}

    def trace(self, selection: Selection, trace: str) -> dict[str, Any]:
        """Return the spans of a trace, children below their parents, and what was sampled in each.

        Rows are id, depth, name, service, start and duration in ns from the trace's start, weight, and the ids of the
        host profiler's stacks. `note` says what is missing, and is empty if nothing is.
        """
        whole = selection.without(SPAN_ID).of_trace(trace)
        with self._lock:
            self._refreshed()
            rows = span_tree(self._live.spans_of(trace))
            recording = self._live.recording_of(whole)
            weights, note, version = recording.span_weights(whole), recording.note, self._live.version
        start_ns = min((row.span.start_ns for row in rows), default=0)
        end_ns = max((row.span.end_ns for row in rows), default=0)
        shown = [
            [
                span.id,
                depth,
                span.name,
                span.service,
                span.start_ns - start_ns,
                span.end_ns - span.start_ns,
                weights.pop(span.id, 0),
                list(span.host_stacks),
            ]
            for depth, span in rows[:_MAX_SPANS]
        ]
        rest = sum(weights.values())
        about = {"spans": len(rows), "duration": end_ns - start_ns, "rest": rest, "note": note, "version": version}
        return {**about, "rows": shown}

    def page(
        self,
        selection: Selection,
        baseline: Baseline | None = None,
        function: tuple[str, str] | None = None,
        state: Sequence[tuple[str, str]] = (),
        *,
        shown_ns: tuple[int | None, int | None] = (None, None),
    ) -> bytes:
        """Return one file for a browser with all answers on a selection, for each value.

        No new records are read meanwhile, also not for others: all are about the same ones. Of ClickHouse names of
        spans that end meanwhile may come.

        Args:
            selection: of which samples; with one trace its spans are there as well.
            baseline: what it is compared with.
            function: name and file of the one with which trees begin, whose source is there as well.
            state: parameters of the page that it begins with.
            shown_ns: when the timeline begins and ends.
        """
        with self._unchanged():
            overview = self.overview()
            values = {}
            for name in (each["name"] for each in overview["values"]):
                chosen = replace(selection, value=name)
                before = baseline and baseline._replace(selection=replace(baseline.selection, value=name))
                answers: dict[str, Any] = {
                    "flame": self.flame(chosen, False, before, function),
                    "inverted": self.flame(chosen, True, before, function),
                    "top": {sort: self.top(chosen, "", before, by_total=sort == "total") for sort in ("own", "total")},
                    "facets": self.facets(chosen),
                    "timeline": {facet: self.timeline(chosen.at(shown_ns), facet) for facet in overview["facets"]},
                }
                if function is not None:
                    answers["source"] = self.source(chosen, function, before)
                if len(traces := selection.filters.get(TRACE, ())) == 1:
                    answers["trace"] = self.trace(chosen, next(iter(traces)))
                if function is not None and ("trace" in answers or ("view", "trace") in state):
                    answers["all"] = self.flame(chosen, False, before)  # that view has the stacks of all functions
                values[name] = answers
        data = {"overview": overview, "state": list(state) or [("value", selection.value)], "values": values}
        return exports.html(data).encode(errors="replace")

    def export(
        self, selection: Selection, form: str, function: tuple[str, str] | None = None, *, inverted: bool = False
    ) -> bytes:
        """Return the selection as ``folded``, ``speedscope`` or ``pprof``.

        Args:
            selection: of which samples.
            form: the name of the format.
            function: name and file of the one with which stacks begin, or end if `inverted`, as in the graph.
            inverted: has no effect without a function.

        Raises:
            ValueError: there is no such format.
        """
        with self._lock:
            recording = self._refreshed()
            weights = self._weights(selection)
            index = None if function is None else recording.find_function(*function)
            stacks, functions = recording.stacks.weighted(weights, index, inverted), recording.functions
            unit = recording.units.get(selection.value, "count")
            period_ns = recording.ends_ns(selection)
        # Of many stacks this takes seconds, in which other questions are answered; the functions only grow.
        if form == "folded":
            return exports.folded(stacks, functions).encode(errors="replace")
        if form == "speedscope":
            return exports.speedscope(stacks, functions, selection.value, unit).encode()
        if form == "pprof":
            return exports.pprof(stacks, functions, selection.value, unit, period_ns)
        raise ValueError(f"there is no format {form}: it is folded, speedscope, pprof or html")

    def default_value(self) -> str:
        """Return the value that is shown first; empty if there is none."""
        with self._lock:
            return next(iter(_values(self._refreshed())), "")

    def _weights(self, selection: Selection) -> Numbers:
        """Return the weights of the stacks of a selection."""
        return self._live.recording_of(selection).weights(selection)

    def _compared(self, selection: Selection, baseline: Baseline | None) -> tuple[Numbers, _BaselineWeights | None]:
        """Return the weights of the stacks of a selection, and of its baseline."""
        if baseline is None:
            return self._weights(selection), None
        self._live.recording_of(baseline.selection)  # may add stacks to the table, and weights are of all in it
        weights, before = map(self._weights, (selection, baseline.selection))
        if baseline.by == "time":
            recording = self._live.recording
            scale = recording.duration_ns(selection) / recording.duration_ns(baseline.selection)
        elif baseline.by == "share":
            scale = weights.sum() / (before.sum() or 1)
        elif baseline.by == "requests":
            requests, requests_before = map(self._live.count_requests, (selection, baseline.selection))
            if not requests or not requests_before:
                raise ValueError("no requests of one of the two were received: scale to the same time or total")
            scale = requests / requests_before
        else:
            raise ValueError(f"there is no comparison by {baseline.by}: it is time, share or requests")
        return weights, _BaselineWeights(before, scale)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Read no new records in the block, also not on other threads."""
        with self._lock:
            self._refreshed()
            self._pages_being_made += 1
        try:
            yield
        finally:
            with self._lock:
                self._pages_being_made -= 1

    def _refreshed(self) -> Recording:
        if not self._pages_being_made:
            self._live.refresh()
        return self._live.recording


def _values(recording: Recording) -> list[str]:
    """Return the values that any sample has, the usual ones first."""
    return sorted(recording.values, key=lambda name: (*(name != first for first in _VALUES_FIRST), name))


def _flame(
    recording: Recording, weights: Numbers, inverted: bool, before: _BaselineWeights | None, function: int | None
) -> dict[str, Any]:
    tree = call_tree(
        recording.stacks,
        weights,
        inverted=inverted,
        before=None if before is None else before.weights,
        function=function,
        max_nodes=MAX_FRAMES,
    )
    if inverted:  # what runs by itself is below the root
        tree = tree._replace(own=np.where((tree.parent == 0) & (function is None), tree.total, 0))
    used, indexes = np.unique(tree.function, return_inverse=True)
    functions = (_SMALL_FRAMES if index == SMALL else recording.functions[index] for index in used.tolist())
    frames = tree._replace(function=indexes)._asdict()
    if before is None:
        del frames["before"]
    else:
        scaled = tree.before * before.scale
        frames["before"] = np.where(scaled > 0, np.maximum(scaled, 1), scaled)  # as `_round`
    return {
        "total": round(tree.total[0]),
        "before": 0 if before is None else round(frames["before"][0]),
        "functions": [[name, file, _KINDS.get(kind, 0)] for name, file, kind in functions],
        "frames": {name: _packed(column, "<i4" if name in _PLACES else "<f8") for name, column in frames.items()},
    }


def _packed(numbers: Numbers, form: str) -> str:
    """Return whole numbers in base64, as typed arrays of JavaScript have them: JSON takes many times as long."""
    return base64.b64encode(np.rint(numbers).astype(form).tobytes()).decode()


def _round(number: float) -> int:
    """Round, but nothing above 0 to 0: a function with some weight in a scaled baseline is not new."""
    return round(number) or int(number > 0)


def _shown(recording: Recording, found: Sequence[TopRow], search: str, *, is_compared: bool) -> dict[str, Any]:
    """Return the first rows whose function or file has the text, and how many there are."""
    if sought := search.casefold():
        functions = recording.functions
        found = [row for row in found if any(sought in text.casefold() for text in functions[row.function][:2])]
    rows = []
    for row in found[:_MAX_ROWS]:
        name, file, kind = recording.functions[row.function]
        sums = row.own, row.total, *((row.own_before, row.total_before) if is_compared else ())
        rows.append([name, file, row.line, _KINDS.get(kind, 0), *map(_round, sums)])
    return {"functions": len(found), "rows": rows}
