"""The answers of the page's server as data for JSON, from the files that are shown. Runs on any thread.

Times are text, since JavaScript's numbers do not hold nanoseconds since the epoch.
"""

from __future__ import annotations

import threading
from typing import Any

from splunk_profiler.viewer import exports
from splunk_profiler.viewer.model import Facets, Selection
from splunk_profiler.viewer.reading import LiveFiles
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.trees import SMALL, call_tree, prune, top_table

MAX_FRAMES = 50_000
_MAX_ROWS = 500
_BUCKETS = 120
_VALUES_FIRST = ("cpu", "wall", "samples")
_KINDS = {"application": 1, "library": 2, "standard-library": 3}


class Answers:
    """The answers about `live`; each reads first what has been added. One at a time."""

    def __init__(self, live: LiveFiles) -> None:
        self._live = live
        self._lock = threading.Lock()

    def overview(self) -> dict[str, Any]:
        """Return the values that there are, the time, and what was read."""
        with self._lock:
            recording = self._refreshed()
            return {
                "values": [{"name": name, "unit": recording.units[name]} for name in _values(recording)],
                "facets": list(Facets._fields),
                "since": str(recording.since_ns),
                "until": str(recording.until_ns),
                "samples": len(recording.samples),
                "source": str(self._live.path),
                "version": self._live.version,
                "unread": self._live.unread,
            }

    def flame(self, selection: Selection, inverted: bool) -> dict[str, Any]:
        """Return a call tree: texts once, and frames with places among them."""
        with self._lock:
            recording = self._refreshed()
            return _flame(recording, selection, inverted)

    def top(self, selection: Selection, search: str) -> dict[str, Any]:
        """Return the functions whose name or file has the text, the most of their own first."""
        with self._lock:
            return _top(self._refreshed(), selection, search)

    def facets(self, selection: Selection) -> dict[str, Any]:
        """Return the values of each facet with their weights."""
        with self._lock:
            return _facets(self._refreshed(), selection)

    def timeline(self, selection: Selection, facet: str) -> dict[str, Any]:
        """Return the weights over time, by a facet."""
        with self._lock:
            return _timeline(self._refreshed(), selection, facet)

    def export(self, selection: Selection, form: str) -> bytes:
        """Return the selection as ``folded``, ``speedscope``, ``pprof`` or ``html``.

        Raises:
            ValueError: there is no such format.
        """
        if form == "html":
            return exports.html(self._everything(selection)).encode(errors="replace")
        with self._lock:
            recording = self._refreshed()
            stacks, functions = recording.weighted(selection), recording.functions
            unit = recording.units.get(selection.value, "count")
        if form == "folded":
            return exports.folded(stacks, functions).encode(errors="replace")
        if form == "speedscope":
            return exports.speedscope(stacks, functions, selection.value, unit).encode()
        if form == "pprof":
            return exports.pprof(stacks, functions, selection.value, unit)
        raise ValueError(f"there is no format {form}: it is folded, speedscope, pprof or html")

    def default_value(self) -> str:
        """Return the value that is shown first; empty if there is none."""
        with self._lock:
            return next(iter(_values(self._refreshed())), "")

    def _everything(self, selection: Selection) -> dict[str, Any]:
        """Return all answers on a selection, for each value."""
        overview = self.overview()
        with self._lock:
            recording = self._live.recording
            by_value = {}
            for name in _values(recording):
                chosen = Selection(name, selection.since_ns, selection.until_ns, selection.filters)
                by_value[name] = {
                    "flame": _flame(recording, chosen, False),
                    "inverted": _flame(recording, chosen, True),
                    "top": _top(recording, chosen, ""),
                    "facets": _facets(recording, chosen),
                    "timeline": {facet: _timeline(recording, chosen, facet) for facet in Facets._fields},
                }
        filters = {name: sorted(values) for name, values in selection.filters.items()}
        times = {
            name: str(time_ns)
            for name, time_ns in (("since", selection.since_ns), ("until", selection.until_ns))
            if time_ns is not None
        }
        return {"overview": overview, "value": selection.value, "filters": filters, **times, "values": by_value}

    def _refreshed(self) -> Recording:
        self._live.refresh()
        return self._live.recording


def _values(recording: Recording) -> list[str]:
    """Return the values that any sample has, the usual ones first."""
    found = {name for sample in recording.samples for name in sample.weights}
    return sorted(found, key=lambda name: (*(name != first for first in _VALUES_FIRST), name))


def _flame(recording: Recording, selection: Selection, inverted: bool) -> dict[str, Any]:
    nodes = prune(call_tree(recording.weighted(selection), inverted=inverted), MAX_FRAMES)
    texts: dict[str, int] = {}
    frames = []
    for node in nodes[1:]:
        name, file, kind = ("(small)", "", "") if node.function == SMALL else recording.functions[node.function]
        text_places = [texts.setdefault(text, len(texts)) for text in (name, file)]
        frames.append([node.parent, *text_places, node.line, _KINDS.get(kind, 0), node.total, node.own])
    unit = recording.units.get(selection.value, "count")
    return {"unit": unit, "total": nodes[0].total, "texts": list(texts), "frames": frames}


def _top(recording: Recording, selection: Selection, search: str) -> dict[str, Any]:
    stacks = recording.weighted(selection)
    sought = search.casefold()
    rows = []
    matches = 0
    for row in top_table(stacks):
        name, file, kind = recording.functions[row.function]
        if sought in name.casefold() or sought in file.casefold():
            matches += 1
            if matches <= _MAX_ROWS:
                rows.append([name, file, row.line, _KINDS.get(kind, 0), row.own, row.total])
    unit = recording.units.get(selection.value, "count")
    return {"unit": unit, "total": sum(each.weight for each in stacks), "functions": matches, "rows": rows}


def _facets(recording: Recording, selection: Selection) -> dict[str, Any]:
    return {"facets": recording.facet_weights(selection)}


def _timeline(recording: Recording, selection: Selection, facet: str) -> dict[str, Any]:
    line = recording.timeline(selection, facet, _BUCKETS)
    unit = recording.units.get(selection.value, "count")
    return {"unit": unit, "start": str(line.start_ns), "step": str(line.step_ns), "series": line.series}
