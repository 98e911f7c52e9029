"""Tests that nothing moves on an open page while new data comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from browser import Page
from profile_factory import record_body, small_profile
from saved_samples import append, profile_line, sample_line, span_line
from viewer_page import IN_BROWSER, act, shown, shown_on

pytestmark = IN_BROWSER
CHOICES = "[...document.querySelectorAll('#facets input[type=checkbox]')].map((each) => each.dataset.choice)"


def add(page: Page, path: Path, content: str) -> None:
    """Let data come, and wait until the page has it."""
    before = page.value("document.body.dataset.shown")
    append(path, content)
    page.wait(f"document.body.dataset.shown !== {before!r}")
    page.value("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")  # it has been drawn


@pytest.mark.parametrize("width", [1280, 390])
def test_new_data_moves_nothing(page: Page, tmp_path: Path, width: int) -> None:
    path = tmp_path / "logs.jsonl"
    path.write_text("".join(sample_line(service=name, state="waiting") for name in ("shop", "billing")), "utf-8")
    with shown_on(page, tmp_path) as address:
        page.open(address, width=width)
        add(page, path, "this is no JSON\n")
        assert shown(page, "#note") == "1 record could not be read."
        assert page.value("byId('note').getBoundingClientRect().bottom <= innerHeight") is (width == 1280)
        choices = page.value(CHOICES)
        for content in (
            "".join(sample_line(service=f"s{number}") * 3 for number in range(20)),
            span_line("GET /search"),
            profile_line(record_body(replace(small_profile(), time_ns=6_000_000_000))),
        ):
            add(page, path, content)
        assert page.value(CHOICES)[: len(choices)] != page.value(CHOICES)
        assert page.shifts() == []
        assert page.value("byId('facets').querySelectorAll('section:not([hidden])').length") > 4
        act(page, "show()")
        assert page.value("[...document.querySelectorAll('#facets section')].every((each) => !each.style.height)")
