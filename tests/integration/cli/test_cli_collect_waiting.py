"""Requests that wait in the collector, as a slow disk makes them."""

from __future__ import annotations

import json
import subprocess
import sys

from command_line import DEADLINE_S, TARGETS, clean_environment


def test_a_request_whose_sender_has_given_up_is_not_saved() -> None:
    ended = subprocess.run(
        [sys.executable, TARGETS / "given_up_request.py"],
        env=clean_environment(),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert json.loads(ended.stdout) == [["first", "third"], 1]
