"""Tests of the process storage: the specification's layout and the limits of its readers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splunk_profiler.host_profilers.process_storage import Service, encode, service_of


def decode(data: bytes) -> tuple[int, list[bytes]]:
    (minor,) = struct.unpack_from("=H", data)
    texts, offset = [], 2
    while offset < len(data):
        (length,) = struct.unpack_from("=I", data, offset)
        texts.append(data[offset + 4 : offset + 4 + length])
        assert len(texts[-1]) == length
        offset += 4 + length
    return minor, texts


def test_storage_is_the_version_and_three_strings_with_their_lengths() -> None:
    data = encode(Service("shop", ""), b"/tmp/s")
    assert data == b"".join((struct.pack("=HI", 1, 4), b"shop", struct.pack("=II", 0, 6), b"/tmp/s"))


@given(st.text(min_size=1), st.text())
def test_names_are_utf8_of_at_most_128_bytes_cut_between_characters(name: str, environment: str) -> None:
    minor, texts = decode(encode(Service(name, environment), b"/s"))
    assert minor == 1
    for text, original in zip(texts, (name, environment), strict=False):
        assert len(text) <= 128
        assert original.encode("utf-8", "replace").startswith(text)
        text.decode()


@pytest.mark.parametrize("name", [None, "", "  ", 5, "unknown_service", "unknown_service:python"])
def test_what_does_not_name_a_service_is_none(name: object) -> None:
    assert service_of({"service.name": name}) is None


def test_the_newer_convention_for_the_environment_goes_first() -> None:
    both = {"service.name": "s", "deployment.environment": "old", "deployment.environment.name": "new"}
    assert service_of(both) == Service("s", "new")
    del both["deployment.environment.name"]
    assert service_of(both) == Service("s", "old")
    assert service_of({"service.name": "s"}) == Service("s", "")
