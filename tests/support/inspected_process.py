"""Processes and libraries in plain C for the tests of the inspector, compiled from `targets/`.

    with inspected(workshop) as target:
        target.do("load " + str(workshop.elastic()))
        target.do(storage("shop", "production", "/run/shop"))

The layouts are packed here once more from the specifications. Imports nothing of the package.
"""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from target_process import TESTS, Target

MACHINE = platform.machine()
DIALECT = "-mtls-dialect=gnu2" if MACHINE == "x86_64" else "-mtls-dialect=desc"
ELASTIC_NAME = f"elastic-jvmti-linux-{MACHINE}.so"
LABELS_NAME = "libcustomlabels.so"


class TargetBuilder:
    """A compiler of targets into `folder`; of all processes that use the folder, one compiles each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def program(self, *options: str) -> Path:
        """Build the target; with `options` it can publish by itself."""
        sources = [TESTS / "targets" / "inspected.c"]
        if options:
            sources.append(TESTS / "targets" / "inspected_library.c")
        return self._compile("inspected", sources, "-pthread", *options)

    def library(self, name: str, *options: str, dialect: str = DIALECT) -> Path:
        """Build a library of that file name."""
        return self._compile(
            name,
            [TESTS / "targets" / "inspected_library.c"],
            *("-shared", "-fPIC", "-Wl,-z,now", "-ftls-model=global-dynamic", dialect),
            *options,
        )

    def elastic(self, *options: str, name: str = ELASTIC_NAME, dialect: str = DIALECT) -> Path:
        """Build a library for the Elastic interface."""
        return self.library(name, "-DELASTIC", *options, dialect=dialect)

    def labels(self, *options: str, name: str = LABELS_NAME, dialect: str = DIALECT) -> Path:
        """Build a library for custom labels."""
        return self.library(name, "-DLABELS", *options, dialect=dialect)

    def _compile(self, name: str, sources: list[Path], *options: str) -> Path:
        folder = self._folder / "".join(letter for letter in "".join(options) if letter.isalnum())
        folder.mkdir(exist_ok=True)
        made = folder / name
        command = ["gcc", "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", *options, "-o", str(made)]
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                subprocess.run([*command, *map(str, sources), "-ldl"], check=True, capture_output=True, text=True)
        return made


class InspectedProcess(Target):
    """A running target."""

    def __init__(self, *command: str | Path, env: Mapping[str, str] | None = None) -> None:
        super().__init__(*map(str, command), env=env)
        self._answers = 1

    def do(self, line: str, answer: str = "") -> str:
        """Send `line` and return the answer, which must begin with `answer`."""
        self.tell(line)
        self._answers += 1
        answer_line = self.lines(self._answers)[-1]
        assert answer_line.startswith(answer), answer_line
        return answer_line

    def __enter__(self) -> InspectedProcess:
        return self

    def publish(self, *libraries: Path, socket_path: str = "") -> None:
        """Load the libraries and publish a storage, if the libraries have one."""
        for library in libraries:
            self.do(f"load {library}", "loaded")
        self.do(storage("shop", "production", socket_path))


@contextmanager
def run_inspected(
    workshop: TargetBuilder, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[InspectedProcess]:
    """Run a target until the block ends; yield it when it is ready."""
    with InspectedProcess(workshop.program(*options), env=env) as target:
        target.line("ready")
        yield target


@contextmanager
def datagram_socket(folder: Path, name: str = "s") -> Iterator[str]:
    """Bind a datagram socket for the block and yield its path."""
    path = str(folder / name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        yield path


def import_path() -> str:
    """Return the PYTHONPATH for a process that imports the package as this one does."""
    return os.pathsep.join([str(TESTS.parent), *filter(None, sys.path)])


def storage_bytes(service: bytes, environment: bytes, path: bytes, minor: int = 1) -> bytes:
    """Pack a process storage."""
    texts = b"".join(struct.pack("<I", len(text)) + text for text in (service, environment, path))
    return struct.pack("<H", minor) + texts


def storage(service: str, environment: str, path: str) -> str:
    """Return the line that publishes a process storage."""
    return "storage " + storage_bytes(service.encode(), environment.encode(), path.encode()).hex()


def record_bytes(
    trace: bytes = b"\x11" * 16,
    span: bytes = b"\x22" * 8,
    transaction: bytes = b"\x33" * 8,
    *,
    valid: int = 1,
    present: int = 1,
    flags: int = 1,
) -> bytes:
    """Pack a thread's record."""
    return struct.pack("<HBBB", 1, valid, present, flags) + trace + span + transaction


def labels(*pairs: tuple[bytes | None, bytes | None]) -> str:
    """Return the line that publishes a label set; None is a null pointer."""

    def shown(text: bytes | None) -> str:
        return "-" if text is None else text.hex()

    return "labels " + ",".join(f"{shown(key)}={shown(value)}" for key, value in pairs)
