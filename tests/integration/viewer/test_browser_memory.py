"""A leak of a real process, found by its line on the page of its recording, as docs/viewer.md says."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import Page
from command_line import ROOT, collect_program
from viewer_page import IN_BROWSER, SCREENS, act, click, shown_on

pytestmark = [
    *IN_BROWSER,
    pytest.mark.skipif(find_spec("splunk_profiler._walker") is None, reason="memory needs the native walker"),
]
LEAKY = ROOT / "examples" / "leaky.py"
ROWS = "[...byId('source-lines').querySelectorAll('tbody tr')].map((row) => [...row.cells].map((at) => at.innerText))"


def test_a_leak_is_found_by_its_line(page: Page, tmp_path: Path) -> None:
    settings = {
        "SPLUNK_PROFILER_MEMORY_ENABLED": "true",
        "SPLUNK_PROFILER_MEMORY_SAMPLE_BYTES": "65536",
        "SPLUNK_PROFILER_DATA_FORMAT": "pprof-gzip-base64",
        "SPLUNK_PROFILER_EXPORT_INTERVAL": "500",
    }
    collect_program(tmp_path, LEAKY, "4", env=settings)
    with shown_on(page, tmp_path) as address:
        page.open(address)
        act(page, "byId('value').value = 'inuse_space'; byId('value').dispatchEvent(new Event('change'))")
        page.value("byId('timeline').focus()")
        page.press("ArrowLeft")  # the first step
        act(page, "byId('timeline').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter' }))")
        click(page, "#compare")
        click(page, "#whole")
        click(page, "[data-view=top]")
        page.click_on("#search")
        page.write("leaky.py")
        page.wait("byId('found').innerText.includes('functions')")
        click(page, "[data-sort=total]")
        click(page, "([...document.querySelectorAll('#top button')].find((at) => at.innerText === '__main__.load'))")
        click(page, "[data-view=source]")
        page.keep_picture(SCREENS / "leak.png")
        rows = page.value(ROWS)
    grown = [row for row in rows if "MiB" in row[3] and re.match(r"\+|new", row[4])]
    most = max(grown, key=lambda row: float(row[3].split()[0]))
    line, source = next(each for each in enumerate(LEAKY.read_text("utf-8").splitlines(), 1) if "loads(" in each[1])
    assert (int(most[0]), most[1].strip()) == (line, source.strip())
