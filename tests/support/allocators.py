"""CPython's allocators as they are set in this process; loads nothing of the profiler."""

from __future__ import annotations

import ctypes


class Allocators(ctypes.Structure):
    """PyMemAllocatorEx."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


def set_allocator(domain: int, values: list[int]) -> None:
    """Set one that `allocators` has returned."""
    ctypes.pythonapi.PyMem_SetAllocator(domain, ctypes.byref(Allocators(*values)))


def allocators() -> list[list[int]]:
    """Return CPython's allocators of the raw, memory and object domains."""
    found = []
    for domain in range(3):
        one = Allocators()
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(one))
        found.append([getattr(one, field[0]) for field in one._fields_])
    return found
