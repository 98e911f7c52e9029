"""The user's labels as samples carry them: texts of bounded length, under names that are none of the profiler's own.

Runs on the sampling worker's thread, once for each set of labels. Imports `labels` and nothing else of ours.
Host profilers show less of a label, because their readers do (`labels.encode`).
"""

from __future__ import annotations

from collections.abc import Callable

from splunk_profiler.user_labels.labels import LABEL_PUBLISHER, LabelSet

MOST_LABELS = 10
MOST_NAME_CHARACTERS = 64
MOST_VALUE_CHARACTERS = 128

# What the profiler puts on samples itself, and the first parts of such names. A label of the user's with a name like
# that is sent under another one: a reader must not take what a program says for what was measured.
# The second half are the names that a Datadog agent is sent in place of some of them (`formats/datadog_pprof.py`).
OWN_NAMES = frozenset({"trace_id", "span_id", "trace_flags", "local_root_span_id", "endpoint"}) | frozenset(
    {"thread id", "thread native id", "thread name", "span id", "local root span id", "trace endpoint"}
)
OWN_PREFIXES = ("source.event.", "thread.", "gc.", "profiling.")
INSTEAD = "user."

Labels = tuple[tuple[str, str], ...]


Say = Callable[[str, str], None]


def on_samples(labels: LabelSet | None) -> Labels:
    """The labels of a sample, in one order however they came about."""
    return () if labels is None else labels.on_samples(_made)


def bounded(pairs: dict[str, str], say: Say) -> Labels:
    """Labels as samples carry them; `say` is told (kind, sentence) of each thing that is not as the user wrote it."""
    shown: dict[str, str] = {}
    for name, value in pairs.items():
        sent = _cut(_renamed(name), MOST_NAME_CHARACTERS, f"the name of the label {name!r}", say)
        if not name:
            say("sample.empty", "a label without a name is not on the samples")
        elif sent not in shown and len(shown) == MOST_LABELS:
            say("sample.many", f"the label {name!r} is not on the samples: they carry {MOST_LABELS}")
        else:
            shown[sent] = _cut(value, MOST_VALUE_CHARACTERS, f"the value of the label {name!r}", say)
    return tuple(sorted(shown.items()))


def _made(pairs: dict[str, str]) -> Labels:
    return bounded(pairs, LABEL_PUBLISHER.say_once)


def _renamed(name: str) -> str:
    name = str.__str__(name)  # a subclass may make of itself what it likes; from here on names are keys
    return INSTEAD + name if name in OWN_NAMES or name.startswith(OWN_PREFIXES) else name


def _cut(text: str, most: int, what: str, say: Say) -> str:
    if len(text) <= most:
        return text
    say("sample.long", f"{what} is cut on samples: it has {len(text)} characters, and they carry {most}")
    return text[:most]
