"""``splunk-profiler view``: saved profiles in a browser, or in one file for it.

The main thread serves until a signal comes; answers are made on the server's threads.
"""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import click
from click.core import ParameterSource

from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.output import print_line
from splunk_profiler.cli.store import DEFAULT_DIRECTORY
from splunk_profiler.config import environment
from splunk_profiler.system.private_files import make_private, open_private
from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.clickhouse_client import is_address
from splunk_profiler.viewer.clickhouse_tables import LOGS
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import NEVER_NS, Selection
from splunk_profiler.viewer.otlp_files import STREAM_SUFFIX, SourceError, find_files, is_database, is_stream
from splunk_profiler.viewer.recording import Recording
from splunk_profiler.viewer.records import RecordReader
from splunk_profiler.viewer.source import Source
from splunk_profiler.viewer.store_writer import AHEAD_NS, StoreWriter


@click.command()
@click.argument("source", default=DEFAULT_DIRECTORY)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; others may read if not this."
)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port; a free one if not given.")
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="A host, with its port if that is not the usual one, by which a proxy or tunnel is reached.",
)
@click.option(
    "--open/--no-open", "opens", default=None, help="Open the address in the browser; done at a terminal of a desktop."
)
@click.option(
    "--html",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write all to one file that needs no server, and end; only you can read it.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Add all to a store, as of `collect --store`, and end.",
)
@click.option(
    "--last-hours",
    type=click.IntRange(1, 24 * 366),
    default=1,
    show_default=True,
    metavar="N",
    help="How much to show; of ClickHouse only.",
)
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"]),
    metavar="TIME",
    help="Show the hours before this time, as 2026-11-20T14:30 in this machine's zone; of ClickHouse only.",
)
@click.option("--service", default="", metavar="NAME", help="Show this service alone; of ClickHouse only.")
@click.option(
    "--table",
    default=LOGS,
    show_default=True,
    metavar="NAME",
    help="ClickHouse's table of logs, or of what eBPF profilers send (otel_profiles); of ClickHouse only.",
)
def view(  # noqa: PLR0917
    source: str,
    host: str,
    port: int,
    allowed: tuple[str, ...],
    opens: bool | None,
    file: Path | None,
    store: Path | None,
    last_hours: int,
    until: datetime | None,
    service: str,
    table: str,
) -> None:
    """Show the profiles saved in SOURCE in a browser.

    \b
    splunk-profiler collect --output profiles &
    splunk-profiler view profiles

    SOURCE is the directory or the store of `splunk-profiler collect`, a directory of profiles or of kept streams
    (SPLUNK_PROFILER_OUTPUT=file:DIRECTORY or stream:DIRECTORY) or a file of one, a file that the OpenTelemetry
    Collector's file exporter wrote, or a database that its ClickHouse exporter writes: clickhouse://HOST/DATABASE.
    What is added while the page is open appears on it; streams are read once.
    Only this machine can read the page, unless --host names another address: there is no password. Ctrl-C ends it.
    """
    if not is_address(source):
        refuse_options_of_clickhouse(source)
    if not host:  # it would be all addresses
        raise click.UsageError("--host needs an address")
    if store is not None and file is not None:
        raise click.UsageError("--html and --store cannot be used together")
    if store is not None:
        print_saved(store, save_store(source, store))
        return
    shown: Source
    if is_address(source):
        until_ns = NEVER_NS if until is None else to_ns(until)
        shown = ClickHouse(
            source, environment(), last_hours=last_hours, service=service, table=table, until_ns=until_ns
        )
    else:
        shown = open_files(Path(source))
    answers = Answers(shown)
    if file is not None:
        write_page(answers, file)
        print_saved(file, shown)
        return
    opens = is_desktop(environment()) if opens is None else opens
    serve_page(answers, f"{shown.name} is shown at", host=host, port=port, allowed=allowed, opens=opens)


def refuse_options_of_clickhouse(source: str) -> None:
    """Raise `UsageError` if an option is given that has no effect on files."""
    context = click.get_current_context()
    for name in ("last_hours", "until", "service", "table"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} is for ClickHouse only, and {source} is not one of its databases")


