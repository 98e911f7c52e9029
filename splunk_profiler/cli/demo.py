"""``splunk-profiler demo``: a collector, a web service run unchanged under the profiler, a stand-in for a host profiler
beside it, load, and the report.

The main thread starts the three processes and leads them to their end, whatever happens; a few threads send
the load. What it does with processes a user can type: each command line is shown.
"""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from splunk_profiler.cli.analysis import analyse
from splunk_profiler.cli.collect import DEFAULT_DIRECTORY
from splunk_profiler.cli.demo_agent import readable_by_descendants, told
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.load import Load
from splunk_profiler.cli.report import draw, report_console
from splunk_profiler.cli.store import LOGS
from splunk_profiler.config import environment

_HOST = "127.0.0.1"
_NEEDED = ("fastapi", "uvicorn", "opentelemetry.instrumentation.fastapi")
_START_SECONDS = 60
_STOP_SECONDS = 20
_TICK_SECONDS = 0.5
_LOG_LINES = 30
_AGENT_RATE = 50


@click.command()
@click.option("--seconds", type=click.IntRange(1, 600), default=20, show_default=True, help="How long the load lasts.")
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
    and send back what it saw, sends it a bounded load, and shows the report.
    """
    console = report_console()
    source = _find_examples(examples)
    directory = output or Path(DEFAULT_DIRECTORY) / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    old = {number: signal.signal(number, _interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        answers = _record(console, _Plan(source, directory, seconds, workers, interval_ms))
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    draw(analyse(directory), directory, console=console)
    console.print(f"{(directory / 'service.log').resolve()}  (what the service printed)", soft_wrap=True)
    console.print(f"see it again: splunk-profiler report {directory}", soft_wrap=True)
    if set(answers) != {"2xx"}:
        raise CommandError(f"not every request was answered well: {answers}; see {directory / 'service.log'}")


@dataclass(frozen=True, slots=True)
class _Plan:
    source: Path
    directory: Path
    seconds: int
    workers: int
    interval_ms: int


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _record(console: Console, plan: _Plan) -> dict[str, int]:
    directory = plan.directory
    with ExitStack() as stack:
        collector_command = [*_own("collect"), "--port", "0", "--output", str(directory)]
        console.print(_shown(1, "the collector", collector_command), soft_wrap=True)
        directory.mkdir(parents=True, exist_ok=True)
        collector = stack.enter_context(_process("collector", collector_command, environment(), directory))
        endpoint = _listening(collector, directory / "collector.log")

        listener = stack.enter_context(socket.create_server((_HOST, 0)))
        port = listener.getsockname()[1]
        env = {
            **environment(),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{endpoint}",
            "SHOP_DATABASE": str(directory / "shop.sqlite3"),
        }
        launcher = [*_own("run"), "--interval-ms", str(plan.interval_ms), "--"]
        uvicorn = [sys.executable, "-m", "uvicorn", "shop.app:app", "--app-dir", str(plan.source), "--no-access-log"]
        uvicorn += ["--fd", str(listener.fileno())]
        console.print(_shown(2, "the service", launcher + uvicorn), soft_wrap=True)
        readable = readable_by_descendants(os.getpid())
        service = stack.enter_context(
            _process("service", launcher + uvicorn, env, directory, listener.fileno(), before=readable)
        )
        # From here on only the service holds the port: if it ends, connections are refused and do not wait.
        listener.close()
        _wait_until_open(service, port, directory)

        watching = [*_own("host-agent"), str(service.pid), "--rate", str(_AGENT_RATE), "--json"]
        console.print(_shown(3, "a stand-in for a host profiler", watching), soft_wrap=True)
        agent = stack.enter_context(_process("host-agent", watching, environment(), directory))

        console.print(
            f"4  {plan.workers} clients for {plan.seconds} s; a sample every {plan.interval_ms} ms (usual: 1000)"
        )
        load = Load(_HOST, port, plan.workers)
        load.start()
        stack.callback(load.stop)
        _progress(console, load, service, plan)
        load.stop()
        answers = load.answers()
        console.print(f"   {sum(answers.values())} requests answered: {answers}")
        _end(agent, "host-agent", directory, well=(0, 1))  # first, so that what it has sent still finds the service
        console.print(f"   the stand-in {told(directory / 'host-agent.log')}", soft_wrap=True)
        _end(service, "service", directory)
        _end(collector, "collector", directory)
        return answers


def _find_examples(given: Path | None) -> Path:
    missing = [name for name in _NEEDED if not _installed(name)]
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


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _own(verb: str) -> list[str]:
    return [sys.executable, "-m", "splunk_profiler", verb]


def _shown(number: int, what: str, command: list[str]) -> str:
    words = ["splunk-profiler", *command[3:]] if command[:3] == _own("")[:3] else command
    here = f"{Path.cwd()}/"
    short = ("python" if word == sys.executable else word.removeprefix(here) for word in words)
    return f"{number}  {what}: {shlex.join(short)}"


@contextmanager
def _process(
    name: str,
    command: list[str],
    env: Mapping[str, str],
    directory: Path,
    *descriptors: int,
    before: Callable[[], None] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A child whose output goes to ``NAME.log``, and that calls `before` first; it never outlives the block."""
    with (directory / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=descriptors,
            preexec_fn=before,  # noqa: PLW1509  # this process has no other thread yet
        )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _end(child: subprocess.Popen[bytes], name: str, directory: Path, well: tuple[int, ...] = (0,)) -> None:
    """Ask a child to end, and insist on its doing so well, which its exit code says."""
    if child.poll() is None:
        child.terminate()
    try:
        code = child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise CommandError(f"the {name} did not end within {_STOP_SECONDS} s{_tail(directory, name)}") from None
    if code not in (*well, -signal.SIGTERM):
        raise CommandError(f"the {name} ended with {code}{_tail(directory, name)}")


