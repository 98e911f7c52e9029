"""A fuzz test of the message decoder against a second decoder, on all processors.

    fuzz_messages.py [--count N]

Prints the number of datagrams of each kind. Exits with status 1 at the first difference or exception, shown in
full. Imports the decoder from wherever Python finds the package.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from message_oracle import datagrams, decoded_fields, expected_fields

from splunk_profiler.host_profilers.messages import decode

_TASK_SIZE = 250_000  # datagrams of one task


class DifferenceError(Exception):
    """The two decoders differ."""


def compare_decoders(count: int, seed: int) -> Counter[object]:
    """Decode datagrams with both decoders and count them by kind.

    Raises:
        DifferenceError: the decoders differ, or one raised.
    """
    kinds: Counter[object] = Counter()
    for datagram in datagrams(count, seed):
        expected = expected_fields(datagram)
        try:
            found = decoded_fields(decode(datagram))
        except Exception as error:
            raise DifferenceError(f"seed {seed}: {datagram.hex()} raised {error!r}") from error
        if found != expected:
            raise DifferenceError(f"seed {seed}: {datagram.hex()} is {expected}, and was decoded as {found}")
        kinds[expected[0]] += 1
    return kinds


def main() -> None:
    """Distribute the work and print the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first share; the others have the next ones")
    arguments = parser.parse_args()
    shares = [_TASK_SIZE] * (arguments.count // _TASK_SIZE) + [arguments.count % _TASK_SIZE]
    started_s = time.monotonic()
    kinds: Counter[object] = Counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(compare_decoders, shares, range(arguments.seed, arguments.seed + len(shares))):
            kinds += found
    seen = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=str))
    print(f"{kinds.total()} datagrams in {time.monotonic() - started_s:.0f} s, no difference: {seen}")


if __name__ == "__main__":
    try:
        main()
    except DifferenceError as difference:
        raise SystemExit(str(difference)) from None
