"""Questions to ClickHouse over its HTTP interface; all values travel as parameters, never in the text of SQL."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from splunk_profiler.viewer.otlp_files import SourceError

SCHEMES = {"clickhouse": ("http", 8123), "clickhouses": ("https", 8443)}
_TIMEOUT_S = 120.0
_MAX_ERROR_BYTES = 4096
_UNKNOWN_DATABASE, _UNKNOWN_TABLE, _TOO_SLOW = "81", "60", "159"
_WRONG_PASSWORD = {"193", "194", "516"}


class Server(NamedTuple):
    """A database of a server; `name` is what is shown of it."""

    url: str
    database: str
    user: str
    password: str

    @property
    def name(self) -> str:
        """The address without user and password."""
        return f"{self.url}/{self.database}"


def is_address(source: str) -> bool:
    """Return True for an address of ClickHouse."""
    return source.partition("://")[0] in SCHEMES and "://" in source


def parse_address(source: str, environment: Mapping[str, str]) -> Server:
    """Parse ``clickhouse://user:password@host:port/database``; ``clickhouses`` is over TLS.

    User and password may be in the environment as well: CLICKHOUSE_USER, CLICKHOUSE_PASSWORD.

    Raises:
        SourceError: a part is missing or wrong.
    """
    parts = urlsplit(source)
    scheme, usual_port = SCHEMES[parts.scheme]
    database = unquote(parts.path.strip("/"))
    try:
        host, port = parts.hostname, parts.port or usual_port
    except ValueError:
        host, port = None, 0
    if not host or not database or "/" in database or parts.query or parts.fragment:
        example = f"{parts.scheme}://host:{usual_port}/database"
        raise SourceError(f"the address of ClickHouse is not of the form {example} (or user:password@host)")
    user = unquote(parts.username or "") or environment.get("CLICKHOUSE_USER", "default")
    password = unquote(parts.password or "") or environment.get("CLICKHOUSE_PASSWORD", "")
    return Server(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", database, user, password)


class ClickHouseClient:
    """Asks one database. Each question is a request of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # No proxy of the environment: it would see the password.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)

    def rows(self, sql: str, **parameters: str | int) -> Iterator[list[Any]]:
        """Yield the rows of the answer; parameters are those that `sql` has in braces.

        Raises:
            SourceError: the server cannot be asked, or does not answer.
        """
        query = {"database": self._server.database, "default_format": "JSONCompactEachRow"}
        query.update({f"param_{name}": _escaped(str(value)) for name, value in parameters.items()})
        request = urllib.request.Request(  # the scheme is one of ours
            f"{self._server.url}/?{urlencode(query, quote_via=quote)}",
            sql.encode(),
            {
                "X-ClickHouse-User": quote(self._server.user),
                "X-ClickHouse-Key": self._server.password.encode().decode("latin-1"),
                "Content-Type": "text/plain; charset=utf-8",
            },
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                for line in answer:
                    yield json.loads(line.decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                raise SourceError(self._explain(error)) from None
        except ValueError:
            raise SourceError(f"{self._server.name} does not answer as ClickHouse does: is it its HTTP port?") from None
        except OSError as error:  # URLError and time-outs are
            raise SourceError(f"{self._server.name} cannot be reached: {getattr(error, 'reason', error)}") from None

    def _explain(self, error: urllib.error.HTTPError) -> str:
        code = error.headers.get("X-ClickHouse-Exception-Code", "")
        said = error.read(_MAX_ERROR_BYTES).decode("utf-8", "replace").strip().partition("\n")[0]
        name = self._server.name
        if code in _WRONG_PASSWORD or error.code in (401, 403):
            return f"{name} refuses the user {self._server.user}: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD"
        if code == _UNKNOWN_DATABASE:
            return f"{name}: there is no such database"
        if code == _UNKNOWN_TABLE:
            return f"{name} has no table otel_logs: the Collector makes it with the first logs"
        if code == _TOO_SLOW:
            return f"{name}: a question took longer than the server allows; choose fewer hours with --last-hours"
        return f"{name} answers {error.code}: {said or error.reason}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the password is for that server alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _escaped(value: str) -> str:
    """Return a parameter as ClickHouse reads it: in its tab-separated format."""
    text = value.encode(errors="replace").decode()
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
