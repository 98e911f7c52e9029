"""The table of logs of the Collector's exporter: the records of the profiler, as text or as profiles.

Texts are counted in the database, and each text of a stack is sent once; profiles are decoded here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from splunk_profiler.viewer.clickhouse_tables import Found, Part, Period, Question, SampleTable
from splunk_profiler.viewer.otlp_files import (
    ALLOCATION,
    CPU,
    DATA_FORMAT,
    DATA_TYPE,
    PROFILE_SCOPE,
    SNAPSHOT,
    SOURCE,
    parse_int,
)
from splunk_profiler.viewer.profile_messages import PROFILE_FORMAT, decode_body
from splunk_profiler.viewer.records import RecordReader, Text, make_sender

_MAX_PROFILES = 2000
# The metadata line without its numbers, of which no two are equal.
_WITHOUT_NUMBERS = r"replaceRegexpOne(r.Body, '^(\"(?:[^\"\\\\]|\\\\.)*\")[^\n]*?nid=\\S+', '\\1 #0')"


@dataclass(frozen=True)
class _Texts(Found):
    """Counted samples, and texts by their hash."""

    bodies: dict[Any, str]

    def add_to(self, reader: RecordReader) -> bool:
        has_all_ids = True
        texts: dict[Any, Text] = {}
        for hash_, body in self.bodies.items():
            with suppress(ValueError):
                texts[hash_] = reader.read_text(body)
        for step_ns, service, version, host, pid, name, is_kept, trace, span, hash_, count, total_ms in self.rows:
            has_all_ids &= bool(is_kept)
            if (text := texts.get(hash_)) is None:
                reader.unread += int(count)
                continue
            reader.add_stack(
                make_sender(service, version, host, pid),
                text.stack,
                int(step_ns),
                {"samples": int(count), "wall": parse_int(int(total_ms) * 1_000_000)},
                thread=text.thread,
                state=text.state,
                span=(trace, span),
                span_name=name,
            )
        return has_all_ids


class _Profiles(Found):
    """The newest profiles."""

    is_named = False

    def add_to(self, reader: RecordReader) -> bool:
        for service, version, host, pid, body in self.rows:
            try:
                reader.add_message(make_sender(service, version, host, pid), decode_body(body))
            except ValueError:
                reader.unread += 1
        return True


class LogTable(SampleTable):
    """The table of logs."""

    content = "records of the profiler"

    def ask(self, part: Part, period: Period) -> list[Found]:
        """Return samples as text and as profiles: see `SampleTable`."""
        texts = self._ask_texts(part, period)
        # Traces are in the bodies of profiles: those of the whole table would be too many.
        return [texts] if part.traces and not part.since_ns else [texts, self._ask_profiles(part, period)]

    def _ask_texts(self, part: Part, period: Period) -> _Texts:
        period_ms = f"toUInt64OrZero({self._attribute('LogAttributes', 'source.event.period')})"
        rows, bodies = self._count(
            self._records(part, period, is_text=True),
            part,
            period,
            stack=[_WITHOUT_NUMBERS],
            columns=[],
            sums=["count()", f"sum({period_ms})"],
        )
        return _Texts(rows, dict(bodies))

    def _ask_profiles(self, part: Part, period: Period) -> _Profiles:
        condition, parameters = self._records(part, period, is_text=False)
        ((count,),) = self._client.rows(f"SELECT count() FROM {self.name} AS r WHERE {condition}", **parameters)
        rows = self._client.rows(
            f"SELECT {', '.join(self._sender())}, r.Body FROM {self.name} AS r WHERE {condition}"
            f" ORDER BY r.Timestamp DESC LIMIT {_MAX_PROFILES}",
            **parameters,
        )
        return _Profiles(rows, left_out=max(0, int(count) - _MAX_PROFILES))

    def _records(self, part: Part, period: Period, *, is_text: bool) -> Question:
        """Return what selects the records that are read."""
        formats = "'', 'text'" if is_text else f"'{PROFILE_FORMAT}'"
        types = f"'', '{CPU}'" if is_text else f"'', '{CPU}', '{ALLOCATION}'"
        condition, parameters = self._scope(part, period)
        conditions = [
            condition,
            f"{self._attribute('LogAttributes', DATA_FORMAT)} IN ({formats})",
            f"{self._attribute('LogAttributes', DATA_TYPE)} IN ({types})",
            f"{self._attribute('LogAttributes', SOURCE)} != '{SNAPSHOT}'",
        ]
        return Question(" AND ".join(conditions), parameters)

    def _scope(self, part: Part, period: Period) -> Question:
        condition, parameters = super()._scope(part, period)
        conditions = [f"r.ScopeName = '{PROFILE_SCOPE}'", condition]
        if "TimestampTime" in self._columns:  # the table is ordered by it, not by `Timestamp`
            conditions += [
                "r.TimestampTime >= toDateTime(fromUnixTimestamp64Nano({since:Int64}))",
                "r.TimestampTime <= toDateTime(fromUnixTimestamp64Nano({until:Int64}))",
            ]
        return Question(" AND ".join(conditions), parameters)
