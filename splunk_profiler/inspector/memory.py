"""Reads of another process's memory with process_vm_readv, from any thread."""

from __future__ import annotations

import ctypes
import errno
import io
import os
from collections.abc import Sequence

from splunk_profiler.inspector.errors import ProcessEndedError, UnreadableError
from splunk_profiler.inspector.model import MemoryRange
from splunk_profiler.inspector.permissions import not_permitted

_MAX_RANGES = 512  # below the kernel's IOV_MAX
_MAX_ADDRESS = (1 << 64) - 1


class IoVec(ctypes.Structure):
    """The C type ``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _process_vm_readv() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    iovec_pointer = ctypes.POINTER(IoVec)
    function.argtypes = (ctypes.c_int, iovec_pointer, ctypes.c_ulong, iovec_pointer, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function


class Memory:
    """The memory of the process that thread `tid` belongs to.

    Every read raises one of these errors:

    - UnreadableError: not all of it is mapped.
    - ProcessEndedError: the process has ended.
    - NotPermittedError: the kernel refuses.
    """

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._readv = _process_vm_readv()

    def read(self, ranges: Sequence[MemoryRange]) -> list[bytes]:
        """Return the bytes of each range."""
        found: list[bytes] = []
        for start in range(0, len(ranges), _MAX_RANGES):
            found += self._read_batch(ranges[start : start + _MAX_RANGES])
        return found

    def read_bytes(self, address: int, size: int) -> bytes:
        """Return `size` bytes at `address`."""
        return self._read_batch([MemoryRange(address, size)])[0]

    def read_word(self, address: int) -> int:
        """Return the pointer-sized integer at `address`."""
        return int.from_bytes(self.read_bytes(address, 8), "little")

    def _read_batch(self, ranges: Sequence[MemoryRange]) -> list[bytes]:
        for address, size in ranges:
            if address <= 0 or address + size > _MAX_ADDRESS:
                raise UnreadableError(f"address {address:#x} is not one of the process")
        total = sum(size for _, size in ranges)
        if not total:
            return [b""] * len(ranges)
        buffer = ctypes.create_string_buffer(total)
        local = IoVec(ctypes.addressof(buffer), total)
        remote = (IoVec * len(ranges))(*(IoVec(address, size) for address, size in ranges))
        copied_bytes = self._readv(self._tid, local, 1, remote, len(ranges), 0)
        if copied_bytes != total:
            self._raise_error(ctypes.get_errno() if copied_bytes < 0 else errno.EFAULT, ranges)
        data = io.BytesIO(buffer.raw)
        return [data.read(size) for _, size in ranges]

    def _raise_error(self, error_number: int, ranges: Sequence[MemoryRange]) -> None:
        if error_number == errno.EFAULT:
            addresses = ", ".join(f"{address:#x}" for address, _ in ranges[:4])
            raise UnreadableError(f"the memory at {addresses} is not there")
        if error_number == errno.ESRCH:
            raise ProcessEndedError("the process ended while it was read")
        if error_number in (errno.EPERM, errno.EACCES):
            raise not_permitted(self._tid, f"reading the memory of process {self._tid} is not permitted")
        raise UnreadableError(f"process_vm_readv: {os.strerror(error_number)}")
