"""An application that knows nothing of the profiler: it sets up no provider, works in spans and ends when told."""

from __future__ import annotations

from marked_work import LEDGER, UntilTold, say, wait, work


def main() -> None:
    until = UntilTold()
    say("ready")
    while until.goes_on:
        with LEDGER.span(7):
            work(7)
            wait(7)
    LEDGER.dump()


if __name__ == "__main__":
    main()
