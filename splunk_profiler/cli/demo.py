"""``splunk-profiler demo``: profiles an example web service under load and shows the report.

Starts a collector, the unchanged service and a stand-in for a host profiler; then the service again with aggregated
profiles. The main thread starts and always ends the processes; a few threads send the load. Each command line is
shown, so that a user can repeat it.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from splunk_profiler.cli.analysis import analyse
from splunk_profiler.cli.demo_processes import Child, make_ptrace_hook, run_verb, summarize_agent_log
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.load import Load
from splunk_profiler.cli.report import draw
from splunk_profiler.cli.store import DEFAULT_DIRECTORY, LOGS
from splunk_profiler.cli.terminal import Terminal, make_console
from splunk_profiler.cli.view import serve_page, write_page
from splunk_profiler.config import environment
from splunk_profiler.system.private_files import make_directory
from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.live_files import LiveFiles

_HOST = "127.0.0.1"
_REQUIRED_MODULES = ("fastapi", "uvicorn", "opentelemetry.instrumentation.fastapi")
_MAX_LATE_S = 30.0  # of the first record, on a machine that has other work
_PROGRESS_INTERVAL_S = 0.5
_AGENT_RATE_HZ = 50
_AGGREGATED_INTERVAL_MS = 10  # a hundred samples a second cost less than twenty records


@click.command()
@click.option(
    "--seconds",
    type=click.IntRange(1, 600),
    default=20,
    show_default=True,
    help="How long the load lasts, before half of it again.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=6, show_default=True, help="Clients at the same time.")
@click.option(
    "--interval-ms",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Milliseconds between two samples: fewer than the usual 1000, to have much to show soon.",
)
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="Directory to save to.")
@click.option(
    "--examples", type=click.Path(path_type=Path, file_okay=False), help="The directory that holds the example shop."
)
def demo(seconds: int, workers: int, interval_ms: int, output: Path | None, examples: Path | None) -> None:
    """Profile an example web shop under load, and report on it.

    Starts the collector of this package, runs the shop (FastAPI on SQLite, with OpenTelemetry tracing, in
    examples/shop) unchanged through `splunk-profiler run`, has a stand-in for a host profiler look at it from outside
    and send back what it saw, and sends it a bounded load. Then runs the shop once more, for half the time, with
    samples aggregated to profiles in pprof's format, and shows the report of both.
    """
    os.umask(0o077)  # the child processes inherit it, so only this user can read their files
    console = make_console()
    source = _find_examples(examples)
    directory = output or Path(DEFAULT_DIRECTORY) / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _exit_on_signal)
    answers = _Demo(console, source, directory, workers).run(seconds, interval_ms)
    draw(analyse(directory), directory, console=console)
    for log in ("service.log", "service-aggregating.log"):
        console.print(f"{(directory / log).resolve()}  (what the service printed)", soft_wrap=True)
    pages = Answers(LiveFiles(directory))
    write_page(pages, directory / "profile.html")
    console.print(f"{(directory / 'profile.html').resolve().as_uri()}  (the same in a browser)", soft_wrap=True)
    console.print(f"see it again: splunk-profiler report {directory}, splunk-profiler view {directory}", soft_wrap=True)
    if set(answers) != {"2xx"}:
        raise CommandError(f"not every request was answered well: {answers}; see {directory / 'service.log'}")
    if console.is_terminal and sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        serve_page(pages, "until Ctrl-C it is shown at")


def _exit_on_signal(number: int, _frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


class _Demo:
    """The steps of the demo, which fill `directory`; each prints its number."""

    def __init__(self, console: Terminal, source: Path, directory: Path, workers: int) -> None:
        self._console = console
        self._source = source
        self._directory = directory
        self._workers = workers
        self._step_numbers = count(1)

    def run(self, seconds: int, interval_ms: int) -> Counter[str]:
        """Run all steps and return the counts of the answers to requests."""
        own_env = environment()
        command = ["collect", "--port", "0", "--output", str(self._directory)]
        self._print_step("the collector", command)
        make_directory(self._directory)
        with run_verb("collector", command, own_env, self._directory) as collector:
            address = collector.wait_for_line("listening on ")
            if address is None:
                raise collector.error("the collector did not start")
            env = {
                **own_env,
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
                "OTEL_SERVICE_NAME": "shop",  # as the shop says too, but on a busy machine too late
                "SHOP_DATABASE": str(self._directory / "shop.sqlite3"),
            }
            with self._run_service("service", "the service", "text", interval_ms, env) as (service, port):
                command = ["host-agent", str(service.process.pid), "--rate", str(_AGENT_RATE_HZ), "--json"]
                self._print_step("a stand-in for a host profiler", command)
                # It ends before the service, which still has to receive its last messages.
                with run_verb("host-agent", command, own_env, self._directory, expected_codes=(0, 1)) as agent:
                    if agent.wait_for_line("") is None and agent.process.poll() is None:
                        raise agent.error("the host-agent says nothing")
                    answers = self._run_load(service, port, seconds, interval_ms)
                self._console.print(f"   the stand-in {summarize_agent_log(agent.log)}", soft_wrap=True)
            interval_ms, title = min(interval_ms, _AGGREGATED_INTERVAL_MS), "the service, aggregating"
            with self._run_service("service-aggregating", title, "pprof-gzip-base64", interval_ms, env) as (
                service,
                port,
            ):
                answers += self._run_load(service, port, -(-seconds // 2), interval_ms)
        return answers

    def _print_step(self, title: str, words: list[str]) -> None:
        """Print the step with its command as a user would type it."""
        here = f"{Path.cwd()}/"
        short = ("python" if word == sys.executable else word.removeprefix(here) for word in words)
        command = shlex.join(["splunk-profiler", *short])
        self._console.print(f"{next(self._step_numbers)}  {title}: {command}", soft_wrap=True)

    @contextmanager
    def _run_service(
        self, name: str, title: str, data_format: str, interval_ms: int, env: Mapping[str, str]
    ) -> Iterator[tuple[Child, int]]:
        """Run the shop until the block ends; yield it when it answers, with its port. `name` is that of its log."""
        with socket.create_server((_HOST, 0)) as listener:
            port = listener.getsockname()[1]
            # A short export interval: uvicorn ends by a signal, which loses the samples that are not yet exported.
            command = ["run", "--interval-ms", str(interval_ms), "--export-interval-ms", "1000"]
            command += ["--data-format", data_format, "--", sys.executable, "-m", "uvicorn", "shop.app:app"]
            command += ["--app-dir", str(self._source), "--no-access-log", "--fd", str(listener.fileno())]
            self._print_step(title, command)
            hook = make_ptrace_hook(os.getpid())
            with run_verb(name, command, env, self._directory, listener.fileno(), preexec=hook) as service:
                # Now only the service holds the port. If it ends, connections are refused instead of queued.
                listener.close()
                service.wait_for_health(port)
                yield service, port

    def _run_load(self, service: Child, port: int, seconds: int, interval_ms: int) -> Counter[str]:
        clients = f"{self._workers} clients for {seconds} s"
        self._console.print(f"{next(self._step_numbers)}  {clients}; a sample every {interval_ms} ms (usual: 1000)")
        with Load(_HOST, port, self._workers) as load:
            _show_progress(self._console, load, service, seconds)
        answers = load.answers()
        self._console.print(f"   {answers.total()} requests answered: {dict(answers)}")
        return answers


def _find_examples(given: Path | None) -> Path:
    missing = [name for name in _REQUIRED_MODULES if not _is_installed(name)]
    if missing:
        raise CommandError(
            f"the demo needs {', '.join(missing)}; install it: {sys.executable} -m pip install 'splunk-profiler[demo]'"
        )
    places = [given] if given else [Path("examples"), Path(__file__).resolve().parents[2] / "examples"]
    for place in places:
        if (place / "shop" / "app.py").is_file():
            return place.resolve()
    raise CommandError(
        f"no example shop in {places[0]}; run the demo in a checkout, or say where: --examples DIRECTORY"
    )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _show_progress(console: Terminal, load: Load, service: Child, seconds: int) -> None:
    """Show the progress of the load and the received records until the time is over and a record has come."""
    columns = (TextColumn("   {task.description}", markup=False), BarColumn(30), TimeRemainingColumn())
    start = time.monotonic()
    record_counts = _count_records(service.log.with_name(LOGS))
    received = earlier = next(record_counts)
    next_line = 5.0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=seconds)
        while (elapsed := time.monotonic() - start) < seconds + (_MAX_LATE_S if received == earlier else 0):
            if service.process.poll() is not None:
                raise service.error(f"the service ended with {service.process.returncode}")
            received = next(record_counts)
            text = f"{load.answers().total():,} requests, {received:,} records received"
            progress.update(task, completed=elapsed, description=text)
            if not console.is_terminal and elapsed >= next_line:
                console.print(f"   {elapsed:.0f} s: {text}")
                next_line += 5
            time.sleep(_PROGRESS_INTERVAL_S)


def _count_records(path: Path) -> Iterator[int]:
    """Yield the number of records in a growing file of OTLP/JSON lines; read each whole line once."""
    position = count = 0
    while True:
        with path.open("rb") as file:
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                position += len(line)
                count += line.count(b'"timeUnixNano"')
        yield count
