"""Spans that a time limit interrupts, as one of Celery's or RQ's does: ``interrupted_spans.py (sampled|unsampled)``.

Prints how many times the signal handler has raised, and how many of these errors have reached the application.
"""

from __future__ import annotations

import signal
import sys

from marked_work import say
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import splunk_profiler
from splunk_profiler.otel import spans

_TURNS = 1000


class SoftTimeLimitError(Exception):
    """The error of a handler: an `Exception`, as those of Celery and RQ are."""


def main() -> None:
    raised = arrived = 0

    def raise_error(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise SoftTimeLimitError

    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_ON if sys.argv[1] == "sampled" else ALWAYS_OFF))
    tracer, runtime = trace.get_tracer("interrupted"), spans.runtime_context()
    assert splunk_profiler.start()
    root = trace.set_span_in_context(tracer.start_span("root"))

    def work() -> None:
        child = tracer.start_span("child", root)
        # OpenTelemetry's own `detach` swallows every `Exception`.
        runtime.detach(runtime.attach(trace.set_span_in_context(child)))
        child.end()

    signal.signal(signal.SIGALRM, raise_error)
    for turn in range(_TURNS):
        try:
            signal.setitimer(signal.ITIMER_REAL, (1 + turn % 97) * 1e-5)
            while raised == turn:
                work()
            work()  # an error in C is raised a little later
        except SoftTimeLimitError:
            arrived += 1
    say("interrupted", [raised, arrived])
    splunk_profiler.stop()


if __name__ == "__main__":
    main()
