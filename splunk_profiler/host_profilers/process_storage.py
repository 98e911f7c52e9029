"""What host profilers are told of the process: the bytes of Elastic's process storage, and the names in them.

Pure: data in, bytes out. Must not import anything of ours, nor OpenTelemetry: attributes come as a mapping.

Specification: Elastic universal profiling integration, "Process Storage Layout"; docs/abi.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

LAYOUT_MINOR_VERSION = 1
MAX_NAME_BYTES = 128  # readers refuse the whole process for a longer one
MAX_PATH_BYTES = 89  # they send to /proc/<pid>/root<path>, which has to fit into a socket address
_ENVIRONMENTS = ("deployment.environment.name", "deployment.environment")  # the newer convention goes first


@dataclass(frozen=True, slots=True)
class Service:
    """Which service the process is: its name, never empty, and its environment, which may be."""

    name: str
    environment: str


def service_of(attributes: Mapping[str, object]) -> Service | None:
    """The service that resource attributes describe; None if they do not name it.

    ``unknown_service``, which SDKs fill in for a name that nobody gave, is no name.
    """
    name = attributes.get("service.name")
    if not isinstance(name, str) or not name.strip() or name.startswith("unknown_service"):
        return None
    environments = (attributes.get(key) for key in _ENVIRONMENTS)
    environment = next((text for text in environments if isinstance(text, str) and text), "")
    return Service(name, environment)


def truncate_utf8(text: str, max_bytes: int) -> bytes:
    """The UTF-8 of `text`, cut before the character that does not fit; what UTF-8 cannot hold becomes ``?``."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore").encode()


def encode(service: Service, socket_path: bytes) -> bytes:
    """The process storage: the version, then three strings with their lengths, in the byte order of the machine."""
    texts = (
        truncate_utf8(service.name, MAX_NAME_BYTES),
        truncate_utf8(service.environment, MAX_NAME_BYTES),
        socket_path,
    )
    return struct.pack("=H", LAYOUT_MINOR_VERSION) + b"".join(struct.pack("=I", len(text)) + text for text in texts)
