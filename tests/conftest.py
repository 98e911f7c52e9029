"""Fixtures and guards of all tests."""

from __future__ import annotations

# Before any tracer provider: a child of fork runs the SDK's hook first otherwise, which submits to an executor while
# the lock of all executors is still held for the fork, and waits for ever.
import concurrent.futures.thread  # noqa: F401
import fcntl
import gc
import os
import secrets
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import opentelemetry.context as otel_context
import pytest
from clickhouse_tables import Database, run_server
from command_line import collect_batch
from datadog_agent import NotInstallableError
from destinations import Destination, datadog, pprof, text
from hypothesis import HealthCheck, settings
from inspected_process import TargetBuilder
from profile_files import wait_until
from target_process import TESTS, TREE, Target, profiling_settings
from wheel_builder import build_wheel, copy_sources

from splunk_profiler.system.threads import NAME_PREFIX

if TYPE_CHECKING:
    from browser import Page
    from own_memory import InstalledPublisher, OwnMemory  # they need the extension, which is not built everywhere

    from splunk_profiler.exporter_process.connection import ExporterConnection


_databases = count()
# Exporters inherit LC_ variables of their hosts, and no helper of the tests clears them.
_MARK = ("LC_SPLUNK_PROFILER_TESTS", str(os.getpid()))
os.environ.update([_MARK])
os.environ.pop(TREE, None)
_BLOCKED = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # before any module of tests

# The time that an example takes depends on the load of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell without job control starts its background jobs with SIGINT ignored, which our processes would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Let objects end with their last reference, and none by a garbage collection."""
    gc.disable()
    yield
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are processors: many tests wait for processes of theirs."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest: at the end, all workers but one would wait for them."""
    items.sort(key=lambda item: item.get_closest_marker("takes_long") is None)


def pytest_collection_finish() -> None:
    """Keep all that has been imported out of later collections: many tests begin one."""
    gc.collect()
    gc.freeze()


def _sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith("socket:"):
            found.add(target)
    return found


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of a run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def wheel_folder(of_all_workers: Path) -> Path:
    """Return the folder in which one of the run's workers builds the wheel of this checkout."""
    folder = of_all_workers / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(folder.glob("wheels/*.whl")):
            build_wheel(copy_sources(folder), os.environ["PATH"])
    return folder


@pytest.fixture(scope="session")
def batch_folder(of_all_workers: Path) -> Callable[[str], Path]:
    """Return a function from a data format to the folder in which one worker has collected a batch job's records."""

    def find(data_format: str) -> Path:
        folder = of_all_workers / f"batch-{data_format}"
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                collect_batch(folder, data_format, 50_000, 80_000)
        return folder

    return find


@pytest.fixture(scope="session")
def workshop(of_all_workers: Path) -> TargetBuilder:
    """Return a compiler of targets, each of which one of the run's workers compiles."""
    folder = of_all_workers / "workshop"
    folder.mkdir(exist_ok=True)
    return TargetBuilder(folder)


@pytest.fixture(scope="session")
def wheel(wheel_folder: Path) -> Iterator[zipfile.ZipFile]:
    """Return the wheel of this checkout."""
    (built,) = wheel_folder.glob("wheels/*.whl")
    with zipfile.ZipFile(built) as opened:
        yield opened


@pytest.fixture(scope="module", params=[text, pprof, datadog], ids=lambda kind: kind.__name__)
def destination(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Destination]:
    """Run a destination of profiles, for each of the formats."""
    try:
        with request.param(tmp_path_factory.mktemp("destination")) as made:
            yield made
    except NotInstallableError as error:
        pytest.skip(f"the test agent cannot be had: {error}")


@pytest.fixture
def publishing() -> Iterator[InstalledPublisher]:
    """Install a publisher for one test."""
    from own_memory import InstalledPublisher  # noqa: PLC0415

    publishing = InstalledPublisher()
    publishing.install()
    yield publishing
    publishing.uninstall()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Run a browser and return a tab of it."""
    from browser import run_browser  # noqa: PLC0415

    with run_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def no_error_on_the_console(page: Page) -> Iterator[None]:
    """Fail a test in which the page reports an error."""
    page.problems.clear()
    yield
    assert not page.problems
    page.do("Page.navigate", url="about:blank")  # a page that is left goes on asking its server for news


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the page of two services and return its address."""
    from viewer_page import lines, serve  # noqa: PLC0415

    directory = tmp_path_factory.mktemp("profiles")
    (directory / "logs.jsonl").write_text("".join(lines()), "utf-8")
    with serve(directory) as found:
        yield found


