"""The table of logs of the Collector's exporter: the records of the profiler, as text or as profiles.

Texts are counted in the database, and each text of a stack is sent once; profiles are decoded here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from splunk_profiler.viewer.clickhouse_client import Rows
from splunk_profiler.viewer.clickhouse_tables import (
    SPANS,
    Found,
    Part,
    Period,
    Question,
    SampleTable,
    SeenProfiles,
    one_of,
    service_of,
    split_sender,
)
from splunk_profiler.viewer.model import LONG_PROFILE_NS, MINUTE_NS
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
from splunk_profiler.viewer.records import RecordReader, TextSample, text_weights

_MAX_PROFILES = 2000
_MAX_PROFILE_NS = MINUTE_NS  # so long before the spans in it a profile may begin
# The metadata line without its numbers, of which no two are equal.
_WITHOUT_NUMBERS = r"replaceRegexpOne(r.Body, '^(\"(?:[^\"\\\\]|\\\\.)*\")[^\n]*?nid=\\S+', '\\1 #0')"


@dataclass(frozen=True)
class _Texts(Found):
    """Counted samples, and texts by their hash."""

    bodies: dict[Any, str]

    def add_to(self, reader: RecordReader) -> bool:
        has_all_ids = True
        texts: dict[Any, TextSample] = {}
        for hash_, body in self.bodies.items():
            with suppress(ValueError):
                texts[hash_] = reader.read_text(body)
        for step_ns, *row in self.rows:
            sender, (name, endpoint, is_kept, trace, span, hash_, is_allocation, *sums) = split_sender(row)
            count, period_ms, allocated = map(int, sums)
            has_all_ids &= bool(is_kept)
            if (text := texts.get(hash_)) is None:
                reader.unread += count
                continue
            reader.add_stack(
                sender,
                text.stack,
                int(step_ns),
                text_weights(bool(is_allocation), count, period_ms, parse_int(allocated)),
                thread=text.thread,
                state=text.state,
                span=(trace, span),
                span_name=name,
                endpoint=endpoint,
            )
        return has_all_ids


@dataclass(frozen=True)
class _Profiles(Found):
    """The newest profiles, and how many there are of each time; those that have been `seen` may be among them."""

    counts: dict[int, int]
    seen: SeenProfiles

    def add_to(self, reader: RecordReader) -> bool:
        self.seen.counts.update(self.counts)
        for row in self.rows:
            sender, (time_ns, body) = split_sender(row)
            hash_ = hash((sender, time_ns, body))
            if hash_ in self.seen.hashes:
                continue
            self.seen.hashes.add(hash_)
            try:
                reader.add_message(sender, decode_body(body))
            except ValueError:
                reader.unread += 1
        return True


class LogTable(SampleTable):
    """The table of logs."""

    content = "records of the profiler"
    where_traces_are = "Profiles are searched at the time and in the services of its spans."

    def ask(self, part: Part, period: Period, seen: SeenProfiles) -> list[Found]:
        """Return samples as text, which are counted, and as profiles; of traces without a time those of their spans.

        A profile has the time of its beginning and comes after its end: it is read whenever it comes, within the
        longest time that one can last.
        """
        of_texts = [] if period.is_empty else [self._ask_texts(part, period)]
        with_late = period._replace(since_ns=max(part.since_ns, period.since_ns - LONG_PROFILE_NS))
        of_profiles = [] if with_late.is_empty else [(part, with_late)]
        if part.traces and not part.since_ns:  # they are in the bodies: those of the whole table would be too many
            of_profiles = [narrowed for each in of_profiles for narrowed in self._narrowed(*each)]
        return [*of_texts, *(self._ask_profiles(*each, seen) for each in of_profiles)]

    def _ask_texts(self, part: Part, period: Period) -> _Texts:
        numbers = (self._attribute("LogAttributes", name) for name in ("source.event.period", "memory.allocated"))
        rows, bodies = self._count(
            self._records(part, period, is_text=True),
            part,
            period,
            stack=[_WITHOUT_NUMBERS],
            columns=[f"{self._attribute('LogAttributes', DATA_TYPE)} = '{ALLOCATION}'"],
            sums=["count()", *(f"sum(toUInt64OrZero({number}))" for number in numbers)],
        )
        return _Texts(rows, dict(bodies))

    def _ask_profiles(self, part: Part, period: Period, seen: SeenProfiles) -> _Profiles:
        """Return the newest profiles of the times of which there are more than have been seen."""
        condition, parameters = self._records(part, period, is_text=False)
        time_ns = "toUnixTimestamp64Nano(r.Timestamp)"
        counted = self._client.rows(
            f"SELECT {time_ns} AS time_ns, count() FROM {self.name} AS r WHERE {condition}"
            " GROUP BY time_ns ORDER BY time_ns DESC",
            **parameters,
        )
        counts = {time: count for time, count in (map(int, row) for row in counted) if seen.counts.get(time) != count}
        newest = list(counts)[:_MAX_PROFILES]
        rows = Rows([])
        if newest:
            parameters.update(since=newest[-1], until=newest[0] + 1)
            rows = self._client.rows(
                f"SELECT {', '.join(self._sender())}, {time_ns}, r.Body FROM {self.name} AS r WHERE {condition}"
                f" AND {time_ns} IN ({', '.join(map(str, newest))}) ORDER BY r.Timestamp DESC LIMIT {_MAX_PROFILES}",
                **parameters,
            )
        left_out = max(0, sum(counts.values()) - _MAX_PROFILES)
        return _Profiles(rows, counts, seen, left_out=left_out, names_due_since_ns=period.since_ns)

    def _narrowed(self, part: Part, period: Period) -> Iterator[tuple[Part, Period]]:
        """Yield the services of the spans of a part's traces, and their time, if there are any in the period."""
        if not self._has_spans:
            return
        condition, parameters = one_of("TraceId", "trace", part.traces)
        start_ns, service = "toUnixTimestamp64Nano(Timestamp)", service_of("ServiceName")
        rows = self._client.rows(
            f"SELECT min({start_ns}), max({start_ns} + toInt64(Duration)), groupUniqArray({service}) FROM {SPANS}"
            f" WHERE {condition} HAVING count() > 0",
            **parameters,
        )
        for since_ns, until_ns, services in rows:
            narrowed = Period(
                max(period.since_ns, int(since_ns) - _MAX_PROFILE_NS),
                min(period.until_ns, int(until_ns) + _MAX_PROFILE_NS),
            )
            if narrowed.since_ns < narrowed.until_ns:
                yield part._replace(services=part.services or tuple(services)), narrowed

    def _records(self, part: Part, period: Period, *, is_text: bool) -> Question:
        """Return what selects the records that are read."""
        formats = "'', 'text'" if is_text else f"'{PROFILE_FORMAT}'"
        condition, parameters = self._scope(part, period)
        conditions = [
            condition,
            f"{self._attribute('LogAttributes', DATA_FORMAT)} IN ({formats})",
            f"{self._attribute('LogAttributes', DATA_TYPE)} IN ('', '{CPU}', '{ALLOCATION}')",
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
