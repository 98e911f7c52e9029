"""Registers, relocation numbers and TLS layouts of the processor architectures.

Sources: "ELF Handling For Thread-Local Storage", the processors' ELF supplements, the kernel's headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from splunk_profiler.inspector.errors import UnsupportedError

_MAX_STATIC_OFFSET = 1 << 20
_ELF_64_LITTLE = b"\x7fELF\x02\x01"

_GENERAL_REGISTERS = 1  # NT_PRSTATUS
_ARM_TLS_REGISTERS = 0x401  # NT_ARM_TLS: the thread pointer, and a second word where there is SME

HEADER_BYTES = 20
"""Size of the part of a program's file that names the architecture."""


class Register(NamedTuple):
    """A register of 8 bytes: its set, for PTRACE_GETREGSET, and its byte offset in that set."""

    register_set: int
    offset: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """One processor architecture.

    Attributes:
        name: machine name of ``uname -m``.
        tlsdesc_relocation: relocation of a TLS descriptor.
        other_dialects: TLS relocations that host profilers do not follow, with their names.
        is_tls_below: True if static TLS lies below the thread pointer (variant II), else above (variant I).
        block_header_bytes: bytes from the thread pointer to the executable's variables (variant I).
        dtv_offset: offset of glibc's module table (DTV) from the thread pointer.
        host_labels_skew: bytes by which Parca's reader misses a library's label pointer.
    """

    name: str
    elf_machine: int
    thread_pointer: Register
    instruction_pointer: Register
    tlsdesc_relocation: int
    other_dialects: dict[int, str]
    is_tls_below: bool
    block_header_bytes: int
    dtv_offset: int
    host_labels_skew: int

    def static_offset(self, argument: int) -> int | None:
        """Return the offset in the second word of a TLS descriptor; None if it is not static."""
        if self.is_tls_below:
            signed = argument - (1 << 64) if argument >> 63 else argument
            return signed if -_MAX_STATIC_OFFSET < signed < 0 else None
        return argument if 0 < argument < _MAX_STATIC_OFFSET else None

    def executable_offset(self, value: int, size: int, alignment: int) -> int:
        """Return the offset from the thread pointer to `value` in the executable's TLS segment."""
        alignment = max(alignment, 1)
        if self.is_tls_below:
            return value - _round_up(size, alignment)
        return value + _round_up(self.block_header_bytes, alignment)


def _round_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


ARCHITECTURES = (
    Architecture(
        name="x86_64",
        elf_machine=62,
        thread_pointer=Register(_GENERAL_REGISTERS, 21 * 8),  # fs_base
        instruction_pointer=Register(_GENERAL_REGISTERS, 16 * 8),  # rip
        tlsdesc_relocation=36,
        other_dialects={
            16: "general dynamic without descriptors (R_X86_64_DTPMOD64)",
            17: "general dynamic without descriptors (R_X86_64_DTPOFF64)",
            18: "initial exec (R_X86_64_TPOFF64)",
        },
        is_tls_below=True,
        block_header_bytes=0,
        dtv_offset=8,
        host_labels_skew=0,
    ),
    Architecture(
        name="aarch64",
        elf_machine=183,
        thread_pointer=Register(_ARM_TLS_REGISTERS, 0),
        instruction_pointer=Register(_GENERAL_REGISTERS, 32 * 8),  # pc, after x0 to x30 and sp
        tlsdesc_relocation=1031,
        other_dialects={
            1028: "general dynamic without descriptors (R_AARCH64_TLS_DTPMOD)",
            1029: "general dynamic without descriptors (R_AARCH64_TLS_DTPREL)",
            1030: "initial exec (R_AARCH64_TLS_TPREL)",
        },
        is_tls_below=False,
        block_header_bytes=16,
        dtv_offset=0,
        host_labels_skew=16,
    ),
)


def architecture_of(header: bytes) -> Architecture:
    """Return the architecture of the program whose file begins with `header`.

    Raises:
        UnsupportedError: the interfaces are not specified for it.
    """
    if header[:6] == _ELF_64_LITTLE and len(header) >= HEADER_BYTES:
        machine = int.from_bytes(header[18:20], "little")
        for candidate in ARCHITECTURES:
            if candidate.elf_machine == machine:
                return candidate
    raise UnsupportedError("its program is not a 64-bit one for x86-64 or aarch64, the architectures of the interfaces")