def _tail(directory: Path, name: str) -> str:
    path = directory / f"{name}.log"
    lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return f"; the end of {path}:\n" + "\n".join(f"    {line}" for line in lines)


def _listening(collector: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.removeprefix("listening on ")
        if collector.poll() is not None:
            break
        time.sleep(0.05)
    raise CommandError(f"the collector did not start{_tail(log.parent, 'collector')}")


def _wait_until_open(service: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    """Wait for the answer to one request; it stays queued on the port until the service takes it."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_START_SECONDS)
    try:
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            return
        problem = "does not answer /health well"
    except (OSError, http.client.HTTPException) as error:
        problem = f"ended with {service.wait(1)}" if service.poll() is not None else f"does not answer ({error})"
    finally:
        connection.close()
    raise CommandError(f"the service {problem}{_tail(directory, 'service')}")


def _progress(console: Console, load: Load, service: subprocess.Popen[bytes], plan: _Plan) -> None:
    """Show how far the load is and what has arrived, until its time is over."""
    columns = (TextColumn("   {task.description}"), BarColumn(30), TimeRemainingColumn())
    start = time.monotonic()
    samples = _SampleCount(plan.directory / LOGS)
    next_line = 5.0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=plan.seconds)
        while (elapsed := time.monotonic() - start) < plan.seconds:
            if service.poll() is not None:
                raise CommandError(f"the service ended with {service.returncode}{_tail(plan.directory, 'service')}")
            text = f"{sum(load.answers().values()):,} requests, {samples.now():,} samples received"
            progress.update(task, completed=elapsed, description=text)
            if not console.is_terminal and elapsed >= next_line:
                console.print(f"   {elapsed:.0f} s: {text}")
                next_line += 5
            time.sleep(_TICK_SECONDS)


class _SampleCount:
    """Counts the records in a growing file of OTLP/JSON lines, reading each byte once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._count = 0

    def now(self) -> int:
        """Records up to the last whole line."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._position += len(line)
                self._count += line.count(b'"timeUnixNano"')
        return self._count
