"""The standard OTEL_EXPORTER_OTLP_* settings except the endpoint, parsed strictly.

OpenTelemetry's exporters raise on a wrong value, even on one that an argument overrides, and never
name it. Here it becomes one warning. A variable for logs (``OTEL_EXPORTER_OTLP_LOGS_TIMEOUT``)
takes precedence over the general one, as in the exporters. Headers and credentials may hold a
token, so they go to no other host. Pure: reads only the given mapping and opens no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

from splunk_profiler.config.parsers import ConfigError, Endpoint, make_absolute, parse_endpoint, quote_redacted

_T = TypeVar("_T")
_GENERAL_PREFIX = "OTEL_EXPORTER_OTLP_"
_GENERAL_ENDPOINT = f"{_GENERAL_PREFIX}ENDPOINT"
DEFAULT_ENDPOINT = "https://localhost:4317"
_LOGS_ENDPOINT = f"{_GENERAL_PREFIX}LOGS_ENDPOINT"
_CREDENTIAL_PROVIDER_SETTING = "OTEL_PYTHON_EXPORTER_OTLP_GRPC_{}CREDENTIAL_PROVIDER"
_GENERAL_PROVIDER, _LOGS_PROVIDER = (_CREDENTIAL_PROVIDER_SETTING.format(signal) for signal in ("", "LOGS_"))
LOGS_HEADERS_SETTING = "SPLUNK_PROFILER_LOGS_HEADERS"
_HEADER_NAME_PATTERN = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
_HEADER_VALUE_PATTERN = re.compile(r"[ -~]*")
_MAX_TIMEOUT_S = 600
_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # of gRPC, which takes the first one


class Certificates(NamedTuple):
    """PEM files of a TLS connection: trusted certificates, the client's private key and certificate chain.

    Attributes:
        files: their absolute paths, empty where not set; without the first one, the system's list is trusted.
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


def general_endpoint(env: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable of the general endpoint and its text, or ``default`` and that."""
    general = env.get(_GENERAL_ENDPOINT, "").strip()
    return (_GENERAL_ENDPOINT, general) if general else ("default", DEFAULT_ENDPOINT)


def parse_transport(
    env: Mapping[str, str], endpoint: Endpoint, headers: str = "", *, directory: str = ""
) -> ParsedTransport:
    """Parse the transport in `env` for exports to `endpoint`.

    `headers` replace all others. Paths of files start from `directory`.
    """
    warnings: list[str] = []
    withheld = _find_withheld(env, endpoint)
    usable = {name: value for name, value in env.items() if name not in withheld}
    variable, text = (LOGS_HEADERS_SETTING, headers) if headers else _find_variable(usable, "HEADERS")
    transport = Transport(
        headers=_parse_headers(variable, text, warnings),
        timeout_s=_parse_or_default(usable, "TIMEOUT", _parse_timeout, 10.0, warnings),
        gzip=_parse_or_default(usable, "COMPRESSION", _parse_compression, False, warnings),
        certificates=_read_certificates(usable, "LOGS_", directory),
        trace_certificates=_read_certificates(env, "TRACES_", directory),
        credential_provider=_read_credential_provider(usable, "LOGS_"),
        trace_credential_provider=_read_credential_provider(env, "TRACES_"),
    )
    if not text:
        names = (f"{_GENERAL_PREFIX}LOGS_HEADERS", f"{_GENERAL_PREFIX}HEADERS")
        warnings += _explain_withheld(env, withheld, dict.fromkeys(names, LOGS_HEADERS_SETTING))
    if not transport.credential_provider:
        others = {_LOGS_PROVIDER: _GENERAL_PROVIDER, _GENERAL_PROVIDER: _LOGS_PROVIDER}
        warnings += _explain_withheld(env, withheld, others)
    return ParsedTransport(transport, warnings)


def _find_withheld(env: Mapping[str, str], endpoint: Endpoint) -> dict[str, str]:
    """Return the variables whose values are for another host than that of `endpoint`, and the variable of that host."""
    withheld: dict[str, str] = {}
    if not _is_on_host(endpoint, general_endpoint(env)[1]):
        withheld |= dict.fromkeys((f"{_GENERAL_PREFIX}HEADERS", _GENERAL_PROVIDER), _GENERAL_ENDPOINT)
    logs = env.get(_LOGS_ENDPOINT, "").strip()
    if logs and not _is_on_host(endpoint, logs):  # the application's logs go there
        withheld |= dict.fromkeys((f"{_GENERAL_PREFIX}LOGS_HEADERS", _LOGS_PROVIDER), _LOGS_ENDPOINT)
    return withheld


def _is_on_host(endpoint: Endpoint, url: str) -> bool:
    try:
        return endpoint.normalized_host == parse_endpoint(url).normalized_host
    except ConfigError:
        return False


def _explain_withheld(
    env: Mapping[str, str], withheld: Mapping[str, str], remedies: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for the first variable of `remedies` that is set and withheld, with the one to set instead."""
    for variable, own in remedies.items():
        if variable in withheld and env.get(variable, "").strip():
            fact = f"{variable} is for the host of {withheld[variable]} and is not used: profiles go to another one"
            yield fact if own in withheld else f"{fact}; set {own} for that"
            return


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


def _read_certificates(env: Mapping[str, str], signal: str, directory: str) -> Certificates:
    """Return all files of `signal` if it names its own authority, else all general ones."""
    own = env.get(f"{_GENERAL_PREFIX}{signal}CERTIFICATE", "").strip()
    prefix = _GENERAL_PREFIX + signal if own else _GENERAL_PREFIX
    names = (f"{prefix}CERTIFICATE", f"{prefix}CLIENT_KEY", f"{prefix}CLIENT_CERTIFICATE")
    ca_certificate, key, chain = (make_absolute(env.get(name, "").strip(), directory) for name in names)
    return Certificates((ca_certificate, key, chain), names)


def _read_credential_provider(env: Mapping[str, str], signal: str) -> str:
    own, general = (env.get(_CREDENTIAL_PROVIDER_SETTING.format(kind), "").strip() for kind in (signal, ""))
    return own or general


def explain_proxy(endpoint: Endpoint, env: Mapping[str, str]) -> str:
    """Return which variable makes gRPC take a proxy to `endpoint`; empty if it takes none."""
    host = "" if endpoint.path else endpoint.address[0].lower()
    exceptions = (env.get("no_grpc_proxy") or env.get("no_proxy") or "").lower().split(",")
    if not host or any(_is_excepted(host, exception.strip()) for exception in exceptions if exception.strip()):
        return ""
    name = next((name for name in _PROXY_VARIABLES if name in env), "")
    if not env.get(name, "").strip():  # an empty one means none
        return ""
    return f"{name} is set, so gRPC goes through that proxy unless no_proxy names the collector"


def _is_excepted(host: str, exception: str) -> bool:
    if "/" not in exception:
        return host.endswith(exception)
    from ipaddress import ip_address, ip_network  # noqa: PLC0415  # for this alone

    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:  # the host is a name
        return False
