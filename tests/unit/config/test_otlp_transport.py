"""The standard OTLP settings and the warnings for wrong values."""

from __future__ import annotations

import pytest

from splunk_profiler.config.otlp_transport import (
    DEFAULT_ENDPOINT,
    Certificates,
    ParsedTransport,
    Transport,
    parse_transport,
)
from splunk_profiler.config.parsers import parse_endpoint

P = "OTEL_EXPORTER_OTLP_"


def parse(env: dict[str, str]) -> ParsedTransport:
    return parse_transport(env, parse_endpoint(DEFAULT_ENDPOINT))


def test_nothing_set_means_the_documented_defaults() -> None:
    transport, warnings = parse({})
    assert transport == Transport()
    assert (transport.timeout_s, transport.gzip, transport.headers) == (10.0, False, ())
    assert transport.certificates == Certificates()
    assert warnings == []


def test_blank_values_count_as_not_set() -> None:
    names = ("TIMEOUT", "COMPRESSION", "HEADERS", "CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    assert parse({P + name: "  " for name in names}) == (Transport(), [])


def test_a_setting_for_logs_goes_before_the_general_one() -> None:
    transport, warnings = parse(
        {
            P + "TIMEOUT": "3",
            P + "LOGS_TIMEOUT": "4.5",
            P + "HEADERS": "a=1",
            P + "LOGS_HEADERS": "b=2",
            P + "COMPRESSION": "none",
            P + "LOGS_COMPRESSION": "GZIP",
        }
    )
    assert (transport.timeout_s, transport.headers, transport.gzip) == (4.5, (("b", "2"),), True)
    assert warnings == []


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e3", "nan", "inf", "10000", "0.0000001", "1_0", "\u0661"])
def test_a_timeout_that_is_no_number_of_seconds_is_named_and_ten_used(text: str) -> None:
    transport, warnings = parse({P + "TIMEOUT": text})
    assert transport.timeout_s == 10.0
    (line,) = warnings
    assert f"{P}TIMEOUT={text!r}" in line
    assert "10 seconds are used instead" in line


def test_a_compression_that_is_not_known_is_named_and_none_used() -> None:
    transport, (line,) = parse({P + "LOGS_COMPRESSION": "brotli"})
    assert not transport.gzip
    assert f"{P}LOGS_COMPRESSION='brotli'" in line


def test_headers_are_decoded_and_their_names_lowered() -> None:
    transport, warnings = parse({P + "HEADERS": " X-SF-Token = a%20b , empty=,c=d=e,, "})
    assert transport.headers == (("x-sf-token", "a b"), ("empty", ""), ("c", "d=e"))
    assert warnings == []


@pytest.mark.parametrize("bad", ["s3cret", "=s3cret", "na me=s3cret", "x-bin=s3cret", "grpc-timeout=s3cret"])
def test_a_header_that_cannot_be_sent_is_left_out_without_telling_its_text(bad: str) -> None:
    transport, (line,) = parse({P + "HEADERS": f"a=1,{bad},b=2"})
    assert transport.headers == (("a", "1"), ("b", "2"))
    assert "number 2" in line
    assert "s3cret" not in line


def test_a_header_value_that_is_not_ascii_is_left_out() -> None:
    transport, (line,) = parse({P + "HEADERS": "token=%C3%A9"})
    assert transport.headers == ()
    assert "number 1" in line


def test_certificates_for_logs_replace_the_general_ones_as_a_whole() -> None:
    env = {P + "CERTIFICATE": "ca", P + "CLIENT_KEY": "key", P + "CLIENT_CERTIFICATE": "chain"}
    assert parse(env)[0].certificates.files == ("ca", "key", "chain")
    transport = parse({**env, P + "LOGS_CERTIFICATE": "other"})[0]
    assert transport.certificates.files == ("other", "", "")
    assert transport.certificates.settings[0] == P + "LOGS_CERTIFICATE"
    assert transport.trace_certificates.files == ("ca", "key", "chain")
