"""The forms that values of settings take: text in, a value or a `ConfigError` that says what is wrong with it.

Owns the errors that this package raises. Pure; imports nothing of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

DEFAULT_PORT = 4317
AGENT_PORT = 8126
_QUERY = re.compile(r"\?.+", re.DOTALL)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?|\[[0-9A-Fa-f:.%]+\]")


class ProfilerError(Exception):
    """Base of every error that this package raises; its text says what is wrong and what to do."""


class ConfigError(ProfilerError, ValueError):
    """A value that a setting does not take."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where records are sent.

    Attributes:
        url: as the user wrote it, for messages (`shown`).
        target: ``host:port`` for gRPC.
        secure: True if the connection uses TLS.
        setting: the setting it came from, for messages.
    """

    url: str
    target: str
    secure: bool
    setting: str


@dataclass(frozen=True, slots=True)
class Collector:
    """Records go to the endpoint of the settings for it, as log records over OTLP/gRPC: samples, or profiles.

    Attributes:
        said: the place, in words for a log line; empty where the endpoint says it.
        takes_samples: whether each sample may be a record, or profiles are all that is taken.
        interval_ms: how much time a profile covers if nothing else is asked for; None: as long as usual.
    """

    takes_samples: ClassVar[bool] = True
    interval_ms: ClassVar[int | None] = None

    @property
    def said(self) -> str:
        """See above."""
        return ""


@dataclass(frozen=True, slots=True)
class Directory:
    """Profiles are written to files in the directory `path`."""

    path: str
    takes_samples: ClassVar[bool] = False
    interval_ms: ClassVar[int | None] = None

    @property
    def said(self) -> str:
        """See `Collector`."""
        return f"files in {self.path}"


@dataclass(frozen=True, slots=True)
class Agent:
    """Profiles are posted to the Datadog agent that listens at `host` and `port`; `url` is as the user wrote it."""

    url: str
    host: str
    port: int
    takes_samples: ClassVar[bool] = False
    interval_ms: ClassVar[int | None] = 60_000

    @property
    def said(self) -> str:
        """See `Collector`."""
        return f"the Datadog agent at {self.url}"


Destination = Collector | Directory | Agent


def shown(text: str) -> str:
    """`text` for messages: a URL without what may be secret, which is a user's name and password, and a query."""
    scheme, slashes, rest = text.partition("//")
    if not slashes:
        scheme, rest = "", text
    if "@" in rest:
        rest = "***" + rest[rest.rindex("@") :]
    return scheme + slashes + _QUERY.sub("?***", rest)


def parse_boolean(text: str) -> bool:
    """``true`` or ``false`` in any case, nothing else (OpenTelemetry's rule for boolean settings)."""
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ConfigError("neither true nor false")
    return lowered == "true"


def integer(low: int, high: int) -> Callable[[str], int]:
    """A whole number from `low` to `high`."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise ConfigError(f"not a whole number from {low} to {high}")
        value = int(text)
        if not low <= value <= high:
            raise ConfigError(f"outside {low} to {high}")
        return value

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    """One of these words, exactly."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ConfigError(f"not one of {', '.join(choices)}")
        return text

    return parse


def parse_three_way(text: str) -> str:
    """``true``, ``false`` or ``auto`` in any case."""
    lowered = text.lower()
    if lowered not in ("true", "false", "auto"):
        raise ConfigError("not one of true, false, auto")
    return lowered


def parse_directory(text: str) -> str:
    """An absolute path without ``..``."""
    if not text.startswith("/"):
        raise ConfigError("not an absolute path")
    if "\0" in text or ".." in text.split("/"):
        raise ConfigError("not a plain path (no .. in it)")
    return text


def parse_probability(text: str) -> float:
    """A decimal number from 0 to 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+(e-[0-9]{1,3})?", text) or not 0 <= float(text) <= 1:
        raise ConfigError("not a number from 0 to 1")
    return float(text)


def parse_overhead(text: str) -> str:
    """A decimal number above 0, at most 100, or ``off``."""
    if text.lower() != "off" and not (re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", text) and 0 < float(text) <= 100):
        raise ConfigError("neither a number above 0, at most 100, nor off")
    return text.lower()


def parse_endpoint(url: str, *, insecure_by_default: bool = False, setting: str = "") -> Endpoint:
    """``http(s)://host[:port]`` or bare ``host:port``, which means TLS unless `insecure_by_default`."""
    bare = "://" not in url
    try:
        parts = urlsplit(f"//{url}" if bare else url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        # What is wrong is told with a part of the text, in which there may be one of a password.
        raise ConfigError("not a URL" if "@" in url else f"not a URL ({error})") from None
    if not bare and parts.scheme not in ("http", "https"):
        raise ConfigError("its scheme is neither http nor https")
    if bare and (parts.port is None or parts.path):
        raise ConfigError("neither http(s)://host:port nor host:port")
    if "@" in parts.netloc:
        raise ConfigError("it holds a user name, which gRPC cannot send; use OTEL_EXPORTER_OTLP_HEADERS")
    host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc.rstrip(":")
    if not _HOST.fullmatch(host):
        raise ConfigError("it names no valid host")
    secure = parts.scheme != "http" and not (bare and insecure_by_default)
    return Endpoint(shown(url), f"{host}:{port}", secure, setting)


def endpoint_text(text: str) -> str:
    """The text itself, if `parse_endpoint` takes it."""
    parse_endpoint(text)
    return text


def _agent(url: str) -> Agent:
    try:
        parts = urlsplit(url)
        port = AGENT_PORT if parts.port is None else parts.port
    except ValueError as error:
        # What is wrong is told with a part of the text, in which there may be one of a password.
        raise ConfigError("not a URL" if "@" in url else f"not a URL ({error})") from None
    if parts.scheme != "http":
        raise ConfigError("the agent's address does not begin with http://")
    host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
    if not _HOST.fullmatch(host) or not port:
        raise ConfigError("it names no valid host and port")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError("nothing may follow the agent's host and port")
    return Agent(url, host.strip("[]"), port)


# What the setting begins with → how the whole of it is to look, and what the rest of it is.
_DESTINATIONS: dict[str, tuple[str, Callable[[str], Destination]]] = {
    "file": ("file:DIRECTORY", lambda path: Directory(parse_directory(path))),
    "datadog": ("datadog:http://HOST:PORT", _agent),
}


def parse_destination(text: str) -> Destination:
    """``otlp``, ``file:`` and an absolute path, or ``datadog:`` and ``http://host[:port]``."""
    if text == "otlp":
        return Collector()
    kind, separator, rest = text.partition(":")
    if not separator or kind not in _DESTINATIONS:
        raise ConfigError(f"not one of otlp, {', '.join(form for form, _ in _DESTINATIONS.values())}")
    return _DESTINATIONS[kind][1](rest)


def destination_text(text: str) -> str:
    """The text itself, if `parse_destination` takes it."""
    parse_destination(text)
    return text
