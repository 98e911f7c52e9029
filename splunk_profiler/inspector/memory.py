"""Reads another process's memory with process_vm_readv.

Works from any thread, holds nothing open. Must not import anything of the package but the inspector's own modules.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from splunk_profiler.inspector.errors import ProcessEndedError, UnreadableError
from splunk_profiler.inspector.permissions import not_permitted

_MOST_AT_ONCE = 512  # below the kernel's IOV_MAX
_LAST_ADDRESS = (1 << 64) - 1


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _process_vm_readv() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    spans = ctypes.POINTER(_Span)
    function.argtypes = (ctypes.c_int, spans, ctypes.c_ulong, spans, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


class Memory:
    """The memory of the process that thread `tid` belongs to."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._readv = _process_vm_readv()

    def read(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes at each (address, size).

        Raises:
            UnreadableError: not all of it is mapped.
            ProcessEndedError: the process is gone.
            NotPermittedError: the kernel refuses.
        """
        found: list[bytes] = []
        for start in range(0, len(wanted), _MOST_AT_ONCE):
            found += self._read(wanted[start : start + _MOST_AT_ONCE])
        return found

    def _read(self, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        for address, size in wanted:
            if address <= 0 or address + size > _LAST_ADDRESS:
                raise UnreadableError(f"address {address:#x} is not one of the process")
        total = sum(size for _, size in wanted)
        if not total:
            return [b""] * len(wanted)
        buffer = ctypes.create_string_buffer(total)
        local = _Span(ctypes.addressof(buffer), total)
        remote = (_Span * len(wanted))(*(_Span(address, size) for address, size in wanted))
        got = self._readv(self._tid, local, 1, remote, len(wanted), 0)
        if got != total:
            self._fail(ctypes.get_errno() if got < 0 else errno.EFAULT, wanted)
        data, found, at = buffer.raw, [], 0
        for _, size in wanted:
            found.append(data[at : at + size])
            at += size
        return found

    def _fail(self, number: int, wanted: Sequence[tuple[int, int]]) -> None:
        if number == errno.EFAULT:
            places = ", ".join(f"{address:#x}" for address, _ in wanted[:4])
            raise UnreadableError(f"the memory at {places} is not there")
        if number == errno.ESRCH:
            raise ProcessEndedError("the process ended while it was read")
        if number in (errno.EPERM, errno.EACCES):
            raise not_permitted(self._tid, f"reading the memory of process {self._tid} is not permitted")
        raise UnreadableError(f"process_vm_readv: {os.strerror(number)}")
