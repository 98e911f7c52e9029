"""The user's labels as samples carry them: texts of bounded length, under names that are none of the profiler's own.

Runs on the sampling worker's thread, once for each set of labels. Imports `user_labels` and nothing else of ours.
Host profilers show less of a label, because their readers do (`user_labels.encode`).
"""

from __future__ import annotations

from splunk_profiler.user_labels import OUTLET, LabelSet

MOST_LABELS = 10
MOST_NAME_CHARACTERS = 64
MOST_VALUE_CHARACTERS = 128

# What the profiler puts on samples itself, and the first parts of such names. A label of the user's with a name like
# that is sent under another one: a reader must not take what a program says for what was measured.
OWN_NAMES = frozenset({"trace_id", "span_id", "trace_flags", "local_root_span_id", "endpoint"})
OWN_PREFIXES = ("source.event.", "thread.", "gc.", "profiling.")
INSTEAD = "user."

Labels = tuple[tuple[str, str], ...]


def on_samples(labels: LabelSet | None) -> Labels:
    """The labels of a sample, in one order however they came about."""
    return () if labels is None else labels.on_samples(_shown)


def _shown(pairs: dict[str, str]) -> Labels:
    shown: dict[str, str] = {}
    for name, value in pairs.items():
        sent = _cut(_renamed(name), MOST_NAME_CHARACTERS, f"the name of the label {name!r}")
        if not name:
            OUTLET.say_once("sample.empty", "a label without a name is not on the samples")
        elif sent not in shown and len(shown) == MOST_LABELS:
            OUTLET.say_once("sample.many", f"the label {name!r} is not on the samples: they carry {MOST_LABELS}")
        else:
            shown[sent] = _cut(value, MOST_VALUE_CHARACTERS, f"the value of the label {name!r}")
    return tuple(sorted(shown.items()))


def _renamed(name: str) -> str:
    name = str.__str__(name)  # whatever a subclass makes of it: names are keys from here on
    return INSTEAD + name if name in OWN_NAMES or name.startswith(OWN_PREFIXES) else name


def _cut(text: str, most: int, what: str) -> str:
    if len(text) <= most:
        return text
    OUTLET.say_once("sample.long", f"{what} is cut on samples: it has {len(text)} characters, and they carry {most}")
    return text[:most]
