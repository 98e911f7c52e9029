"""Parsers of setting values: text → a value, or a `ConfigError` that names the mistake.

Owns the errors that this package raises. Pure; imports nothing of ours.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from urllib.parse import quote, unquote, urlsplit

DEFAULT_OTLP_PORT = 4317
DEFAULT_AGENT_PORT = 8126
ENDPOINT_FORMS = "http(s)://HOST:PORT, HOST:PORT, dns:HOST:PORT or unix:PATH"
DESTINATION_FORMS = "otlp, file:DIRECTORY, stream:DIRECTORY, datadog:http(s)://HOST:PORT or datadog:unix:///SOCKET"
_SCHEME_PATTERN = re.compile(r"(datadog:)?[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_QUERY_PATTERN = re.compile(r"\?.+", re.DOTALL)
# A line break, a key or certificate in PEM form, base64 of one, or base64 of its binary form.
_SECRET_PATTERN = re.compile(
    r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]|-----BEGIN|PRIVATE KEY|LS0tLS1CRUdJTi"
    r"|MII[A-Za-z0-9+/]{40}|(?<![A-Za-z0-9+/])M[A-P][A-Za-z0-9+/]{40}"  # the binary form begins with a SEQUENCE
)
_MAX_SECRET_CHARS = 20
_MAX_SHOWN_CHARS = 300
_MAX_SOCKET_PATH_BYTES = 107
_HOST_PATTERN = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?|\[[0-9A-Fa-f:.%]+\]")


class ProfilerError(Exception):
    """Base of the errors of settings, commands and sources of samples; its text names the problem and the remedy."""


class ConfigError(ProfilerError, ValueError):
    """A value that a setting does not accept."""


class Endpoint(NamedTuple):
    """The address of a collector.

    Attributes:
        url: the user's text, redacted for messages.
        target: gRPC target: ``host:port``, ``dns:host:port``, ``dns:///host:port`` or ``unix:path``.
        setting: its setting, for messages.
    """

    url: str
    target: str
    is_secure: bool
    setting: str

    @property
    def path(self) -> str:
        """Path of the Unix socket; empty for a host and port."""
        path = self.target.removeprefix("unix:")
        return unquote(path, errors="surrogateescape") if path != self.target else ""

    @property
    def authority(self) -> str:
        """``host:port``; empty for a Unix socket."""
        return "" if self.path else self.target.removeprefix("dns:").removeprefix("///")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port for the `socket` module; not for a Unix socket."""
        host, _, port = self.authority.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def normalized_host(self) -> str:
        """The host, normalized for comparison; ``localhost`` for a loopback address or a socket."""
        host = "localhost" if self.path else self.address[0].lower().rstrip(".")
        return "localhost" if host in ("127.0.0.1", "::1") else host


