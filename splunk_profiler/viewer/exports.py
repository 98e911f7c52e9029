"""The stacks of a selection in the formats of other tools, and as one file for a browser.

Specifications: ``proto/profile.proto`` of the pprof project; speedscope's ``file-format-schema.json``; folded stacks
are lines of names joined by ``;``, and a weight.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import count
from typing import Any

from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.system.printable import printable
from splunk_profiler.viewer.model import Function, Weighted

PAGE_FILES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "text.js": "text/javascript",
    "flame.js": "text/javascript",
    "graphs.js": "text/javascript",
    "tables.js": "text/javascript",
    "facets.js": "text/javascript",
    "trace.js": "text/javascript",
    "timeline.js": "text/javascript",
    "app.js": "text/javascript",
}

_SPEEDSCOPE_UNITS = {"nanoseconds": "nanoseconds", "bytes": "bytes"}


def folded(stacks: Sequence[Weighted], functions: Sequence[Function]) -> str:
    """Return a line for each stack; lines of one function are summed up."""
    sums: dict[str, int] = {}
    for stack, weight in stacks:
        names = ";".join(printable(functions[frame.function].name).replace(";", ":") for frame in stack)
        sums[names] = sums.get(names, 0) + weight
    return "".join(f"{names or '(no stack)'} {weight}\n" for names, weight in sorted(sums.items()))


def speedscope(stacks: Sequence[Weighted], functions: Sequence[Function], value: str, unit: str) -> str:
    """Return a profile of type ``sampled`` as JSON."""
    places: dict[int, int] = {}  # of those that are used: of a small selection they are few
    samples = [[places.setdefault(frame.function, len(places)) for frame in stack] for stack, _ in stacks]
    profile = {
        "type": "sampled",
        "name": value,
        "unit": _SPEEDSCOPE_UNITS.get(unit, "none"),
        "startValue": 0,
        "endValue": sum(weight for _, weight in stacks),
        "samples": samples,
        "weights": [weight for _, weight in stacks],
    }
    frames = [{"name": functions[place].name, "file": functions[place].file} for place in places]
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "splunk-profiler",
        "shared": {"frames": frames},
        "profiles": [profile],
        "activeProfileIndex": 0,
    }
    return json.dumps(document)


def pprof(
    stacks: Sequence[Weighted], functions: Sequence[Function], value: str, unit: str, period_ns: tuple[int, int]
) -> bytes:
    """Return a gzipped profile with that value; `period_ns` are when it begins and ends."""
    since_ns, until_ns = period_ns
    message = ProfileMessage(time_nanos=since_ns, duration_nanos=max(0, until_ns - since_ns))
    strings: dict[str, int] = {"": 0}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    message.sample_type.add(type=string(value), unit=string(unit))
    mappings = {"python": 1}  # the first one names the profile
    locations: dict[tuple[int, int], int] = {}
    ids = count(1)
    for stack, weight in stacks:
        for frame in stack:
            if frame not in locations:
                locations[frame] = next(ids)
        message.sample.add(location_id=[locations[frame] for frame in reversed(stack)], value=[weight])
    for (function_id, line), location in locations.items():
        mapping = mappings.setdefault(functions[function_id].kind or "python", len(mappings) + 1)
        message.location.add(id=location, mapping_id=mapping).line.add(function_id=function_id + 1, line=line)
    for kind, mapping in mappings.items():
        entry = message.mapping.add(id=mapping, filename=string(kind))
        entry.has_functions = entry.has_filenames = entry.has_line_numbers = True
    for function_id in sorted({function_id for function_id, _ in locations}):
        function = functions[function_id]
        name = string(function.name)
        message.function.add(id=function_id + 1, name=name, system_name=name, filename=string(function.file))
    message.string_table.extend(text.encode(errors="replace").decode() for text in strings)
    return gzip.compress(message.SerializeToString(), mtime=0)


def html(data: dict[str, Any]) -> str:
    """Return the page with its scripts, its style and the data in it, which no other file may change."""
    page, style, *scripts = map(page_file, PAGE_FILES)
    allowed = " ".join(map(_source_hash, scripts))
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_source_hash(style)}; img-src data:; base-uri 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">'
    saved = json.dumps(data).replace("<", "\\u003c")  # ends no script, and begins no comment
    inline = "".join(f"<script>{script}</script>\n" for script in scripts)
    page = page.replace("<head>", f"<head>\n{meta}", 1)
    page = page.replace('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>", 1)
    page = re.sub(r'<script src="[^"]*"></script>\s*', "", page)
    return page.replace("</body>", f'<script type="application/json" id="saved">{saved}</script>\n{inline}</body>', 1)


def page_file(name: str) -> str:
    """Return the text of a file of the page."""
    return files("splunk_profiler.viewer").joinpath("page").joinpath(name).read_text("utf-8")


def _source_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
