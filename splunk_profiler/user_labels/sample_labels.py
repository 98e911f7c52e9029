"""The user's labels as samples carry them: texts of bounded length, without names of the profiler's own.

Runs on the sampler thread, once for each set of labels. Imports `labels` and nothing else
of ours. Host profilers show less of a label, because their readers do (`labels.encode`).
"""

from __future__ import annotations

from splunk_profiler.user_labels.labels import LABEL_PUBLISHER, ActiveLabels, Warn

MAX_LABELS = 10
MAX_NAME_CHARACTERS = 64
MAX_VALUE_CHARACTERS = 128

# Names of the profiler's own labels, and their prefixes. The user's labels of such names are renamed, so that a reader
# does not take them for measurements. The second half replaces some names for Datadog (`formats/datadog_pprof.py`).
RESERVED_NAMES = frozenset({"trace_id", "span_id", "trace_flags", "local_root_span_id", "endpoint"}) | frozenset(
    {
        "thread id",
        "thread native id",
        "thread name",
        "span id",
        "local root span id",
        "trace endpoint",
        "exception type",
    }
)
RESERVED_PREFIXES = ("source.event.", "thread.", "gc.", "wait.", "task.", "exception.", "heap.", "profiling.")
USER_PREFIX = "user."

Labels = tuple[tuple[str, str], ...]


def encode_for_samples(labels: ActiveLabels | None) -> Labels:
    """Return the labels of a sample in canonical order."""
    if labels is None:
        return ()
    if labels.sample_form is None:
        labels.sample_form = bound_labels(labels.pairs, LABEL_PUBLISHER.warn_once)
    return labels.sample_form


def bound_labels(pairs: dict[str, str], warn: Warn) -> Labels:
    """Return labels as samples carry them; `warn` gets (kind, sentence) of each change."""
    kept_labels: dict[str, str] = {}
    for name, value in pairs.items():
        sample_name = _truncate(_avoid_reserved(name), MAX_NAME_CHARACTERS, f"the name of the label {name!r}", warn)
        if not name:
            warn("sample.empty", "a label without a name is not on the samples")
        elif sample_name not in kept_labels and len(kept_labels) == MAX_LABELS:
            warn("sample.many", f"the label {name!r} is not on the samples: they carry {MAX_LABELS}")
        else:
            kept_labels[sample_name] = _truncate(value, MAX_VALUE_CHARACTERS, f"the value of the label {name!r}", warn)
    return tuple(sorted(kept_labels.items()))


def _avoid_reserved(name: str) -> str:
    name = str.__str__(name)  # a subclass could override its hash
    return USER_PREFIX + name if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES) else name


def _truncate(text: str, max_characters: int, what: str, warn: Warn) -> str:
    if len(text) <= max_characters:
        return text
    warn("sample.long", f"{what} is cut on samples: it has {len(text)} characters, and they carry {max_characters}")
    return text[:max_characters]
