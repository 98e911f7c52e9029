"""Whose code the files of a profile are, as Datadog's profilers attach it: ``code-provenance.json``.

Pure: data in, bytes out; imports the model. A file that is listed nowhere is the application's, so that those of
the application are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from splunk_profiler.model import CodeOrigin, Frame, OriginKind, Profile

_PAUSE_EVERY = 64  # aggregates, or frames, between two calls of `pause`
_KIND_NAMES = {OriginKind.STANDARD_LIBRARY: "stdlib", OriginKind.LIBRARY: "unknown"}  # of what is in no distribution


def message(
    profiles: Iterable[Profile], origin_of: Callable[[str, str], CodeOrigin], pause: Callable[[], None] = lambda: None
) -> bytes:
    """The attachment for `profiles`, not compressed.

    Args:
        profiles: those it goes with.
        origin_of: file and namespace of a frame → whose code it is.
        pause: called again and again in between, so that other threads may run.
    """
    frames: set[Frame] = set()
    aggregates = (aggregate for profile in profiles for aggregate in profile.aggregates)
    for number, aggregate in enumerate(aggregates, 1):
        if number % _PAUSE_EVERY == 0:
            pause()
        frames.update(aggregate.stack.frames)
    files: dict[CodeOrigin, set[str]] = {}
    for number, frame in enumerate(frames, 1):
        if number % _PAUSE_EVERY == 0:
            pause()
        origin = origin_of(frame.file, frame.namespace)
        if origin.kind in _KIND_NAMES:
            files.setdefault(origin, set()).add(frame.file)
    libraries = [
        {
            "kind": origin.kind.value,
            "name": _KIND_NAMES[origin.kind]
            if origin.kind is OriginKind.STANDARD_LIBRARY or not origin.name
            else origin.name,
            "version": origin.version,
            "paths": sorted(paths),
        }
        for origin, paths in sorted(files.items(), key=lambda item: (item[0].kind.value, item[0].name))
    ]
    return json.dumps({"v1": libraries}, separators=(",", ":")).encode("ascii")
