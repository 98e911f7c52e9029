"""The table of profiles of the Collector's exporter: OTLP profiles that it received, as eBPF profilers send them.

A row is a sample with its stack, leaf first. Specification: ``profiles.proto`` of OTLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from splunk_profiler.viewer.clickhouse_tables import Found, Part, Period, SampleTable, SeenProfiles, split_sender
from splunk_profiler.viewer.model import name_value
from splunk_profiler.viewer.profile_messages import Place, kind_and_distribution
from splunk_profiler.viewer.records import SENDER_ATTRIBUTES, UNKNOWN_SERVICE, RecordReader

# A sample without values is one observation at each of its times.
_VALUE = "if(empty(r.Values), toInt64(length(r.TimestampsUnixNano)), arraySum(r.Values))"
_COUNTS = {"", "1", "count"}  # units of samples that stand for a period each


@dataclass(frozen=True)
class _Samples(Found):
    """Counted samples, and their stacks by hash."""

    stacks: dict[Any, list[Place]]

    def add_to(self, reader: RecordReader) -> bool:
        has_all_ids = True
        stacks = {hash_: reader.stack(places) for hash_, places in self.stacks.items()}
        unknown = reader.stack([])
        for step_ns, *row in self.rows:
            sender, (name, endpoint, is_kept, trace, span, hash_, *described, sum_) = split_sender(row)
            has_all_ids &= bool(is_kept)
            thread, kind, unit, period_kind, period_unit, period = described
            values = {kind or "samples": (int(sum_), "count" if unit in _COUNTS else unit)}
            if unit in _COUNTS and period_kind:
                values.setdefault(period_kind, (int(sum_) * int(period), period_unit))
            reader.add_stack(
                sender,
                stacks.get(hash_, unknown),
                int(step_ns),
                {name_value(reader.recording.units, each, of): value for each, (value, of) in values.items()},
                thread=thread,
                state="",
                span=(trace, span),
                span_name=name,
                endpoint=endpoint,
            )
        return has_all_ids


class ProfileTable(SampleTable):
    """The table of profiles."""

    content = "profiles"

    def ask(self, part: Part, period: Period, seen: SeenProfiles) -> list[Found]:
        """Count equal samples of the part in a period, and read each of their stacks once; none is waited for."""
        del seen
        if period.is_empty:
            return []
        rows, stacks = self._count(
            self._scope(part, period),
            part,
            period,
            stack=["r.FunctionNames", "r.FileNames", "r.LineNumbers", "r.MappingFileNames"],
            columns=[
                self._described("thread.name"),
                *("r.SampleType", "r.SampleUnit", "r.PeriodType", "r.PeriodUnit", "r.Period"),
            ],
            sums=[f"sum({_VALUE})"],
        )
        return [_Samples(rows, {hash_: list(map(_place, *columns)) for hash_, *columns in stacks})]

    def _sender(self) -> tuple[str, ...]:
        return self._service(), *map(self._described, SENDER_ATTRIBUTES)

    def _service(self) -> str:
        executable = self._described("process.executable.name")
        return f"if(r.ServiceName != '', r.ServiceName, if({executable} != '', {executable}, '{UNKNOWN_SERVICE}'))"

    def _described(self, name: str) -> str:
        """Return an attribute of the resource, or else of the sample, as a column: profilers differ in that."""
        of_sample, of_resource = (
            self._attribute(column, name) for column in ("SampleAttributes", "ResourceAttributes")
        )
        return f"if({of_resource} = '', {of_sample}, {of_resource})"


def _place(function: str, file: str, line: int, mapping: str) -> Place:
    """Return a frame; one without a function, of a program without symbols, has the name of its file."""
    is_python = file.endswith(".py") or file.startswith("<frozen")
    kind, distribution = kind_and_distribution(file, "", "") if is_python else ("", "")
    unnamed = f"({mapping.rpartition('/')[2] or 'unknown'})"
    return Place(function or unnamed, file or mapping, max(0, int(line)), kind, distribution)
