"""The table of logs of the Collector's exporter: the records of the profiler, as text or as profiles.

Texts are counted in the database, and each text of a stack is sent once; profiles are decoded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from splunk_profiler.viewer.clickhouse_tables import Found, Period, Question, SampleTable
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
from splunk_profiler.viewer.records import RecordReader, make_sender

_MAX_PROFILES = 2000
# The metadata line without its numbers, of which no two are equal.
_WITHOUT_NUMBERS = r"replaceRegexpOne(r.Body, '^(\"(?:[^\"\\\\]|\\\\.)*\")[^\n]*?nid=\\S+', '\\1 #0')"


@dataclass(frozen=True)
class _Texts(Found):
    """Counted samples, and texts by their hash."""

    bodies: dict[Any, str]

    def add_to(self, reader: RecordReader) -> None:
        for step_ns, service, version, host, pid, name, _, trace, span, body, count, total_ms in self.rows:
            weights = {"samples": int(count), "wall": parse_int(int(total_ms) * 1_000_000)}
            sender, text = make_sender(service, version, host, pid), self.bodies.get(body, "")
            try:
                reader.add_text(sender, text, int(step_ns), weights, span=(trace, span), span_name=name)
            except ValueError:
                reader.unread += int(count)


class _Profiles(Found):
    """The newest profiles."""

    is_named = False

    def add_to(self, reader: RecordReader) -> None:
        for service, version, host, pid, body in self.rows:
            try:
                reader.add_message(make_sender(service, version, host, pid), decode_body(body))
            except ValueError:
                reader.unread += 1


class LogTable(SampleTable):
    """The table of logs."""

    content = "records of the profiler"

    def ask(self, period: Period, trace: str = "") -> list[Found]:
        """Return samples as text and as profiles: see `SampleTable`."""
        texts = self._ask_texts(period, trace)
        return [texts] if trace else [texts, self._ask_profiles(period)]

    def _ask_texts(self, period: Period, trace: str) -> _Texts:
        period_ms = f"toUInt64OrZero({self._attribute('LogAttributes', 'source.event.period')})"
        rows, bodies = self._count(
            self._records(period, is_text=True),
            period,
            trace,
            stack=[_WITHOUT_NUMBERS],
            columns=[],
            sums=["count()", f"sum({period_ms})"],
        )
        return _Texts(rows, dict(bodies))

    def _ask_profiles(self, period: Period) -> _Profiles:
        condition, parameters = self._records(period, is_text=False)
        ((count,),) = self._client.rows(f"SELECT count() FROM {self.name} AS r WHERE {condition}", **parameters)
        rows = self._client.rows(
            f"SELECT {', '.join(self._sender())}, r.Body FROM {self.name} AS r WHERE {condition}"
            f" ORDER BY r.Timestamp DESC LIMIT {_MAX_PROFILES}",
            **parameters,
        )
        return _Profiles(rows, left_out=max(0, int(count) - _MAX_PROFILES))

    def _records(self, period: Period, *, is_text: bool) -> Question:
        """Return what selects the records that are read."""
        formats = "'', 'text'" if is_text else f"'{PROFILE_FORMAT}'"
        types = f"'', '{CPU}'" if is_text else f"'', '{CPU}', '{ALLOCATION}'"
        condition, parameters = self._scope(period)
        conditions = [
            condition,
            f"{self._attribute('LogAttributes', DATA_FORMAT)} IN ({formats})",
            f"{self._attribute('LogAttributes', DATA_TYPE)} IN ({types})",
            f"{self._attribute('LogAttributes', SOURCE)} != '{SNAPSHOT}'",
        ]
        return Question(" AND ".join(conditions), parameters)

    def _scope(self, period: Period) -> Question:
        condition, parameters = super()._scope(period)
        conditions = [f"r.ScopeName = '{PROFILE_SCOPE}'", condition]
        if "TimestampTime" in self._columns:  # the table is ordered by it, not by `Timestamp`
            conditions += [
                "r.TimestampTime >= toDateTime(fromUnixTimestamp64Nano({since:Int64}))",
                "r.TimestampTime <= toDateTime(fromUnixTimestamp64Nano({until:Int64}))",
            ]
        return Question(" AND ".join(conditions), parameters)
