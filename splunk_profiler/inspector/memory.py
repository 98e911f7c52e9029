"""Reads of another process's memory with process_vm_readv, from any thread."""

from __future__ import annotations

import ctypes
import errno
import os

from splunk_profiler.inspector.errors import ProcessEndedError, UnreadableError
from splunk_profiler.inspector.proc_files import not_permitted

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
    """The memory of the process that thread `tid` belongs to."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._readv = _process_vm_readv()

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes at `address`.

        Raises:
            UnreadableError: not all of it is mapped.
            ProcessEndedError: the process has ended.
            NotPermittedError: the kernel refuses.
        """
        if address <= 0 or address + size > _MAX_ADDRESS:
            raise UnreadableError(f"address {address:#x} is not one of the process")
        if not size:
            return b""
        buffer = ctypes.create_string_buffer(size)
        copied_bytes = self._readv(self._tid, IoVec(ctypes.addressof(buffer), size), 1, IoVec(address, size), 1, 0)
        if copied_bytes != size:
            self._raise_error(ctypes.get_errno() if copied_bytes < 0 else errno.EFAULT, address)
        return buffer.raw

    def read_word(self, address: int) -> int:
        """Return the pointer-sized integer at `address`; raise the errors of `read`."""
        return int.from_bytes(self.read(address, 8), "little")

    def _raise_error(self, error_number: int, address: int) -> None:
        if error_number == errno.EFAULT:
            raise UnreadableError(f"the memory at {address:#x} is not there")
        if error_number == errno.ESRCH:
            raise ProcessEndedError("the process ended while it was read")
        if error_number in (errno.EPERM, errno.EACCES):
            raise not_permitted(self._tid, f"reading the memory of process {self._tid} is not permitted")
        raise UnreadableError(f"process_vm_readv: {os.strerror(error_number)}")
