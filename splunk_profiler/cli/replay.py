"""``splunk-profiler replay``: turns a kept stream into the report of its profiles.

Runs on the main thread, through the pipeline that a profiled process has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from splunk_profiler.cli.analysis import Analysis
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.output import print_json, print_line
from splunk_profiler.cli.report import draw, to_dict
from splunk_profiler.cli.terminal import make_console
from splunk_profiler.config import Config
from splunk_profiler.config.parsers import ConfigError
from splunk_profiler.export.otlp.profile_records import ProfileEncoder
from splunk_profiler.export.sink_context import ProcessResource
from splunk_profiler.exporter_process.pipelines import make_pipeline
from splunk_profiler.pipeline.stream_pipeline import StreamPipeline
from splunk_profiler.stream.captured import CapturedSnapshot, Item, ProcessStarted, ResourceChanged
from splunk_profiler.stream.codec import StreamError
from splunk_profiler.stream.reader import StreamReader
from splunk_profiler.stream.records import LostRecord

_CHUNK_BYTES = 1 << 18


@click.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--top", type=click.IntRange(1, 100), default=5, show_default=True, help="Functions shown of each endpoint."
)
@click.option(
    "--spans", "--endpoints", "spans", type=click.IntRange(1), default=12, show_default=True, help="Endpoints shown."
)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON.")
def replay(path: Path, top: int, spans: int, as_json: bool) -> None:
    """Show what a kept stream says.

    PATH is a file that SPLUNK_PROFILER_OUTPUT=stream:DIRECTORY has made. It holds what the profiler has captured in one
    process; the profiles are made of it now, as they would have been then.
    """
    analysis = Analysis([path])
    playback = Playback(path, analysis.add_logs)
    playback.run()
    if as_json:
        print_json(to_dict(analysis, path), indent=2)
        return
    draw(analysis, path, console=make_console(), top=top, spans=spans)
    for line in playback.remarks:
        print_line(line)


class Playback:
    """A kept stream on its way through the pipeline; `add` is called with logs of its profiles, as in OTLP/JSON.

    Attributes:
        remarks: sentences on what is missing.
    """

    def __init__(self, path: Path, add: Callable[[dict[str, Any]], None]) -> None:
        self._path = path
        self._add = add
        self._is_empty = True
        self.remarks: list[str] = []
        self._resource = ProcessResource({})
        self._encoder = ProfileEncoder(lambda: self._resource)
        self._pipeline: StreamPipeline | None = None
        self._lost_snapshots = 0

    def run(self) -> None:
        """Read the whole file.

        Raises:
            CommandError: it cannot be read, or has no captures.
        """
        reader = StreamReader()
        try:
            for data in self._read():
                for item in reader.feed(data):
                    self._take(item)
        except StreamError as error:
            if self._pipeline is None:
                raise CommandError(f"{self._path} is not usable: {error}") from None
            self.remarks.append(f"The stream cannot be read to its end: {error}")
        if reader.pending_bytes:
            self.remarks.append(f"The stream was cut off: {reader.pending_bytes} bytes of a record are left.")
        if self._lost_snapshots:
            self.remarks.append(f"{self._lost_snapshots} snapshots were lost while it was written.")
        if self._pipeline is not None:
            self._pipeline.close()
        if self._is_empty:
            raise CommandError(" ".join([f"{self._path} holds no captures.", *self.remarks]))

    def _read(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                while data := file.read(_CHUNK_BYTES):
                    yield data
        except OSError as error:
            raise CommandError(f"{self._path} cannot be read: {error.strerror}") from None

    def _take(self, item: Item) -> None:
        if isinstance(item, ProcessStarted) and self._pipeline is None:
            self._pipeline = make_pipeline(self._settings(item), self._deliver)
        elif isinstance(item, ResourceChanged):
            self._resource = ProcessResource(item.attributes, item.schema_url)
        elif isinstance(item, LostRecord):
            self._lost_snapshots += item.snapshots
        elif self._pipeline is not None:
            self._pipeline.take(item)
            if isinstance(item, CapturedSnapshot):  # one as often as the exporter process ticks, or more often
                self._pipeline.tick(item.instant_ns)

    def _settings(self, started: ProcessStarted) -> Config:
        known = {item.name for item in fields(Config)}
        values: dict[str, Any] = {name: value for name, value in started.settings.items() if name in known}
        try:
            return Config(**{**values, "data_format": "pprof-gzip-base64"})
        except ConfigError as error:
            raise CommandError(f"{self._path} has settings that are not usable: {error}") from None

    def _deliver(self, profiles: tuple[Any, ...]) -> None:
        request = ExportLogsServiceRequest.FromString(self._encoder.encode(profiles))
        for entry in MessageToDict(request)["resourceLogs"]:
            self._add(entry)
            self._is_empty = False
