"""Samples for tests of formats and export."""

from __future__ import annotations

from splunk_profiler.model import Frame, SpanRef, Stack
from splunk_profiler.samples import Sample, Thread, ThreadSample


def make_sample(
    number: int = 1,
    *,
    name: str = "worker",
    frames: int = 3,
    truncated: bool = False,
    span: SpanRef | None = None,
    period_ns: int = 1_000_000_000,
    function: str = "total",
) -> Sample:
    """Make sample `number`, whose time is that many seconds after the epoch."""
    stack = Stack(tuple(Frame("shop.cart.Cart", function, "cart.py", line) for line in range(1, frames + 1)), truncated)
    thread = Thread(index=7, name=name, ident=0x7F00, native_id=0x1234)
    seen = ThreadSample(
        thread=thread,
        stack=stack,
        cpu_ns=1_500_000,
        start_ns=1_000_000_000,
        os_priority=0,
        running=True,
        waiting_on="",
    )
    return Sample(time_ns=number * 1_000_000_000, period_ns=period_ns, thread=seen, span=span, instant_ns=3_000_000_000)
