"""``splunk-profiler demo``: profiles an example web service under load and shows the report.

Starts a collector, the unchanged service and a stand-in for a host profiler; then the service again with aggregated
profiles. The main thread starts and always ends the processes; a few threads send the load. Each command line is
shown, so that a user can repeat it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from splunk_profiler.cli.analysis import analyse
from splunk_profiler.cli.collect import DEFAULT_DIRECTORY
from splunk_profiler.cli.demo_agent import make_ptrace_hook, summarize_log
from splunk_profiler.cli.demo_processes import Child, describe_step, own_command, run_process
from splunk_profiler.cli.errors import CommandError
from splunk_profiler.cli.load import Load
from splunk_profiler.cli.report import draw
from splunk_profiler.cli.store import LOGS
from splunk_profiler.cli.terminal import Terminal, make_console
from splunk_profiler.config import environment
from splunk_profiler.system.private_files import make_directory

_HOST = "127.0.0.1"
_REQUIRED_MODULES = ("fastapi", "uvicorn", "opentelemetry.instrumentation.fastapi")
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
    old = {number: signal.signal(number, _exit_on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        answers = _record_profiles(console, _Plan(source, directory, seconds, workers, interval_ms))
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    draw(analyse(directory), directory, console=console)
    for log in ("service.log", "service-aggregating.log"):
        console.print(f"{(directory / log).resolve()}  (what the service printed)", soft_wrap=True)
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


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the service; `name` is that of its log, `step` its number in the demo."""

    name: str
    step: int
    title: str
    data_format: str
    interval_ms: int
    seconds: int


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _record_profiles(console: Terminal, plan: _Plan) -> Counter[str]:
    """Fill the directory and return the counts of the answers to requests."""
    directory = plan.directory
    collector_command = [*own_command("collect"), "--port", "0", "--output", str(directory)]
    console.print(describe_step(1, "the collector", collector_command), soft_wrap=True)
    make_directory(directory)
    with run_process("collector", collector_command, environment(), directory) as collector:
        env = {
            **environment(),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.wait_for_address()}",
            "SHOP_DATABASE": str(directory / "shop.sqlite3"),
        }
        text = _Run("service", 2, "the service", "text", plan.interval_ms, plan.seconds)
        with _run_service(console, plan, text, env) as (service, port):
            agent_command = [
                *own_command("host-agent"),
                str(service.process.pid),
                "--rate",
                str(_AGENT_RATE_HZ),
                "--json",
            ]
            console.print(describe_step(3, "a stand-in for a host profiler", agent_command), soft_wrap=True)
            with run_process("host-agent", agent_command, environment(), directory) as agent:
                agent.wait_for_output()
                answers = _run_load(console, plan, text, service, port)
                # Before the service, which still has to receive the agent's last messages.
                agent.stop(expected_codes=(0, 1))
            console.print(f"   the stand-in {summarize_log(agent.log)}", soft_wrap=True)
            service.stop()
        seconds, interval_ms = -(-plan.seconds // 2), min(plan.interval_ms, _AGGREGATED_INTERVAL_MS)
        pprof = _Run("service-aggregating", 5, "the service, aggregating", "pprof-gzip-base64", interval_ms, seconds)
        with _run_service(console, plan, pprof, env) as (service, port):
            answers += _run_load(console, plan, pprof, service, port)
            service.stop()
        collector.stop()
        return answers


@contextmanager
def _run_service(console: Terminal, plan: _Plan, run: _Run, env: Mapping[str, str]) -> Iterator[tuple[Child, int]]:
    """Run the shop until the block ends; yield it when it answers, with its port."""
    with socket.create_server((_HOST, 0)) as listener:
        port = listener.getsockname()[1]
        # A short export interval: uvicorn ends by a signal, which loses the samples that are not yet exported.
        command = [*own_command("run"), "--interval-ms", str(run.interval_ms), "--export-interval-ms", "1000"]
        command += ["--data-format", run.data_format, "--"]
        command += [sys.executable, "-m", "uvicorn", "shop.app:app", "--app-dir", str(plan.source), "--no-access-log"]
        command += ["--fd", str(listener.fileno())]
        console.print(describe_step(run.step, run.title, command), soft_wrap=True)
        hook = make_ptrace_hook(os.getpid())
        with run_process(run.name, command, env, plan.directory, listener.fileno(), preexec=hook) as service:
            # Now only the service holds the port. If it ends, connections are refused instead of queued.
            listener.close()
            service.wait_for_health(port)
            yield service, port


def _run_load(console: Terminal, plan: _Plan, run: _Run, service: Child, port: int) -> Counter[str]:
    """Send requests for the duration of the run and return the counts of the answers."""
    step = run.step + 1 if run.data_format != "text" else run.step + 2
    console.print(
        f"{step}  {plan.workers} clients for {run.seconds} s; a sample every {run.interval_ms} ms (usual: 1000)"
    )
    load = Load(_HOST, port, plan.workers)
    load.start()
    try:
        _show_progress(console, load, service, run)
    finally:
        load.stop()
    answers = load.answers()
    console.print(f"   {sum(answers.values())} requests answered: {answers}")
    return Counter(answers)


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


def _show_progress(console: Terminal, load: Load, service: Child, run: _Run) -> None:
    """Show the progress of the load and the received records until the run's time is over."""
    columns = (TextColumn("   {task.description}", markup=False), BarColumn(30), TimeRemainingColumn())
    start = time.monotonic()
    record_counts = _count_records(service.log.with_name(LOGS))
    next_line = 5.0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=run.seconds)
        while (elapsed := time.monotonic() - start) < run.seconds:
            if service.process.poll() is not None:
                raise service.error(f"the service ended with {service.process.returncode}")
            text = f"{sum(load.answers().values()):,} requests, {next(record_counts):,} records received"
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