@pytest.fixture
def high_priority(of_all_workers: Path) -> Iterator[None]:
    """Run a test and its processes before others, one such test at a time: each stop of a thread needs a processor."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with (of_all_workers / "priority").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(PermissionError):  # then it takes longer
            os.setpriority(os.PRIO_PROCESS, 0, usual - 10)
        yield
        os.setpriority(os.PRIO_PROCESS, 0, usual)


@pytest.fixture
def memory(publishing: InstalledPublisher) -> OwnMemory:
    """Return a reader of what this process publishes."""
    from own_memory import OwnMemory  # noqa: PLC0415

    publishing.publish()
    return OwnMemory()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread, a hook, a socket or an environment variable of ours behind."""
    environment, sockets = dict(os.environ), _sockets()
    callbacks = [*gc.callbacks]
    yield
    assert [callback for callback in gc.callbacks if "collection" in repr(callback).lower()] == [
        callback for callback in callbacks if "collection" in repr(callback).lower()
    ], "the test left a callback of the collector"
    ours = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    environment.pop("PYTEST_CURRENT_TEST", None)
    assert ours == environment, "the test changed the environment"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert blocked == _BLOCKED, "the test, or what a module of tests has loaded, left signals blocked"
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith(NAME_PREFIX)]
    assert not threads, "the test left threads of the profiler running"
    hooks = {"attach", "detach"} & vars(otel_context._RUNTIME_CONTEXT).keys()
    assert not hooks, "the test left OpenTelemetry's runtime context decorated"
    deadline = time.monotonic() + 10  # gRPC closes its sockets on threads of its own
    while _sockets() - sockets and time.monotonic() < deadline:
        os.sched_yield()
    assert not _sockets() - sockets, "the test left sockets open"


@pytest.fixture(scope="module", autouse=True)
def no_exporter_is_left_behind() -> Iterator[None]:
    """Fail if an exporter goes on after the tests of a module, by whichever processes of theirs it was started."""
    yield
    if find_spec("splunk_profiler._walker") is None:
        return
    from exporter_processes import exporters_with_variable, wait_for_end  # noqa: PLC0415  # they need the extension

    for exporter in exporters_with_variable("=".join(_MARK)):
        try:
            wait_for_end(exporter)
        except AssertionError:
            os.kill(exporter, signal.SIGKILL)  # or the modules after this one fail by it, too
            raise


@pytest.fixture(scope="module")
def shared_exporter() -> Iterator[None]:
    """Keep an exporter for all targets of a module: each start of one loads gRPC."""
    code = "import splunk_profiler; splunk_profiler.start(); print('ready', flush=True); input()"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TREE, secrets.token_hex())
        with Target(sys.executable, "-c", code, env=profiling_settings("http://127.0.0.1:9", 3_600_000)) as target:
            target.line("ready")
            if find_spec("splunk_profiler._walker") is not None:
                from exporter_processes import serves  # noqa: PLC0415  # it needs the extension

                wait_until(lambda: serves(target.pid))  # who ends within a second gets no answer of one that starts
            yield
            target.tell("")
            assert target.finish() == 0, target.output


@pytest.fixture
def sessions_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let exporters that a test starts find the sessions in `targets`."""
    monkeypatch.syspath_prepend(str(TESTS / "targets"))


@pytest.fixture
def exporter_token() -> str:
    """The token of `connection`, by default one that no other process knows; modules with a token override this."""
    return ""


@pytest.fixture
def connection(sessions_on_path: None, exporter_token: str) -> Iterator[ExporterConnection]:  # noqa: ARG001
    """A connection to an exporter of `EchoSession`, which ends with the test."""
    from exporter_processes import connected  # noqa: PLC0415  # it needs the extension

    with connected(token=exporter_token) as made:
        yield made


@pytest.fixture(scope="session")
def clickhouse_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with ClickHouse's engine."""
    if find_spec("chdb") is None:  # to import it blocks SIGPIPE
        pytest.skip("chDB is not to be had here")
    with run_server(tmp_path_factory.mktemp("clickhouse")) as port:
        yield port


@pytest.fixture
def database(clickhouse_port: int) -> Database:
    """An empty database of ClickHouse."""
    return Database(clickhouse_port, f"otel_{next(_databases)}")
