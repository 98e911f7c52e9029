"""Two versions of a service that ran are compared by requests, wherever their spans are kept; and two endpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Page
from clickhouse_tables import ORDERS, Database
from command_line import DEADLINE_S, ROOT, clean_environment, run_collector
from sample_stores import put, writing
from viewer_page import act, click, shown, shown_on

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.clickhouse import ClickHouse
from splunk_profiler.viewer.live_files import LiveFiles
from splunk_profiler.viewer.live_store import LiveStore
from splunk_profiler.viewer.model import Baseline, Selection
from splunk_profiler.viewer.source import Source

REQUESTS = {"1.0": 3, "1.1": 6}  # each is a span of its own


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the records and spans of two versions of a batch job."""
    directory = tmp_path_factory.mktemp("released") / "profiles"
    settings = {"SPLUNK_PROFILER_ENABLED": "true", "SPLUNK_PROFILER_CALL_STACK_INTERVAL": "10"}
    with run_collector(directory) as collector:
        for version, requests in REQUESTS.items():
            settings["OTEL_RESOURCE_ATTRIBUTES"] = f"service.version={version}"
            settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://{collector.address}"
            command = [sys.executable, str(ROOT / "examples" / "batch.py"), *["60000"] * requests]
            subprocess.run(command, env=clean_environment(settings), timeout=DEADLINE_S, check=True)
    return directory


def lines_of(directory: Path) -> list[str]:
    return [line for file in sorted(directory.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]


def files(released: Path, _tmp_path: Path, _database: Database) -> Source:
    return LiveFiles(released)


def store(released: Path, tmp_path: Path, _database: Database) -> Source:
    with writing(tmp_path / "store.db") as writer:
        put(writer, *lines_of(released), received_ns=0)
        writer.run_maintenance(int(released.stat().st_mtime * 1e9))
    return LiveStore(tmp_path / "store.db")


def database_of(order: str) -> Callable[[Path, Path, Database], Source]:
    def fill(released: Path, _tmp_path: Path, database: Database) -> Source:
        database.make_tables(order)
        database.insert(lines_of(released))
        return ClickHouse(database.address, database.environment, lag_ns=-(10**11))

    return fill


def of_version(*versions: str) -> Selection:
    return Selection("samples", filters={"version": frozenset(versions), "service": frozenset({"batch"})})


@pytest.mark.parametrize("shown_by", [files, store, *map(database_of, ORDERS)], ids=["files", "store", *ORDERS])
def test_two_versions_are_compared_by_requests(
    released: Path, tmp_path: Path, database: Database, shown_by: Any
) -> None:
    source = shown_by(released, tmp_path, database)
    answers = Answers(source)
    assert {version for version, _ in answers.facets(Selection("samples"))["facets"]["version"]} == set(REQUESTS)
    for version, requests in REQUESTS.items():
        assert source.count_requests(of_version(version)) == requests
    assert source.count_requests(of_version(*REQUESTS)) == sum(REQUESTS.values())
    assert source.count_requests(of_version("")) == 0
    old, new = (answers.flame(of_version(version), inverted=False)["total"] for version in REQUESTS)
    for compared, total, scale in ((("1.1", "1.0"), old, 2.0), (("1.0", "1.1"), new, 0.5)):
        selection, baseline = map(of_version, compared)
        found = answers.flame(selection, False, Baseline(baseline, "requests"))
        assert found["before"] == round(scale * total) > 0


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.usefixtures("no_error_on_the_console")
def test_the_page_compares_two_versions_by_requests(page: Page, released: Path) -> None:
    with shown_on(page, released) as address:
        page.open(f"{address}#value=samples&f.service=batch&f.version=1.0")
        old = page.value("graph.frames[0].total")
        click(page, "#compare")
        for version in ("1.0", "1.1"):
            click(page, f"[data-choice='version {version}']")
        act(page, "byId('scale').value = 'requests'; byId('scale').dispatchEvent(new Event('change'))")
        assert page.value("byId('problem').hidden")
        assert page.value("graph.frames[0].before") == 2 * old > 0
        page.value("set({ 'f.thread': 'MainThread' }); show()")
        page.wait("!byId('problem').hidden")
        assert shown(page, "#problem").endswith("service, version, endpoint and trace: remove the filter by thread")
        act(page, "set({ 'f.thread': '' }); show()")
        assert page.value("byId('problem').hidden")
        page.problems.clear()  # the browser itself logs the status, of two answers of which the page waits for one


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.usefixtures("no_error_on_the_console")
def test_the_page_compares_two_endpoints(page: Page, address: str) -> None:
    page.open(f"{address}#f.endpoint=GET+%2Fsearch")
    click(page, "#compare")
    for endpoint in ("POST /checkout", "GET /search"):
        click(page, f"[data-choice='endpoint {endpoint}']")
    assert page.value("[...state].filter(([name]) => name.includes('f.'))") == [
        ["b.f.endpoint", "GET /search"],
        ["f.endpoint", "POST /checkout"],
    ]
    assert "endpoint GET /search" in shown(page, "#compared")
    assert page.value("Object.fromEntries(graph.frames.map((f) => [f.name, [f.total / 1e9, f.before / 1e9]]))") == {
        "all": [60, 240],
        "uvicorn.server.Server.serve": [60, 240],
        "billing.pay": [60, 0],
    }
    assert shown(page, "#gone") == "4 functions gone, 4.00 min"
    click(page, "#swap")
    assert shown(page, "#total") == "4.00 min"
    assert shown(page, "#gone") == "1 function gone, 1.00 min"
