"""Spans on threads, in tasks and in copied contexts, with labels: the state of a span must be freed with it."""

from __future__ import annotations

import asyncio
import contextvars

import splunk_profiler
from soak.harness import ScenarioHarness

THREADS = 3
CONCURRENCY = 100


def main() -> None:
    """Open and close spans until the count is reached."""
    harness = ScenarioHarness()
    start = harness.tracer.start_as_current_span

    def nested() -> None:
        for number in range(CONCURRENCY // 2):
            with start(f"GET /{number % 20}"), splunk_profiler.labels(route=str(number % 20)), start("inner"):
                pass

    async def request(number: int) -> None:
        with start(f"task {number % 20}"):
            await asyncio.sleep(0)
            with start("inner"):
                await asyncio.sleep(0)

    async def requests() -> None:
        await asyncio.gather(*(request(number) for number in range(CONCURRENCY // 2)))

    def churn() -> None:
        while not harness.is_over:
            nested()
            contextvars.copy_context().run(nested)
            asyncio.run(requests())
            harness.add_done(3 * CONCURRENCY)

    harness.run_on_threads(churn, THREADS)
    harness.end()


if __name__ == "__main__":
    main()