@dataclass(frozen=True, slots=True)
class Collector:
    """A collector, which takes samples or profiles as log records over OTLP/gRPC.

    Attributes:
        description: the destination in words for a log line; empty because the endpoint names it.
        accepts_samples: False if the destination takes profiles only.
        default_export_interval_ms: default time of one profile; None: the general default.
    """

    description: ClassVar[str] = ""
    accepts_samples: ClassVar[bool] = True
    default_export_interval_ms: ClassVar[int | None] = None


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory `path`, which takes profiles as files."""

    path: str
    accepts_samples: ClassVar[bool] = False
    default_export_interval_ms: ClassVar[int | None] = None

    @property
    def description(self) -> str:
        """The destination in words for a log line."""
        return f"files in {self.path}"


@dataclass(frozen=True, slots=True)
class StreamDirectory:
    """The directory `path`, which takes the streams of captures, for `splunk-profiler replay`."""

    path: str
    accepts_samples: ClassVar[bool] = False
    default_export_interval_ms: ClassVar[int | None] = None

    @property
    def description(self) -> str:
        """The destination in words for a log line."""
        return f"streams in {self.path}"


@dataclass(frozen=True, slots=True)
class DatadogAgent:
    """A Datadog agent, which takes profiles over HTTP.

    Attributes:
        url: the user's text.
        port: its port; 0 with a Unix socket.
        path: path of its Unix socket, used in place of host and port; empty if it has none.
    """

    url: str
    host: str
    port: int
    is_secure: bool = False
    path: str = ""
    INPUT_PATH: ClassVar = "/profiling/v1/input"
    accepts_samples: ClassVar[bool] = False
    default_export_interval_ms: ClassVar[int | None] = 60_000

    @property
    def description(self) -> str:
        """The destination in words for a log line."""
        return f"the Datadog agent at {self.url}"


Destination = Collector | Directory | StreamDirectory | DatadogAgent


@dataclass(frozen=True, slots=True)
class NoDestination:
    """The destination where a setting for it is not usable; `reason` is the line for the log."""

    reason: str


def redact(text: str) -> str:
    """Return a setting's text without possible secrets, for messages.

    Hides the user name, the password and the query of a URL. Cuts text with a line break or a key
    after 20 characters. Every message that shows a setting's value uses this function.
    """
    found = _SCHEME_PATTERN.match(text)
    scheme = found[0] if found else ""
    rest = text.removeprefix(scheme)
    if "@" in rest:
        rest = "***" + rest[rest.rindex("@") :]
    visible = scheme + _QUERY_PATTERN.sub("?***", rest)
    max_chars = _MAX_SECRET_CHARS if has_secret(text) else _MAX_SHOWN_CHARS
    return visible if len(visible) <= max_chars else f"{visible[:max_chars]}…"


def has_secret(text: str) -> bool:
    """Return True if a key or a line break is in `text`."""
    return _SECRET_PATTERN.search(text) is not None


def make_absolute(path: str, directory: str) -> str:
    """Return `path` as it is from `directory`.

    A secret in its place stays as it is: behind a directory it would not be known for one.
    """
    return posixpath.join(directory, path) if path and not has_secret(path) else path


def quote_redacted(value: object) -> str:
    """Return a setting's value like `redact`, in quotes and on one line."""
    return repr(redact(value)) if isinstance(value, str) else redact(repr(value))


def parse_boolean(text: str) -> bool:
    """Parse ``true`` or ``false`` in any case (OpenTelemetry's rule for booleans)."""
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ConfigError("neither true nor false")
    return lowered == "true"


