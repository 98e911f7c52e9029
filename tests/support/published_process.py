"""Publishing by this process, and reading of what it publishes; shared by tests.

Import it after `pytest.importorskip("splunk_profiler._context")`.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span
from own_memory import OwnMemory

from splunk_profiler.config import Config, from_config
from splunk_profiler.lifecycle.publishing import Publishing, make_publishing


class ProcessStorage(NamedTuple):
    """The process storage, as a reader decodes it."""

    minor: int
    name: str
    environment: str
    socket: Path


class Ids(NamedTuple):
    """The published ids of a thread."""

    trace_id: int
    span_id: int
    local_root_id: int


@contextmanager
def publishing(
    directory: Path, resource_attributes: dict[str, str] | None = None, **settings: Any
) -> Iterator[Publishing]:
    """Publish both ABIs inside the block, unless `settings` say otherwise."""
    env = {"OTEL_RESOURCE_ATTRIBUTES": ",".join(f"{key}={value}" for key, value in (resource_attributes or {}).items())}
    wanted = {"correlation": "true", "custom_labels": "true", "socket_directory": str(directory), **settings}
    made = make_publishing(from_config(Config(**wanted), env))
    assert made is not None
    made.is_audited_by_sampling = True
    made.start()
    made.run_pending_work()  # or wait for our thread that runs it at this moment
    try:
        yield made
    finally:
        made.stop()
        made.remove_patch()


def provider(name: str = "shop", **attributes: str) -> TracerProvider:
    """Return a provider that is not the global one."""
    return TracerProvider(resource=Resource({"service.name": name, **attributes}))


def read_storage() -> ProcessStorage | None:
    """Read the process storage; None while there is none."""
    memory = OwnMemory()
    if memory.storage(2) is None:
        return None
    texts, offset = [], 2
    for _ in range(3):
        (length,) = struct.unpack_from("=I", memory.storage(offset + 4) or b"", offset)
        texts.append((memory.storage(offset + 4 + length) or b"")[offset + 4 :].decode())
        offset += 4 + length
    (minor,) = struct.unpack_from("=H", memory.storage(2) or b"")
    return ProcessStorage(minor, texts[0], texts[1], Path(texts[2]))


def wait_for_storage() -> ProcessStorage:
    """Wait for the process storage of this process and return it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = read_storage()
        if found is not None and f"-{os.getpid()}-" in found.socket.name:
            return found
        time.sleep(0.001)
    raise AssertionError(f"after a minute it says {read_storage()}")


def published_ids() -> Ids | None:
    """Return the published span of the calling thread, or None. Both ABIs must agree."""
    memory = OwnMemory()
    record, labels = memory.elastic(), dict(memory.labels() or ())
    if record is None or not record.present:
        assert b"trace_id" not in labels
        return None
    assert record.valid
    ids = Ids(record.trace_id, record.span_id, record.transaction_id)
    assert ids == Ids(*(int(labels[key], 16) for key in (b"trace_id", b"span_id", b"local_root_span_id")))
    return ids


def published_labels() -> dict[str, str]:
    """Return the published user labels of the calling thread."""
    ours = {b"trace_id", b"span_id", b"local_root_span_id"}
    return {key.decode(): value.decode() for key, value in OwnMemory().labels() or () if key not in ours}


def ids_of(span: Span, root: Span | None = None) -> Ids:
    """Return the ids to publish for `span`, whose local root is `root` or itself."""
    own, local_root = span.get_span_context(), (root or span).get_span_context()
    return Ids(own.trace_id, own.span_id, local_root.span_id)
