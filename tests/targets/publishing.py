"""The publisher in a process of its own: ends, forks, late libraries, the long run.

    publishing.py SCENE [ARGUMENTS]        prints what the test looks at, line by line, and "end"

No SDK: spans and the variable are those of `own_memory`.
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # the tests share own_memory

from own_memory import ELASTIC_PATH, LABELS_PATH, InstalledPublisher, OwnMemory, Span, storage_of

from splunk_profiler import _context

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


def known(span_id: int) -> Span:
    span = Span(TRACE, span_id)
    _context.assign_identity(span)
    return span


def shown_span(memory: OwnMemory) -> int:
    found = memory.elastic()
    return found.span_id if found is not None and found.present else 0


def tls() -> None:
    """Print the kind of TLS access of each library, and the span that a reader finds."""
    print("labels", _context.load_labels_library(LABELS_PATH))
    print("elastic", _context.load_elastic_library(ELASTIC_PATH, storage_of("a", "b", "/c")))
    publishing = InstalledPublisher()
    publishing.install()
    publishing.attach(known(7))
    print("shown", shown_span(OwnMemory()))


def late() -> None:
    """Libraries come one by one while two threads already publish, one of which waits inside its span."""
    publishing, reached, go_on = InstalledPublisher(), threading.Event(), threading.Event()
    publishing.install_hooks()
    _context.begin()

    def waits() -> None:
        publishing.attach(known(5))
        reached.set()
        go_on.wait()
        print("the one that waits", shown_span(OwnMemory()))

    thread = threading.Thread(target=waits)
    thread.start()
    reached.wait()
    publishing.attach(known(7))
    try:
        _context.replace_storage(b"")
    except RuntimeError as problem:
        print("problem", problem)
    _context.load_labels_library(LABELS_PATH)
    labels = ctypes.CDLL(str(LABELS_PATH))
    labels.splunk_profiler_labels_slot.restype = ctypes.POINTER(ctypes.c_void_p)
    print("labels", bool(labels.splunk_profiler_labels_slot()[0]))
    _context.load_elastic_library(ELASTIC_PATH, storage_of("a", "b", "/c"))
    memory = OwnMemory()
    print("span", shown_span(memory))
    go_on.set()
    thread.join()
    publishing.attach(known(8))
    print("next", shown_span(memory), bool(labels.splunk_profiler_labels_slot()[0]))


def thread_end() -> None:
    """A thread that Python did not start, and its memory. Such a one has surely ended when it has been joined."""
    publishing, c_library, thread = InstalledPublisher(), ctypes.CDLL(None), ctypes.c_ulong()
    publishing.install()

    def run(_: object) -> None:
        publishing.attach(known(7))
        print("inside", _context.counters()["threads"], shown_span(OwnMemory()))

    start = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run)
    print("before", _context.counters()["threads"])
    assert c_library.pthread_create(ctypes.byref(thread), None, start, None) == 0
    assert c_library.pthread_join(thread, None) == 0
    print("after", _context.counters()["threads"])


def forks() -> None:
    """A fork beside other threads, from a thread that shows a span and from one that does not; then the child's own."""
    publishing, ready, leave = InstalledPublisher(), threading.Barrier(4), threading.Event()
    publishing.install()

    def other() -> None:
        publishing.attach(known(5))
        ready.wait()
        leave.wait()

    threads = [threading.Thread(target=other) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()
    in_child("without a span", publishing)
    token = publishing.attach(known(7))
    in_child("with a span", publishing)
    _context.detach(token)
    print("in the parent", _context.counters()["threads"], tuple(_context.audit()), flush=True)
    leave.set()
    for thread in threads:
        thread.join()


def in_child(name: str, publishing: InstalledPublisher) -> None:
    """Forks; the child prints what it has, and ends with a thread of its own."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        return
    memory = OwnMemory()
    print(name, _context.counters()["threads"], shown_span(memory))
    _context.reset_after_fork()
    _context.reset_after_fork()
    _context.replace_storage(storage_of("child", "", "/d"))
    inside: list[tuple[int, int, tuple[int, ...]]] = []

    def run() -> None:
        publishing.attach(known(9))
        inside.append((_context.counters()["threads"], shown_span(memory), tuple(_context.audit())))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    print("its thread", *inside[0])
    publishing.uninstall()
    print("hidden", shown_span(memory), flush=True)
    os._exit(0)  # the parent goes on and says "end"


class Storm:
    """Threads that come, switch and go; `wrong` has each span that was shown, beside the one that was active."""

    def __init__(self, publishing: InstalledPublisher) -> None:
        self.publishing, self.memory, self.over = publishing, OwnMemory(), threading.Event()
        self.wrong: list[object] = []

    def work(self, number: int) -> None:
        spans = [known(number * 100 + step) for step in range(1, 6)]  # without an identity while nothing is installed
        tokens = []
        for span in spans:
            tokens.append(self.publishing.attach(span))
            found = self.memory.elastic()
            if found is not None and found.span_id != span.get_span_context().span_id:
                self.wrong.append((found, span.get_span_context()))
        for token in reversed(tokens):
            _context.detach(token)

    def workers(self, number: int) -> None:
        while not self.over.is_set():
            thread = threading.Thread(target=self.work, args=(number,))
            thread.start()
            for _ in range(20):
                self.work(number)
            thread.join()

    def fork(self) -> None:
        child = os.fork()
        if not child:
            self.work(77)
            self.publishing.uninstall()
            os._exit(len(self.wrong) + (self.memory.elastic() is not None))
        assert os.waitpid(child, 0)[1] == 0


def storm(rounds: str) -> None:
    """Threads come, switch and go while the publisher is installed, audited and taken out, and the process forks."""
    publishing = InstalledPublisher()
    scene = Storm(publishing)
    sys.setswitchinterval(1e-5)
    publishing.install()  # attach needs to know the variable; taken out, it knows it still
    threads = [threading.Thread(target=scene.workers, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for number in range(int(rounds)):
        publishing.install()
        for _ in range(10):
            _context.audit()
        if number % 10 == 0:
            scene.fork()
        publishing.uninstall()
    scene.over.set()
    for thread in threads:
        thread.join()
    counters = _context.counters()
    print("wrong", scene.wrong[:3], "repaired", counters["repaired"], "failed", counters["failed"])
    print("published", counters["published"] > 0)


def ending(how: str) -> None:
    """End the interpreter while threads publish, without uninstalling."""
    publishing = InstalledPublisher()
    publishing.install()
    publishing.attach(known(1))

    def work() -> None:
        while True:
            _context.detach(publishing.attach(known(2)))

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    print("ready", flush=True)
    if how == "reimported":
        del sys.modules["splunk_profiler._context"]
        import splunk_profiler._context as again  # noqa: PLC0415  # that is the scene

        print("another", again is not _context)


def first_labels() -> None:
    """The first labels there are, in a context that was entered again and again before."""
    publishing = InstalledPublisher()
    publishing.install()
    token = publishing.attach(known(7))
    context = contextvars.copy_context()
    _context.detach(token)
    for _ in range(4):
        context.run(int)
    before = context.copy()
    context.run(publishing.labels.set, _context.UserLabels(((b"route", b"/checkout"),)))
    memory = OwnMemory()
    for _ in range(4):
        print(shown_span(memory), (context.run(memory.labels) or [])[3:], (before.run(memory.labels) or [])[3:])


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def many_threads(publishing: InstalledPublisher, count: int) -> None:
    def run() -> None:
        token = publishing.attach(known(threading.get_ident()))
        _context.detach(token)

    for _ in range(count // 10):
        threads = [threading.Thread(target=run) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def many_spans(publishing: InstalledPublisher, count: int) -> None:
    for number in range(1, count + 1):
        span = known(number) if number % 10 else Span(TRACE, number)  # each tenth is asked about
        _context.detach(publishing.attach(span))
        publishing.asked.clear()


def many_cached_contexts(publishing: InstalledPublisher, count: int) -> None:
    for number in range(1, count + 1):
        token = publishing.attach(known(number))
        context = contextvars.copy_context()
        _context.detach(token)
        context.run(publishing.labels.set, _context.UserLabels(((b"number", str(number).encode()),)))
        for _ in range(4):
            context.run(int)


def many_labels(publishing: InstalledPublisher, count: int) -> None:
    for number in range(count):
        token = publishing.labels.set(_context.UserLabels(((b"number", str(number).encode()),)))
        _context.publish()
        publishing.labels.reset(token)


def many_installs(publishing: InstalledPublisher, count: int) -> None:
    for _ in range(count):
        publishing.uninstall()
        publishing.install()
        _context.audit()


def memory(threads: str, spans: str) -> None:
    """Print the growth of memory (KiB) in each scene, after a tenth of it as a warm-up."""
    publishing = InstalledPublisher()
    publishing.install()
    scenes: list[tuple[Callable[[InstalledPublisher, int], None], int]] = [
        (many_threads, int(threads)),
        (many_spans, int(spans)),
        (many_labels, int(spans) // 10),
        (many_cached_contexts, int(spans) // 10),
        (many_installs, 1000),
    ]
    for scene, count in scenes:
        scene(publishing, count // 10)
        gc.collect()
        before = resident_kib()
        scene(publishing, count)
        gc.collect()
        print(scene.__name__, resident_kib() - before, flush=True)
    print("threads", _context.counters()["threads"])


if __name__ == "__main__":
    scenes = {
        "tls": tls,
        "late": late,
        "thread_end": thread_end,
        "forks": forks,
        "storm": storm,
        "ending": ending,
        "first_labels": first_labels,
        "memory": memory,
    }
    scenes[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
    print("end", flush=True)
