"""The standard OTEL_EXPORTER_OTLP_* settings except the endpoint, parsed strictly.

OpenTelemetry's exporters raise on a wrong value, even on one that an argument overrides, and never
name it. Here it becomes one warning. A variable for logs (``OTEL_EXPORTER_OTLP_LOGS_TIMEOUT``)
takes precedence over the general one, as in the exporters. General headers and credentials may hold
a token, so they go to no other host. Pure: reads only the given mapping and opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

from splunk_profiler.config.parsers import quote_redacted

_T = TypeVar("_T")
_GENERAL_PREFIX = "OTEL_EXPORTER_OTLP_"
_CREDENTIAL_PROVIDER_SETTING = "OTEL_PYTHON_EXPORTER_OTLP_GRPC_{}CREDENTIAL_PROVIDER"
LOGS_HEADERS_SETTING = "SPLUNK_PROFILER_LOGS_HEADERS"
_HEADER_NAME_PATTERN = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_HEADER_VALUE_PATTERN = re.compile(r"[ -~]*")
_MAX_TIMEOUT_S = 600


class Certificates(NamedTuple):
    """PEM files of a TLS connection: trusted certificates, the client's private key and certificate chain.

    Attributes:
        files: their paths, empty where not set; without the first one, the system's list is trusted.
        settings: their variables, for messages.
    """

    files: tuple[str, str, str] = ("", "", "")
    settings: tuple[str, str, str] = (
        f"{_GENERAL_PREFIX}CERTIFICATE",
        f"{_GENERAL_PREFIX}CLIENT_KEY",
        f"{_GENERAL_PREFIX}CLIENT_CERTIFICATE",
    )


@dataclass(frozen=True, slots=True)
class Transport:
    """The properties of an export besides its endpoint.

    Attributes:
        headers: gRPC metadata of each call.
        timeout_s: limit of one export.
        certificates: files for the connection for logs.
        trace_certificates: files that the trace exporter reads from the same environment.
        credential_provider: entry point that replaces the files; empty if there is none.
        trace_credential_provider: the trace exporter's entry point.
    """

    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 10.0
    gzip: bool = False
    certificates: Certificates = field(default_factory=Certificates)
    trace_certificates: Certificates = field(default_factory=Certificates)
    credential_provider: str = ""
    trace_credential_provider: str = ""


class ParsedTransport(NamedTuple):
    """A transport, and one sentence for each value that is not used."""

    transport: Transport
    warnings: list[str]


def parse_transport(env: Mapping[str, str], headers: str = "", *, is_other_host: bool = False) -> ParsedTransport:
    """Parse the transport in `env`.

    `headers` replace all others. `is_other_host` withholds general headers and credentials, because
    records go to another host than that of ``OTEL_EXPORTER_OTLP_ENDPOINT``.
    """
    warnings: list[str] = []
    transport = Transport(
        headers=_parse_headers(*_select_headers(env, headers, warnings, is_other_host=is_other_host), warnings),
        timeout_s=_parse_or_default(env, "TIMEOUT", _parse_timeout, 10.0, warnings),
        gzip=_parse_or_default(env, "COMPRESSION", _parse_compression, False, warnings),
        certificates=_read_certificates(env, "LOGS_"),
        trace_certificates=_read_certificates(env, "TRACES_"),
        credential_provider=_read_credential_provider(env, "LOGS_"),
        trace_credential_provider=_read_credential_provider(env, "TRACES_"),
    )
    general, own = (_CREDENTIAL_PROVIDER_SETTING.format(signal) for signal in ("", "LOGS_"))
    if is_other_host and transport.credential_provider and not env.get(own, "").strip():
        transport = replace(transport, credential_provider="")
        warnings.append(_withheld_warning(general, own))
    return ParsedTransport(transport, warnings)


def _select_headers(
    env: Mapping[str, str], headers: str, warnings: list[str], *, is_other_host: bool
) -> tuple[str, str]:
    """Return the variable of the headers and its text."""
    if headers:
        return LOGS_HEADERS_SETTING, headers
    variable, text = _find_variable(env, "HEADERS")
    if is_other_host and variable == f"{_GENERAL_PREFIX}HEADERS":
        warnings.append(_withheld_warning(variable, LOGS_HEADERS_SETTING))
        return "", ""
    return variable, text


def _withheld_warning(variable: str, own: str) -> str:
    return (
        f"{variable} is for the host of OTEL_EXPORTER_OTLP_ENDPOINT and is not used: profiles go to another one;"
        f" set {own} for that"
    )


def _find_variable(env: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return the variable for logs if it is set, else the general one, and its text."""
    for variable in (f"{_GENERAL_PREFIX}LOGS_{name}", _GENERAL_PREFIX + name):
        if text := env.get(variable, "").strip():
            return variable, text
    return "", ""


def _parse_or_default(
    env: Mapping[str, str], name: str, read: Callable[[str], _T], default: _T, warnings: list[str]
) -> _T:
    variable, text = _find_variable(env, name)
    if not text:
        return default
    try:
        return read(text)
    except ValueError as error:
        warnings.append(f"{variable}={quote_redacted(text)} is not usable: {error}")
        return default


def _parse_timeout(text: str) -> float:
    if not re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", text) or not 0.001 <= float(text) <= _MAX_TIMEOUT_S:
        raise ValueError(f"not a number of seconds from 0.001 to {_MAX_TIMEOUT_S}; 10 seconds are used instead")
    return float(text)


def _parse_compression(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("gzip", "none"):
        raise ValueError("neither gzip nor none; records are sent uncompressed")
    return lowered == "gzip"


def _parse_headers(variable: str, text: str, warnings: list[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``name=value,name=value``, percent-encoded; leave out what gRPC cannot send."""
    found: list[tuple[str, str]] = []
    for position, item in enumerate(text.split(","), 1):
        if not item.strip():
            continue
        name, separator, value = item.partition("=")
        name, value = unquote(name).strip().lower(), unquote(value).strip()
        if not separator or not _HEADER_NAME_PATTERN.fullmatch(name):
            # The warning does not repeat the text: it may be a secret without its name.
            warnings.append(f"{variable}: number {position} is no name=value that gRPC can send; it is left out")
        elif not _HEADER_VALUE_PATTERN.fullmatch(value):
            warnings.append(f"{variable}: the value of number {position} is not printable ASCII; it is left out")
        else:
            found.append((name, value))
    return tuple(found)


def _read_certificates(env: Mapping[str, str], signal: str) -> Certificates:
    """Return all files of `signal` if it names its own authority, else all general ones."""
    own = env.get(f"{_GENERAL_PREFIX}{signal}CERTIFICATE", "").strip()
    prefix = _GENERAL_PREFIX + signal if own else _GENERAL_PREFIX
    names = (f"{prefix}CERTIFICATE", f"{prefix}CLIENT_KEY", f"{prefix}CLIENT_CERTIFICATE")
    ca_certificate, key, chain = (env.get(name, "").strip() for name in names)
    return Certificates((ca_certificate, key, chain), names)


def _read_credential_provider(env: Mapping[str, str], signal: str) -> str:
    own, general = (env.get(_CREDENTIAL_PROVIDER_SETTING.format(kind), "").strip() for kind in (signal, ""))
    return own or general
