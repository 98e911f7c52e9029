"""Questions to ClickHouse over its HTTP interface; all values travel as parameters, never in the text of SQL."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from splunk_profiler.viewer.otlp_files import SourceError

SCHEMES = {"clickhouse": ("http", 8123), "clickhouses": ("https", 8443)}
_TIMEOUT_S = 120.0
_MAX_ERROR_BYTES = 4096
_UNKNOWN_DATABASE, _TOO_SLOW = "81", "159"
_WRONG_PASSWORD = {"193", "194", "516"}
_QUESTION = re.compile(r"\W+in scope SELECT .*", re.IGNORECASE)  # in an error: a page of SQL
_ERROR = re.compile(r"^Code: (\d+)\. DB::Exception.*", re.MULTILINE)


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

    @property
    def authorization(self) -> str:
        """User and password as a header, in base64: ClickHouse's own headers cannot hold each of them."""
        plain = f"{self.user}:{self.password}".encode(errors="surrogateescape")  # bytes of the environment as they are
        return f"Basic {b64encode(plain).decode()}"


def is_address(source: str) -> bool:
    """Return True for an address of ClickHouse."""
    return source.partition("://")[0] in SCHEMES and "://" in source


def parse_address(source: str, environment: Mapping[str, str]) -> Server:
    """Parse ``clickhouse://user:password@host:port/database``; ``clickhouses`` is over TLS.

    User and password may be in the environment as well: CLICKHOUSE_USER, CLICKHOUSE_PASSWORD.

    Raises:
        SourceError: a part is missing or wrong.
    """
    kind = source.partition("://")[0]
    scheme, usual_port = SCHEMES[kind]
    example = f"{kind}://host:{usual_port}/database"
    wrong_form = SourceError(f"the address of ClickHouse is not of the form {example} (or user:password@host)")
    try:
        parts = urlsplit(source)
        host, port = parts.hostname, parts.port or usual_port
    except ValueError:
        raise wrong_form from None
    database = unquote(parts.path.strip("/"))
    if not host or not database or "/" in database or parts.query or parts.fragment:
        raise wrong_form
    user = unquote(parts.username or "") or environment.get("CLICKHOUSE_USER", "default")
    password = unquote(parts.password or "") or environment.get("CLICKHOUSE_PASSWORD", "")
    if ":" in user:  # it would end there
        raise SourceError("the user of ClickHouse must not have a colon: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD")
    return Server(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", database, user, password)


class Rows:
    """The rows of a whole answer, each parsed when it is asked for: as objects they are ten times as large."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[list[Any]]:
        return (json.loads(line.decode("utf-8", "replace")) for line in self._lines)


class ClickHouseClient:
    """Asks one database. Each question is a request of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # No proxy of the environment: it would see the password.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)

    def rows(self, sql: str, **parameters: str | int) -> Rows:
        """Return the rows of the answer; parameters are those that `sql` has in braces.

        Raises:
            SourceError: the server cannot be asked, or does not answer all of it.
        """
        query = {
            "database": self._server.database,
            "default_format": "JSONCompactEachRow",
            "wait_end_of_query": "1",  # so that an error comes in place of rows, not after them
        }
        query.update({f"param_{name}": _escaped(str(value)) for name, value in parameters.items()})
        request = urllib.request.Request(  # the scheme is one of ours
            f"{self._server.url}/?{urlencode(query, quote_via=quote, errors='surrogateescape')}",
            sql.encode(),
            {
                "Authorization": self._server.authorization,
                "Content-Type": "text/plain; charset=utf-8",
            },
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                lines = answer.read().splitlines()  # only as a whole it is seen to be whole
        except urllib.error.HTTPError as error:
            code = error.headers.get("X-ClickHouse-Exception-Code", "")
            with error:
                said = error.read(_MAX_ERROR_BYTES).decode("utf-8", "replace").strip().partition("\n")[0]
            raise SourceError(self._explain(code, said or str(error.reason), error.code)) from None
        except http.client.IncompleteRead:
            raise SourceError(f"{self._server.name} ended its answer too early: ask again") from None
        except (OSError, UnicodeError) as error:  # as URLError, time-outs and malformed host names are
            raise SourceError(f"{self._server.name} cannot be reached: {getattr(error, 'reason', error)}") from None
        except http.client.HTTPException:
            raise SourceError(self._other()) from None
        if not all(line.startswith(b"[") and line.endswith(b"]") for line in lines):
            error_line = _ERROR.search(b"\n".join(lines).decode("utf-8", "replace"))
            raise SourceError(self._explain(error_line[1], error_line[0], 200) if error_line else self._other())
        return Rows(lines)

    def _other(self) -> str:
        return f"{self._server.name} does not answer as ClickHouse does: is it its HTTP port?"

    def _explain(self, code: str, said: str, status: int) -> str:
        name = self._server.name
        if code in _WRONG_PASSWORD or status in (401, 403):
            return f"{name} refuses the user {self._server.user}: set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD"
        if code == _UNKNOWN_DATABASE:
            return f"{name}: there is no such database"
        if code == _TOO_SLOW:
            return f"{name}: a question took longer than the server allows; choose fewer hours with --last-hours"
        return f"{name} answers {status}: {_QUESTION.sub('', said)}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the password is for that server alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _escaped(value: str) -> str:
    """Return a parameter as ClickHouse reads it: in its tab-separated format."""
    text = value.encode(errors="replace").decode()
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
