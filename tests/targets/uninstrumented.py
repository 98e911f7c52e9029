"""An application without a use of the profiler: it sets up no provider, works in spans and ends on input."""

from __future__ import annotations

from marked_work import LEDGER, InputLatch, say, wait, work


def main() -> None:
    latch = InputLatch()
    say("ready")
    while latch.is_waiting:
        with LEDGER.span(7):
            work(7)
            wait(7)
    LEDGER.dump()


if __name__ == "__main__":
    main()