def integer_parser(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ConfigError(f"not a whole number from {low} to {high}")
        value = int(text)
        if not low <= value <= high:
            raise ConfigError(f"outside {low} to {high}")
        return value

    return parse


def choice_parser(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts exactly one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ConfigError(f"not one of {', '.join(choices)}")
        return text

    return parse


def parse_auto_boolean(text: str) -> str:
    """Parse ``true``, ``false`` or ``auto`` in any case."""
    return choice_parser("true", "false", "auto")(text.lower())


def parse_directory(text: str) -> str:
    """Parse an absolute path without ``..``."""
    if not text.startswith("/"):
        raise ConfigError("not an absolute path")
    if "\0" in text or ".." in text.split("/"):
        raise ConfigError("not a plain path (no .. in it)")
    if has_secret(text):
        raise ConfigError("a line break or a key is in it")
    return text


def parse_probability(text: str) -> float:
    """Parse a decimal number from 0 to 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+(e-[0-9]{1,3})?", text) or not 0 <= float(text) <= 1:
        raise ConfigError("not a number from 0 to 1")
    return float(text)


def parse_overhead(text: str) -> str:
    """Parse a decimal number above 0 and at most 100, or ``off``."""
    if text.lower() != "off" and not (re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", text) and 0 < float(text) <= 100):
        raise ConfigError("neither a number above 0, at most 100, nor off")
    return text.lower()


def parse_endpoint(url: str, *, insecure: bool | None = None, setting: str = "", directory: str = "") -> Endpoint:
    """Parse one of `ENDPOINT_FORMS`; the path of a socket starts from `directory`.

    With `insecure`, a target without ``http(s)://`` is plaintext; with None, only a Unix socket is.
    """
    try:
        return Endpoint(redact(url), *_parse_target(url, insecure, directory), setting)
    except ConfigError as error:
        raise ConfigError(f"{error} (allowed: {ENDPOINT_FORMS})") from None


def _parse_target(url: str, insecure: bool | None, directory: str) -> tuple[str, bool]:
    """Return the target and `Endpoint.is_secure`."""
    scheme, separator, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "unix":
        return f"unix:{quote(_parse_socket_path(rest, directory), errors='surrogateescape')}", insecure is False
    if scheme == "dns":
        leading = "///" if rest.startswith("///") else ""
        return f"dns:{leading}{_parse_host_and_port(rest.removeprefix('///'))}", not insecure
    if not rest.startswith("//") or not separator:
        return _parse_host_and_port(url), not insecure
    if scheme not in ("http", "https"):
        raise ConfigError("its scheme is not known")
    host, port = _split_host_and_port(url)
    return f"{host}:{port or DEFAULT_OTLP_PORT}", scheme == "https"


def _parse_host_and_port(text: str) -> str:
    host, port = _split_host_and_port(f"//{text}")
    if port is None or re.search("[/?#]", text):
        raise ConfigError("it is not a host and a port")
    return f"{host}:{port}"


def _split_host_and_port(url: str) -> tuple[str, int | None]:
    """Return the host, an IPv6 address in brackets, and the port, if there is one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold a password
        raise ConfigError("it is not a URL, or its port is not a number") from None
    if "@" in parts.netloc:
        raise ConfigError("it holds a user name, which cannot be sent")
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.rstrip(":")
    if not _HOST_PATTERN.fullmatch(host) or re.search(r"\s", url) or port == 0:
        raise ConfigError("it names no valid host and port")
    return host, port


def _parse_socket_path(rest: str, directory: str = "") -> str:
    """Parse the path after ``unix:``, from `directory`; after ``//`` it is absolute."""
    path = rest.removeprefix("//")
    if path != rest and not path.startswith("/"):
        raise ConfigError("the path of the socket is not absolute, although // is before it")
    path = make_absolute(path, directory)
    try:
        size = len(path.encode(errors="surrogateescape"))  # a variable may have any bytes
    except UnicodeEncodeError:
        raise ConfigError("the path of the socket has characters that no file name here has") from None
    if not 0 < size <= _MAX_SOCKET_PATH_BYTES or "\0" in path or has_secret(path):
        raise ConfigError(f"the socket has no absolute path of at most {_MAX_SOCKET_PATH_BYTES} bytes")
    return path


def validate_endpoint(text: str) -> str:
    """Return `text` if `parse_endpoint` accepts it."""
    parse_endpoint(text)
    return text


def _parse_agent(url: str) -> DatadogAgent:
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "unix":
        path = _parse_socket_path(rest)
        if not path.startswith("/"):
            raise ConfigError("the path of the agent's socket is not absolute")
        return DatadogAgent(url, "localhost", 0, path=path)
    if scheme not in ("http", "https") or not rest.startswith("//"):
        raise ConfigError("the agent's address does not begin with http://, https:// or unix://")
    if rest[2:].partition("/")[2] or "?" in rest or "#" in rest:
        raise ConfigError("nothing may follow the agent's host and port")
    host, port = _split_host_and_port(url)
    return DatadogAgent(url, host.strip("[]"), port or DEFAULT_AGENT_PORT, is_secure=scheme == "https")


def parse_destination(text: str) -> Destination:
    """Parse one of `DESTINATION_FORMS`."""
    try:
        if text == "otlp":
            return Collector()
        if text.startswith("file:"):
            return Directory(parse_directory(text.removeprefix("file:")))
        if text.startswith("stream:"):
            return StreamDirectory(parse_directory(text.removeprefix("stream:")))
        if text.startswith("datadog:"):
            return _parse_agent(text.removeprefix("datadog:"))
        raise ConfigError("it is no destination")
    except ConfigError as error:
        raise ConfigError(f"{error} (allowed: {DESTINATION_FORMS})") from None


def validate_destination(text: str) -> str:
    """Return `text` if `parse_destination` accepts it."""
    parse_destination(text)
    return text


def parse_attributes(text: str) -> dict[str, str]:
    """Parse OpenTelemetry's ``key=value,key=value``, percent-encoded; skip items without ``=``."""
    pairs = (item.partition("=") for item in text.split(",") if "=" in item)
    return {key.strip(): unquote(value.strip()) for key, _, value in pairs}


def parse_tags(text: str) -> dict[str, str]:
    """Parse Datadog's ``key:value,key:value``; white space separates if there is no comma."""
    pairs = (item.partition(":") for item in (text.split(",") if "," in text else text.split()))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
