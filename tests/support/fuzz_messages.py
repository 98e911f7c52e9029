"""Millions of datagrams through the decoder and through a second one, on all processors.

    fuzz_messages.py [--count N]

Ends with what was seen of each kind, and with exit status 1 at the first difference or exception, which it shows in
full. Imports the decoder from wherever Python finds the package.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from message_oracle import datagrams, facts, facts_of

from splunk_profiler.host_profilers.messages import decode

_SHARE = 250_000  # datagrams of one task


class DifferenceError(Exception):
    """The two decoders do not agree."""


def tried(count: int, seed: int) -> Counter[object]:
    """How many datagrams of which kind were decoded.

    Raises:
        DifferenceError: one was decoded wrongly, or not at all.
    """
    kinds: Counter[object] = Counter()
    for datagram in datagrams(count, seed):
        wanted = facts(datagram)
        try:
            found = facts_of(decode(datagram))
        except Exception as error:
            raise DifferenceError(f"seed {seed}: {datagram.hex()} raised {error!r}") from error
        if found != wanted:
            raise DifferenceError(f"seed {seed}: {datagram.hex()} is {wanted}, and was decoded as {found}")
        kinds[wanted[0]] += 1
    return kinds


def main() -> None:
    """Share the work, sum, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first share; the others have the next ones")
    arguments = parser.parse_args()
    shares = [_SHARE] * (arguments.count // _SHARE) + [arguments.count % _SHARE]
    began = time.monotonic()
    kinds: Counter[object] = Counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(tried, shares, range(arguments.seed, arguments.seed + len(shares))):
            kinds += found
    seen = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=str))
    print(f"{kinds.total()} datagrams in {time.monotonic() - began:.0f} s, no difference: {seen}")


if __name__ == "__main__":
    try:
        main()
    except DifferenceError as difference:
        raise SystemExit(str(difference)) from None
