"""Parts of a store: columns as bytes, joined, and summed by minute. Pure."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from splunk_profiler.viewer.columns import Columns, SpanKeys, last_times, span_keys
from splunk_profiler.viewer.model import LONG_PROFILE_NS, MINUTE_NS, NO_SPAN
from splunk_profiler.viewer.recording import IN_USE
from splunk_profiler.viewer.stacks import Numbers

_LEVEL = 1  # of compression: others take twice the time for a tenth of the size


def pack(columns: Columns) -> bytes:
    """Return samples as an archive of arrays in numpy's format, each in as few bytes as its numbers need."""
    buffer = io.BytesIO()
    arrays = {
        "time": np.diff(columns.time_ns, prepend=0),
        "stack": columns.stack,
        "facets": columns.facets,
        "span": columns.span,
        "traces": columns.spans.traces,
        "trace_of": columns.spans.trace_of,
        "span_ids": columns.spans.ids,
        "longest": np.array([columns.longest_ns, columns.end_ns, columns.usual_ns]),
        **{f"weights{index}": weights for index, weights in enumerate(columns.weights.values())},
    }
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, _smallest(array), allow_pickle=False)
    return buffer.getvalue()


def unpack(content: bytes, names: Sequence[str]) -> Columns:
    """Return the samples of `pack`; `names` are those of the values.

    Raises:
        ValueError: the content is damaged.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            time_ns = np.cumsum(arrays["time"], dtype=np.int64)
            weights = {name: arrays[f"weights{index}"] for index, name in enumerate(names)}
            spans = SpanKeys(*(arrays[name] for name in ("traces", "trace_of", "span_ids")))
            lengths = arrays.get("longest", np.zeros(1, np.int64)).tolist()
            if len(lengths) == 1:  # of an older version
                lengths += [0, min(lengths[0], LONG_PROFILE_NS)]
            return Columns(time_ns, arrays["stack"], arrays["facets"], arrays["span"], weights, spans, *lengths)
    except (EOFError, KeyError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"a part is damaged: {error}") from None


def rows_of(columns: Columns, rows: slice | Numbers) -> Columns:
    """Return some of the samples; none is of a span that they are not of."""
    used, span = np.unique(np.append(0, columns.span[rows]), return_inverse=True)
    traces, trace_of = np.unique(columns.spans.trace_of[used], return_inverse=True)
    spans = SpanKeys(columns.spans.traces[traces], trace_of, columns.spans.ids[used])
    weights = {name: each[rows] for name, each in columns.weights.items()}
    found = Columns(
        columns.time_ns[rows], columns.stack[rows], columns.facets[rows], span[1:], weights, spans, columns.longest_ns
    )
    return replace(found, last_end_ns=min(found.end_ns, columns.end_ns), usual_ns=columns.usual_ns)


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the samples of parts that have the same values."""
    order = np.argsort(np.concatenate([part.time_ns for part in parts]), kind="stable")
    offsets = np.cumsum([0, *(len(part.spans.ids) for part in parts)])
    traces, trace_of = np.unique(
        np.concatenate([part.spans.traces[part.spans.trace_of] for part in parts]), return_inverse=True
    )
    spans = SpanKeys(traces, trace_of, np.concatenate([part.spans.ids for part in parts]))
    time_ns, stack, facets, span = (
        np.concatenate(each)[order]
        for each in (
            [part.time_ns for part in parts],
            [part.stack for part in parts],
            [part.facets for part in parts],
            # As few bits as a part needs would not hold the sums, which numpy before version 2 leaves in them.
            [part.span.astype(np.int64) + offset for part, offset in zip(parts, offsets, strict=False)],
        )
    )
    weights = {name: np.concatenate([part.weights[name] for part in parts])[order] for name in parts[0].weights}
    lengths = (max(getattr(part, name) for part in parts) for name in ("longest_ns", "end_ns", "usual_ns"))
    return Columns(time_ns, stack, facets, span, weights, spans, *lengths)


def by_minute(columns: Columns, process_of: Numbers) -> list[Columns]:
    """Return one sample for each stack with the same facets in a minute, without spans.

    Of values that say what is in use each process's last profile in a minute stays as it is: they come apart.

    Args:
        columns: the samples.
        process_of: a number for the process of each sample.
    """
    in_use = [name for name in columns.weights if name.startswith(IN_USE)]
    added = [name for name in columns.weights if not name.startswith(IN_USE)]
    minute = columns.time_ns // MINUTE_NS
    result = []
    if added:
        result.append(_summed(columns, minute * MINUTE_NS, added))
    if in_use:
        minutes, index = np.unique(minute, return_inverse=True)
        profile = process_of.astype(np.int64) * len(minutes) + index
        last_ns = last_times([(profile, columns.time_ns)])
        kept = rows_of(columns, np.flatnonzero(columns.time_ns == last_ns[profile]))
        result.append(_summed(kept, kept.time_ns, in_use))
    return result


def _summed(columns: Columns, time_ns: Numbers, names: Sequence[str]) -> Columns:
    """Return sums for each stack with the same facets and time."""
    order = np.lexsort((columns.facets, columns.stack, time_ns))
    keys = [each[order].astype(np.int64) for each in (time_ns, columns.stack, columns.facets)]
    changes = np.logical_or.reduce([np.diff(key, prepend=-1) != 0 for key in keys])
    changes[:1] = True
    first = np.flatnonzero(changes)
    weights = {name: np.add.reduceat(columns.weights[name][order].astype(np.int64), first) for name in names}
    time_ns, stack, facets = (key[first] for key in keys)
    span, longest_ns = np.zeros(len(first), np.uint8), max(columns.longest_ns, MINUTE_NS)
    lengths = longest_ns, max(columns.end_ns, int(time_ns.max(initial=0)) + MINUTE_NS), max(columns.usual_ns, MINUTE_NS)
    return Columns(time_ns, stack, facets, span, weights, span_keys([NO_SPAN]), *lengths)


def _smallest(array: Numbers) -> Numbers:
    """Return whole numbers in the type with the fewest bytes that has all of them."""
    if array.dtype.kind in "iu" and len(array):
        low, high = array.min(), array.max()
        for kind in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return array.astype(kind)
    return array
