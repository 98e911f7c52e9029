"""`view` opens its address in a browser: a program that writes down what it is given."""

from __future__ import annotations

import os
import pty
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from command_line import COMMAND, DEADLINE_S, clean_environment
from saved_samples import sample_line

DESKTOP = {"DISPLAY": ":7"}


@pytest.mark.parametrize(
    ("arguments", "environment", "opens"),
    [
        ((), DESKTOP, True),
        (("--no-open",), DESKTOP, False),
        ((), {**DESKTOP, "SSH_CONNECTION": "::1 40000 ::1 22"}, False),
        (("--open",), {}, True),
    ],
)
def test_the_address_is_opened_at_a_terminal_of_a_desktop(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], opens: bool
) -> None:
    (tmp_path / "logs.jsonl").write_text(sample_line(), "utf-8")
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n', "utf-8")
    browser.chmod(0o700)
    nothing = dict.fromkeys(("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"), "")
    ours, theirs = pty.openpty()
    with (
        closing(os.fdopen(ours, encoding="utf-8")) as terminal,
        subprocess.Popen(
            [*COMMAND, "view", str(tmp_path), *arguments],
            env=clean_environment({**nothing, **environment, "BROWSER": f"{browser} %s"}),
            stdout=theirs,
        ) as process,
    ):
        os.close(theirs)
        try:
            address = terminal.readline().split()[-1]
            urllib.request.urlopen(address, timeout=DEADLINE_S).close()  # what it opens is open before it answers
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
    assert (opened.read_text("utf-8").strip() if opened.exists() else "") == (address if opens else "")
