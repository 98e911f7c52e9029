"""The messages that an export reads of a collector's answer.

Pure. Specifications: OTLP, "Partial Success" and "Throttling"; ``google/rpc/error_details.proto``.
"""

from __future__ import annotations

from typing import NamedTuple

from splunk_profiler.formats.wire import read_message


class PartialSuccess(NamedTuple):
    """The content of an ``ExportLogsServiceResponse``: how many records were rejected, and why."""

    rejected: int
    text: str

    @classmethod
    def decode(cls, response: bytes) -> PartialSuccess:
        """Read a response; `ValueError` if it is none."""
        _, parts = read_message(response)
        values, texts = read_message(parts.get(1, b""))
        return cls(max(values.get(1, 0), 0), texts.get(2, b"").decode("utf-8", "replace"))


def read_retry_delay_ns(retry_info: bytes) -> int:
    """Return the pause that a ``RetryInfo`` asks for; `ValueError` if it is none."""
    _, parts = read_message(retry_info)
    delay, _ = read_message(parts.get(1, b""))
    return delay.get(1, 0) * 1_000_000_000 + delay.get(2, 0)
