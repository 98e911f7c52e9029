"""A reader of the forms for a Datadog agent, by Python's MIME parser. Imports nothing of the package."""

from __future__ import annotations

import email
import email.policy
import gzip
import json
from dataclasses import dataclass
from typing import Any

from profile_schema import decode


@dataclass(frozen=True)
class ReadForm:
    """A form.

    Attributes:
        event: the event file.
        tags: its tags.
        files: file name → content.
    """

    event: dict[str, Any]
    tags: dict[str, str]
    files: dict[str, bytes]

    @property
    def profile(self) -> Any:
        """The profile of the form, as a message of the official schema."""
        return decode(gzip.decompress(self.files["auto.pprof"]))


def read_form(content_type: str, body: bytes) -> ReadForm:
    """Parse the form in the body of a request."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode("ascii")
    message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    assert not message.defects
    files: dict[str, bytes] = {}
    for part in message.iter_parts():
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        files[str(part.get_filename())] = content
    event = json.loads(files.pop("event.json"))
    assert event["attachments"] == list(files)
    tags = (tag.partition(":") for tag in event["tags_profiler"].split(","))
    return ReadForm(event, {name: value for name, _, value in tags}, files)


def sample_labels(profile: Any) -> list[dict[str, str | int]]:
    """Return the labels of each sample."""
    texts = list(profile.string_table)
    return [
        {texts[label.key]: texts[label.str] if label.str else label.num for label in sample.label}
        for sample in profile.sample
    ]


def sums_of_values(profile: Any) -> dict[str, int]:
    """Return the names of values and what each adds up to."""
    names = [profile.string_table[kind.type] for kind in profile.sample_type]
    return {name: sum(sample.value[column] for sample in profile.sample) for column, name in enumerate(names)}
