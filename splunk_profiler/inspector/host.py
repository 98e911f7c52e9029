"""The limits of real host profilers, applied to decoded memory.

The Elastic interface is read as upstream's eBPF profiler reads it, custom labels as Parca's agent does.
"""

from __future__ import annotations

from splunk_profiler.inspector.layouts import Limits, RawLabelSet, Slot
from splunk_profiler.inspector.model import CorrelationRecord, Interface, Label, Problem, ProcessStorage

HOST_LIMITS = Limits(slots=10, key_bytes=25, value_bytes=53)

_ELASTIC, _LABELS = Interface.ELASTIC, Interface.LABELS


def host_labels(label_set: RawLabelSet) -> tuple[Label, ...]:
    """Return the labels that Parca's agent shows: cut, only UTF-8 keys, of equal keys the last."""
    labels: dict[bytes, Label] = {}
    for slot in label_set.slots[: HOST_LIMITS.slots]:
        if slot.key is None or slot.value is None:
            continue
        key = _truncate(slot.key, HOST_LIMITS.key_bytes)
        if _is_text(key):
            labels[key] = Label(key, _truncate(slot.value, HOST_LIMITS.value_bytes))
    return tuple(labels.values())


def label_problems(label_set: RawLabelSet) -> list[Problem]:
    """Return what a host profiler loses or changes of a label set."""
    found = []
    if label_set.count > HOST_LIMITS.slots:
        found.append(Problem(_LABELS, "labels-too-many", f"{label_set.count} places"))
    seen: set[bytes] = set()
    for slot in label_set.slots:
        if slot.key is None:
            continue
        found += _slot_problems(slot)
        if slot.key in seen:
            found.append(Problem(_LABELS, "labels-duplicate", _printable(slot.key)))
        seen.add(slot.key)
    return found


def _slot_problems(slot: Slot) -> list[Problem]:
    assert slot.key is not None
    if slot.value is None:
        return [Problem(_LABELS, "label-without-value", _printable(slot.key))]
    found = []
    truncated_key = _truncate(slot.key, HOST_LIMITS.key_bytes)
    if not _is_text(truncated_key):
        found.append(Problem(_LABELS, "label-key-not-text", _printable(slot.key)))
    if slot.key_length > HOST_LIMITS.key_bytes or len(truncated_key) < len(slot.key):
        found.append(Problem(_LABELS, "label-key-cut", _printable(slot.key)))
    truncated_value = _truncate(slot.value, HOST_LIMITS.value_bytes)
    if slot.value_length > HOST_LIMITS.value_bytes or len(truncated_value) < len(slot.value):
        found.append(Problem(_LABELS, "label-value-cut", _printable(slot.key)))
    return found


def record_problems(record: CorrelationRecord) -> list[Problem]:
    """Return why a host profiler would use nothing, or not all, of a thread's record."""
    if record.valid == 0:
        return [Problem(_ELASTIC, "record-not-valid")]
    if not record.trace_present:
        return []
    found = []
    if int(record.trace_id, 16) == 0:
        found.append(Problem(_ELASTIC, "trace-id-zero"))
    if int(record.transaction_id, 16) == 0:
        found.append(Problem(_ELASTIC, "transaction-id-zero"))
    return found


def storage_problems(storage: ProcessStorage) -> list[Problem]:
    """Return why a host profiler would refuse the process storage."""
    found = []
    for code, text, max_bytes in (
        ("service-name-too-long", storage.service_name, 128),
        ("environment-too-long", storage.service_environment, 128),
        ("storage-path-too-long", storage.socket_path, 1024),
    ):
        size = len(text.encode("utf-8", "surrogateescape"))
        if size > max_bytes:
            found.append(Problem(_ELASTIC, code, f"{size} bytes, {max_bytes} are read"))
    if not storage.service_name:
        found.append(Problem(_ELASTIC, "service-name-empty"))
    return found


def _truncate(data: bytes, max_bytes: int) -> bytes:
    return data[:max_bytes].partition(b"\0")[0]


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _printable(data: bytes) -> str:
    return data[:40].decode("utf-8", "backslashreplace")