def to_ns(until: datetime) -> int:
    """Return a time of this machine's zone in nanoseconds since the epoch.

    Raises:
        UsageError: 64 bits do not hold it in every zone.
    """
    if until.year not in range(1971, 2262):
        raise click.UsageError(f"--until {until.isoformat()} is not between 1971 and 2261")
    return int(until.timestamp()) * 10**9


def is_desktop(environment: Mapping[str, str]) -> bool:
    """Return True at a terminal beside which a browser can be opened."""
    has_screen = sys.platform == "darwin" or environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    return sys.stdout.isatty() and bool(has_screen) and not environment.get("SSH_CONNECTION")


def open_files(path: Path) -> Source:
    """Return what there is at a path: a store, kept streams, or other files.

    Raises:
        SourceError, CommandError: there is nothing that can be shown.
    """
    try:
        if is_database(path):
            return LiveStore(path)
        if is_stream(path) or (path.is_dir() and any(path.glob(f"*{STREAM_SUFFIX}"))):
            return KeptStreams(path)
        return LiveFiles(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None


class KeptStreams(Source):
    """The profiles of a stream, or of a directory of them, that SPLUNK_PROFILER_OUTPUT=stream:DIRECTORY has kept.

    Raises:
        CommandError: none can be read.
    """

    follows = False

    def __init__(self, path: Path) -> None:
        from splunk_profiler.cli.replay import Playback  # noqa: PLC0415  # with the pipeline, for streams only

        self.name = str(path)
        self.recording = Recording()
        reader = RecordReader(self.recording)
        files, remarks, unusable = find_files(path, [STREAM_SUFFIX]), [], []
        for file in files:
            playback = Playback(file, reader.add_logs)
            try:
                playback.run()
            except CommandError as error:
                unusable.append(str(error))
            remarks += [f"{file.name}: {remark}" if path.is_dir() else remark for remark in playback.remarks]
        if len(unusable) == len(files):
            raise CommandError(" ".join(unusable))
        if path.is_dir() and len(files) < len(list(path.iterdir())):
            remarks.append("Other files beside the streams are not shown.")
        self.unread = reader.unread
        self.remark = " ".join([*unusable, *remarks])

    def refresh(self) -> None:
        """Do nothing: streams are read once."""


def serve_page(
    answers: Answers,
    title: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    allowed: tuple[str, ...] = (),
    opens: bool = False,
) -> None:
    """Print `title` and the address of the page, and answer until Ctrl-C."""
    from splunk_profiler.viewer.server import listen, make_app, own_origins, serve  # noqa: PLC0415  # of the extra `view`

    with listen(host, port) as listener:
        actual_port = listener.getsockname()[1]
        address = f"http://{f'[{host}]' if ':' in host else host}:{actual_port}/"
        print_line(f"{title} {address}")
        if opens:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            serve(make_app(answers, own_origins(host, actual_port, allowed)), listener)


def print_saved(path: Path, source: Source) -> None:
    """Print where a source was saved, and, to standard error, what of it is missing there."""
    print_line(f"saved in {path}")
    if source.note:
        print_line(source.note, error=True)


def save_store(source: str, path: Path) -> Source:
    """Add all of a directory, a file or a kept stream to a store, and return what was added.

    Raises:
        SourceError, CommandError: one cannot be read, or the other not be written.
    """
    if is_address(source):
        raise CommandError("--store takes a directory, a file or a kept stream, not a database: that is a store")
    if is_database(Path(source)):
        raise CommandError(f"{source} is a store already")
    files = open_files(Path(source))
    files.refresh()
    writer = StoreWriter(path)
    try:
        files.unread = writer.add(files.recording, files.unread, until_ns=time.time_ns() + AHEAD_NS)
    finally:
        writer.close()
    return files


def write_page(answers: Answers, file: Path) -> None:
    """Write the page with all data to one file, which only this user can read.

    Raises:
        CommandError: it cannot be written.
    """
    content = answers.page(Selection(answers.default_value()))
    try:
        with open(file, "wb", opener=open_private) as target:  # a path's own has no opener
            make_private(target.fileno())
            target.write(content)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
