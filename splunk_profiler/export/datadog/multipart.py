"""A profile → the form that Datadog agents accept at ``/profiling/v1/input``.

Runs on the exporting thread. The form has gzipped files and a part ``event``: JSON with the time and
the tags of the profile and the names of the files. Another file is one more attachment.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from splunk_profiler.code_origin.classifier import CodeClassifier
from splunk_profiler.export.sink_context import Resource
from splunk_profiler.formats import code_provenance, datadog_pprof, pprof
from splunk_profiler.model import DataType
from splunk_profiler.samples import InstrumentationSource, Profile
from splunk_profiler.system.gil import yield_gil
from splunk_profiler.version import __version__

LIBRARY_NAME = "splunk-profiler"
_PLAIN_TYPES = (str, bool, int, float)
_MAX_TAG_LENGTH = 200  # the backend cuts longer ones
# Attributes that describe the process and the SDK, not the service.
_EXCLUDED_PREFIXES = ("process.", "telemetry.", "service.instance.id", "container.id")

# Tag → attributes of the resource; the first that is set is its value. ``runtime-id`` links the profiles of a process
# to its traces: spans have it under that name only, and the SDK may invent the other ids.
_TAG_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "service": ("service.name",),
    "env": ("deployment.environment.name", "deployment.environment"),
    "version": ("service.version",),
    "runtime-id": ("runtime-id",),
    "host": ("host.name",),
    "process_id": ("process.pid",),
}


@dataclass(frozen=True, slots=True)
class Form:
    """The body of a request, and its headers."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


class ProfileFormEncoder:
    """An encoder of profiles as forms; the user's `tags` override those of the resource."""

    def __init__(
        self,
        resource: Callable[[], Resource],
        classifier: CodeClassifier | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._tags = tags or {}
        self._resource = resource
        self._classifier = classifier or CodeClassifier()

    def form(self, profile: Profile) -> Form:
        """Encode `profile`."""
        attributes = self._resource().attributes
        translated_profile = datadog_pprof.translate_profile(profile, yield_gil)
        origin_of = self._classifier.refresh(yield_gil)
        content = pprof.encode_whole(
            translated_profile, pause=yield_gil, value_types=datadog_pprof.VALUE_TYPES, origin_of=origin_of
        ).gzipped
        provenance_json = gzip.compress(code_provenance.message(profile, origin_of, yield_gil), mtime=0)
        # The backend knows the kind of a file by its name.
        attachments = {"auto.pprof": content, "code-provenance.json": provenance_json}
        headers = [("DD-EVP-ORIGIN", LIBRARY_NAME), ("DD-EVP-ORIGIN-VERSION", __version__)]
        if (container := _strip_unprintable(attributes.get("container.id", ""))).isascii() and container:
            headers.append(("Datadog-Container-ID", container))
        event = _encode_event(profile, self._collect_tags(attributes), attachments)
        content_type, body = _encode_multipart(event, attachments)
        return Form((*headers, ("Content-Type", content_type)), body)

    def _collect_tags(self, attributes: Mapping[str, Any]) -> dict[str, str]:
        """Return all tags; those with a meaning for Datadog have the same value as on spans."""
        known_attributes = {name for names in _TAG_ATTRIBUTES.values() for name in names}
        other_attributes = {
            name: value
            for name, value in attributes.items()
            if name not in known_attributes
            and not name.startswith(_EXCLUDED_PREFIXES)
            and isinstance(value, _PLAIN_TYPES)
        }
        custom_tags = {
            _sanitize_tag(name).replace(":", "_"): _sanitize_tag(value)
            for name, value in (other_attributes | dict(self._tags)).items()
        }
        return {name: value for name, value in custom_tags.items() if name} | _standard_tags(attributes)


def _encode_event(profile: Profile, service_tags: Mapping[str, str], filenames: Iterable[str]) -> bytes:
    tags = {
        **service_tags,
        "language": "python",
        "runtime": platform.python_implementation(),
        "runtime_version": platform.python_version(),
        "profiler_version": __version__,
    }
    if profile.source is InstrumentationSource.SNAPSHOT:
        tags["profiling.instrumentation.source"] = profile.source.value
    if profile.data_type is not DataType.CPU:
        tags["profiling.data.type"] = profile.data_type.value
    event = {
        "version": "4",
        "family": "python",
        "start": _format_time(profile.time_ns),
        "end": _format_time(profile.time_ns + profile.duration_ns),
        "attachments": list(filenames),
        "tags_profiler": ",".join(f"{name}:{value}" if value else name for name, value in tags.items()),
    }
    return json.dumps(event).encode("ascii")


def _standard_tags(attributes: Mapping[str, Any]) -> dict[str, str]:
    values = {
        tag: next((text for name in names if (text := _sanitize_tag(attributes.get(name, "")))), "")
        for tag, names in _TAG_ATTRIBUTES.items()
    }
    return {tag: value for tag, value in values.items() if value}


def _sanitize_tag(value: Any) -> str:
    """Return `value` as the text of a tag, in which a comma would begin the next tag."""
    return _strip_unprintable(value).replace(",", "_")[:_MAX_TAG_LENGTH]


def _strip_unprintable(value: Any) -> str:
    """Return a plain value as text; empty for any other: no tag has a list."""
    text = value if isinstance(value, str) else str(value) if isinstance(value, _PLAIN_TYPES) else ""
    return "".join(character for character in text if character.isprintable()).strip()


def _format_time(time_ns: int) -> str:
    """Format a time in UTC, to the microsecond."""
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns // 1000 % 1_000_000:06}Z"


def _encode_multipart(event: bytes, attachments: Mapping[str, bytes]) -> tuple[str, bytes]:
    """Return content type and body; the boundary is random, so that no content can hold it."""
    boundary = os.urandom(16).hex()
    files = [("event", "event.json", "application/json", event)]
    files += [(name, name, "application/octet-stream", content) for name, content in attachments.items()]
    pieces = []
    for name, filename, content_type, content in files:
        head = (
            f"--{boundary}\r\n"
            f'Content-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
            f"Content-Type: {content_type}\r\n\r\n"
        )
        pieces += [head.encode("ascii"), content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode("ascii"))
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces)
