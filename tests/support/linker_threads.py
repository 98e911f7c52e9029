"""Threads that are in the dynamic linker, as those are that unwind C++ or list libraries."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def thread_in_linker() -> Iterator[threading.Event]:
    """Keep a thread in `dl_iterate_phdr`, in a callback in Python, until the event is set or the block ends."""
    is_inside, is_over = threading.Event(), threading.Event()

    def visit(*_: object) -> int:
        is_inside.set()
        is_over.wait()
        return 1

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)(visit)
    thread = threading.Thread(target=ctypes.CDLL(None).dl_iterate_phdr, args=(callback, None))
    thread.start()
    is_inside.wait()
    yield is_over
    is_over.set()
    thread.join()
