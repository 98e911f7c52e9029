"""What stopping a correlator leaves behind while host profilers go on sending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from correlator_bench import Bench

from splunk_profiler._context import Mailbox


class Talkative:
    """A mailbox that gets a message of a host profiler whenever somebody wakes its reader."""

    def __init__(self, descriptor: int) -> None:
        self._mailbox = Mailbox(descriptor)
        self.say: Any = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mailbox, name)

    def wake(self) -> None:
        self.say()
        self._mailbox.wake()


@pytest.mark.parametrize("kind", ["a report", "a registration"])
def test_what_profilers_send_while_it_stops_does_not_begin_it_anew(tmp_path: Path, kind: str) -> None:
    made: list[Talkative] = []

    def talkative(descriptor: int) -> Talkative:
        made.append(Talkative(descriptor))
        return made[-1]

    bench = Bench(tmp_path, at_once=True, resource={}, mailbox=talkative)
    span = bench.tracer.start_span("seen")
    held = bench.processor.on_end  # a thread of the application may have it in its hands, and call it later
    made[-1].say = (lambda: bench.saw(span)) if kind == "a report" else bench.register
    bench.correlator.stop(1)
    made[-1].say = lambda: None
    try:
        late: Any = bench.tracer.start_span("late")
        held(late)
        assert [one.name for one in bench.exporter.get_finished_spans()] == ["late"]
        assert not {"on_end", "on_start"} & vars(bench.processor).keys()
    finally:
        bench.end()
