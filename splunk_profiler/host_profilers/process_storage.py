"""The bytes of Elastic's process storage, which name the service and its socket to host profilers.

Pure: data in, bytes out. Must not import anything of ours, nor OpenTelemetry.

Specification: Elastic universal profiling integration, "Process Storage Layout"; docs/host-profilers/abi.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

MAX_PATH_BYTES = 89  # readers send to /proc/<pid>/root<path>, which must fit into a socket address
_LAYOUT_MINOR_VERSION = 1
_MAX_NAME_BYTES = 128  # readers refuse the whole process for a longer one
_ENVIRONMENTS = ("deployment.environment.name", "deployment.environment")  # the newer convention first


class Service(NamedTuple):
    """The service of the process: its name, never empty, and its environment, perhaps empty."""

    name: str
    environment: str


def service_of(attributes: Mapping[str, object]) -> Service | None:
    """Return the service that resource attributes describe; None if they do not name it.

    ``unknown_service``, which SDKs fill in for a missing name, is no name.
    """
    name = attributes.get("service.name")
    if not isinstance(name, str) or not name.strip() or name.startswith("unknown_service"):
        return None
    environments = (attributes.get(key) for key in _ENVIRONMENTS)
    environment = next((text for text in environments if isinstance(text, str) and text), "")
    return Service(name, environment)


def _encode_name(text: str) -> bytes:
    """Return the UTF-8 of `text`, cut between characters; surrogates become ``?``."""
    return text.encode("utf-8", "replace")[:_MAX_NAME_BYTES].decode("utf-8", "ignore").encode()


def encode(service: Service, socket_path: bytes) -> bytes:
    """Return the process storage: version, then three strings with lengths, in machine byte order."""
    texts = (_encode_name(service.name), _encode_name(service.environment), socket_path)
    return struct.pack("=H", _LAYOUT_MINOR_VERSION) + b"".join(struct.pack("=I", len(text)) + text for text in texts)
