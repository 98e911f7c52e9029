"""Profiles for tests of formats and export: small ones to read, large ones to split."""

from __future__ import annotations

import base64
import gzip
import random

from splunk_profiler.capture.events.garbage_collections import GC_KIND
from splunk_profiler.formats.pprof import OriginOf, encode_whole
from splunk_profiler.model import Frame, Stack
from splunk_profiler.samples import Aggregate, CodeOrigin, OriginKind, Profile

_SERVE = Frame("shop.app", "serve", "/srv/shop/app.py", 88, 80)
_CHECKOUT = Frame("shop.cart.Cart", "checkout", "/srv/shop/cart.py", 41, 30)
_TAX = Frame("shop.cart.Cart.checkout.<locals>", "<lambda>", "/srv/shop/cart.py", 38, 38)
_WAIT = Frame("threading.Condition", "wait", "/usr/lib/python3.12/threading.py", 355, 323)
_GENERATED = Frame("unknown", "step", "<string>", None)

_THREAD = (("thread.id", 0x7FDE4D00C000), ("thread.os.id", 47619), ("thread.name", "worker-1"))
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
_SPAN = (("trace_id", TRACE_ID), ("span_id", SPAN_ID))


def origin_in_shop(file: str, _namespace: str) -> CodeOrigin:
    """Return the code origin of a file in these profiles."""
    if file.startswith("/srv/shop/"):
        return CodeOrigin(OriginKind.APPLICATION, "shop", "1.4")
    if file.startswith("/usr/lib/python3.12/"):
        return CodeOrigin(OriginKind.STANDARD_LIBRARY, "python", "3.12.1")
    if "/site-packages/" in file:
        return (
            CodeOrigin(OriginKind.LIBRARY, "requests", "2.32")
            if "/requests/" in file
            else CodeOrigin(OriginKind.LIBRARY)
        )
    return CodeOrigin(OriginKind.UNKNOWN)


def message(profile: Profile, origin_of: OriginOf = lambda _file, _namespace: CodeOrigin(OriginKind.UNKNOWN)) -> bytes:
    """Return `profile` as one pprof message, not compressed."""
    return gzip.decompress(encode_whole(profile, origin_of=origin_of).gzipped)


def record_body(profile: Profile) -> str:
    """Return `profile` as the body of a log record."""
    return base64.b64encode(encode_whole(profile).gzipped).decode()


def small_profile() -> Profile:
    """Make a profile of ten seconds of one thread: a span, odd names, waiting, garbage collection."""
    period = ("source.event.period", 10)
    return Profile(
        time_ns=1_780_000_000_000_000_000,
        duration_ns=10_000_000_000,
        period_ns=10_000_000,
        aggregates=(
            Aggregate(
                Stack((_TAX, _CHECKOUT, _SERVE), truncated=False),
                (("source.event.time", 1_780_000_000_010), period, *_THREAD, ("thread.state", "RUNNABLE"), *_SPAN),
                count=300,
                wall_ns=3_000_400_000,
                cpu_ns=2_500_000_000,
            ),
            Aggregate(
                Stack((_CHECKOUT, _SERVE), truncated=False),
                (("source.event.time", 1_780_000_000_020), period, *_THREAD, ("thread.state", "RUNNABLE"), *_SPAN),
                count=100,
                wall_ns=1_000_000_000,
                cpu_ns=500_000_000,
            ),
            Aggregate(
                Stack((_WAIT, _GENERATED), truncated=True),
                (
                    ("source.event.time", 1_780_000_004_010),
                    period,
                    *_THREAD,
                    ("thread.state", "WAITING"),
                    ("thread.stack.truncated", "true"),
                ),
                count=600,
                wall_ns=5_999_600_000,
                cpu_ns=0,
            ),
            Aggregate(
                Stack((_CHECKOUT, _SERVE), truncated=False),
                (
                    ("source.event.time", 1_780_000_000_500),
                    ("source.event.name", "gc"),
                    ("gc.generation", "2"),
                    *_THREAD,
                    ("thread.state", "RUNNABLE"),
                    *_SPAN,
                    ("tenant", "acme"),
                ),
                count=0,
                wall_ns=0,
                cpu_ns=0,
                kind=GC_KIND,
                event_count=3,
                event_amount=36_000_000,
            ),
        ),
        kinds=(GC_KIND,),
    )


def large_profile(aggregates: int, *, dropped_labels: int = 0) -> Profile:
    """Make a profile of so many aggregates, each with 40 frames and its own span."""
    source = random.Random(aggregates)  # the same at every call
    places = [Frame(f"shop.part{i % 30}.Part", f"step_{i}", f"/srv/shop/part{i % 30}.py", i, i) for i in range(1, 600)]
    root = places[:30]
    made = []
    for number in range(aggregates):
        stack = Stack((*source.choices(places, k=10), *root), truncated=False)
        span = (("trace_id", f"{source.getrandbits(128):032x}"), ("span_id", f"{source.getrandbits(64):016x}"))
        labels = (("source.event.time", 1_780_000_000_000 + number), ("thread.name", f"worker-{number % 50}"), *span)
        made.append(Aggregate(stack, labels, 1, 10_000_000 + number, number))
    return Profile(1_780_000_000_000_000_000, 10_000_000_000, 10_000_000, tuple(made), dropped_labels, kinds=(GC_KIND,))
