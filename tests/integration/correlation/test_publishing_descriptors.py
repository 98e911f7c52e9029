"""Applications that close all descriptors, as daemons do, with the profiler's socket among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_profiler import HostProfiler
from publishing_target import publishing_settings, socket_folder
from target_process import Target

pytest.importorskip("splunk_profiler._context")

_ANEW = "DEBUG:splunk_profiler:the socket for host profilers had been closed and has been made anew"
_GIVEN_UP = (
    "WARNING:splunk_profiler:host profilers cannot send to this process any more:"
    " the application has closed its socket, and it does so again and again"
)
_CONTENTS = ["in a file", "in the other", "in a socket", "in a pipe"]
_MAX_SOCKETS = 4


def register(path: str, delay_ms: int) -> None:
    """Register as a host profiler that has read the path."""
    with HostProfiler(path) as host:
        host.register(delay_ms, "i-1", minor=2)


def test_socket_closed_by_the_application_is_remade_at_the_same_path() -> None:
    with socket_folder() as folder, Target("closing_descriptors.py", env=publishing_settings(folder)) as target:
        before = target.json("ready")
        path = before["storage"]
        assert before["bound"] == [path]
        register(path, 100)
        target.find("(has registered .* wait 120 ms)")
        target.tell("close")
        target.line("closed")
        target.line(_ANEW)
        register(path, 200)
        target.find("(has registered .* wait 220 ms)")
        target.tell("look")
        assert target.json("look") == {"storage": path, "bound": [path], "contents": _CONTENTS}
        assert list(folder.iterdir()) == [Path(path)]
        target.tell("end")
        assert target.json("left") == {"storage": None, "bound": []}
        assert target.finish() == 0
        assert not list(folder.iterdir())
        assert "WARNING" not in target.output


def test_socket_closed_again_and_again_is_given_up_with_one_warning() -> None:
    with socket_folder() as folder, Target("closing_descriptors.py", env=publishing_settings(folder)) as target:
        target.line("ready")
        for made in range(_MAX_SOCKETS + 1):
            target.tell("close")
            if target.wait_for_either(_ANEW, _GIVEN_UP, made) == _GIVEN_UP:  # sooner, if one is closed while it is made
                break
        assert target.has_line(_GIVEN_UP)
        target.tell("look")
        assert target.json("look") == {"storage": None, "bound": [], "contents": _CONTENTS}
        assert not list(folder.iterdir())
        target.tell("end")
        assert target.finish() == 0
        assert target.output.count("WARNING") == 1
