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
from typing import Any

import numpy as np

from splunk_profiler.formats.profile_proto import ProfileMessage
from splunk_profiler.system.printable import printable
from splunk_profiler.viewer.model import Function
from splunk_profiler.viewer.stacks import Numbers, WeightedStacks

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

_GZIP_LEVEL = 1  # takes half the time of level 6 for a fiftieth more bytes
_SPEEDSCOPE_UNITS = {"nanoseconds": "nanoseconds", "bytes": "bytes"}


def folded(stacks: WeightedStacks, functions: Sequence[Function]) -> str:
    """Return a line for each stack; lines of one function are summed up."""
    sums: dict[str, int] = {}
    names = [printable(function.name).replace(";", ":") for function in functions]
    for stack, weight in zip(stacks.of_each(stacks.functions), stacks.weights.tolist(), strict=True):
        line = ";".join(map(names.__getitem__, stack))
        sums[line] = sums.get(line, 0) + weight
    return "".join(f"{line or '(no stack)'} {weight}\n" for line, weight in sorted(sums.items()))


def speedscope(stacks: WeightedStacks, functions: Sequence[Function], value: str, unit: str) -> str:
    """Return a profile of type ``sampled`` as JSON; a frame has the first line of its function in these stacks."""
    is_used = np.bincount(stacks.functions) > 0  # of a small selection they are few
    lines = np.full(len(is_used), np.iinfo(np.int32).max, np.int32)
    np.minimum.at(lines, stacks.functions, stacks.lines)
    indexes = np.cumsum(is_used) - 1
    profile = {
        "type": "sampled",
        "name": value,
        "unit": _SPEEDSCOPE_UNITS.get(unit, "none"),
        "startValue": 0,
        "endValue": int(stacks.weights.sum()),
        "samples": list(stacks.of_each(indexes[stacks.functions])),
        "weights": stacks.weights.tolist(),
    }
    frames = [
        {"name": functions[index].name, "file": functions[index].file, **({"line": line} if line else {})}
        for index, line in zip(np.flatnonzero(is_used).tolist(), lines[is_used].tolist(), strict=True)
    ]
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "splunk-profiler",
        "shared": {"frames": frames},
        "profiles": [profile],
        "activeProfileIndex": 0,
    }
    return json.dumps(document)


def pprof(
    stacks: WeightedStacks, functions: Sequence[Function], value: str, unit: str, period_ns: tuple[int, int]
) -> bytes:
    """Return a gzipped profile with that value; `period_ns` are when it begins and ends."""
    since_ns, until_ns = period_ns
    message = ProfileMessage(time_nanos=since_ns, duration_nanos=max(0, until_ns - since_ns))
    strings: dict[str, int] = {"": 0}

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    message.sample_type.add(type=string(value), unit=string(unit))
    mappings = {"python": 1}  # the first one names the profile
    locations, used = _locations(stacks, len(functions))
    for stack, weight in zip(stacks.of_each(locations), stacks.weights.tolist(), strict=True):
        message.sample.add(location_id=stack[::-1], value=[weight])
    for location, function_id, line in used:
        mapping = mappings.setdefault(functions[function_id].kind or "python", len(mappings) + 1)
        message.location.add(id=location, mapping_id=mapping).line.add(function_id=function_id + 1, line=line)
    for kind, mapping in mappings.items():
        entry = message.mapping.add(id=mapping, filename=string(kind))
        entry.has_functions = entry.has_filenames = entry.has_line_numbers = True
    for function_id in dict.fromkeys(function_id for _, function_id, _ in used):
        function = functions[function_id]
        name = string(function.name)
        message.function.add(id=function_id + 1, name=name, system_name=name, filename=string(function.file))
    message.string_table.extend(text.encode(errors="replace").decode() for text in strings)
    return gzip.compress(message.SerializeToString(), _GZIP_LEVEL, mtime=0)


def _locations(stacks: WeightedStacks, count: int) -> tuple[Numbers, list[tuple[int, int, int]]]:
    """Return the location of each frame, which is a number, and for each location that, its function and its line.

    A function has one for each line from its first to its last: to number only those that frames have would take as
    long as all else.

    Args:
        stacks: the frames.
        count: of all functions.
    """
    # Of the type of the lines: any other takes thirty times as long.
    first, last = np.full(count, np.iinfo(np.int32).max, np.int32), np.full(count, -1, np.int32)
    np.minimum.at(first, stacks.functions, stacks.lines)
    np.maximum.at(last, stacks.functions, stacks.lines)
    starts = np.cumsum(np.append(1, np.maximum(0, last.astype(np.int64) - first + 1)))
    offsets = starts[:-1] - first
    locations = offsets[stacks.functions] + stacks.lines
    in_order = np.sort(locations)
    used = in_order[np.diff(in_order, prepend=0) > 0]
    functions = np.searchsorted(starts, used, "right") - 1
    columns = used, functions, used - offsets[functions]
    return locations, list(zip(*(each.tolist() for each in columns), strict=True))


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
