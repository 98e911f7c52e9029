"""The origins of a profile's files, as Datadog's profilers attach them: ``code-provenance.json``.

Pure: data in, bytes out; imports `model` and `samples`. Datadog counts files that are not listed as the
application's, so the application's own are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from splunk_profiler.formats.pauses import iter_with_pauses
from splunk_profiler.model import Frame
from splunk_profiler.samples import CodeOrigin, OriginKind, Profile

_KIND_NAMES = {OriginKind.STANDARD_LIBRARY: "stdlib", OriginKind.LIBRARY: "unknown"}  # for files of no distribution


def message(
    profile: Profile, origin_of: Callable[[str, str], CodeOrigin], pause: Callable[[], None] | None = None
) -> bytes:
    """Return the attachment for a request with `profile`, not compressed; `pause` lets other threads run.

    `origin_of` returns the origin of a frame by file and namespace.
    """
    frames: set[Frame] = set()
    for aggregate in iter_with_pauses(profile.aggregates, pause):
        frames.update(aggregate.stack.frames)
    files: dict[CodeOrigin, set[str]] = {}
    for frame in iter_with_pauses(frames, pause):
        origin = origin_of(frame.file, frame.namespace)
        if origin.kind in _KIND_NAMES:
            files.setdefault(origin, set()).add(frame.file)
    libraries = [
        {
            "kind": origin.kind.value,
            "name": (origin.kind is OriginKind.LIBRARY and origin.name) or _KIND_NAMES[origin.kind],
            "version": origin.version,
            "paths": sorted(paths),
        }
        for origin, paths in sorted(files.items(), key=lambda item: (item[0].kind.value, item[0].name))
    ]
    return json.dumps({"v1": libraries}, separators=(",", ":")).encode("ascii")
