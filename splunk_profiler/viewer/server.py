"""The server of the page: its files, and answers in JSON. Needs the packages of the extra `view`.

It answers only requests that name one of its own hosts, and none that a page of another origin sends: a page elsewhere
must not read what is shown here, also if its name points to this address.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splunk_profiler.viewer.answers import Answers
from splunk_profiler.viewer.exports import PAGE_FILES, page_file
from splunk_profiler.viewer.model import Baseline, Selection
from splunk_profiler.viewer.otlp_files import SourceError

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_OWN_SITES = ("same-origin", "none")  # of pages of this server, and of addresses that the reader types
_USUAL_PORT = 80
_MAX_HEAD_BYTES = 4 << 20  # of a request: names of 10,000 letters have 60 kB each in an address
_EXPORTS = {
    "folded": ("text/plain", "folded"),
    "speedscope": ("application/json", "speedscope.json"),
    "pprof": ("application/octet-stream", "pprof"),
    "html": ("text/html", "html"),
}


def make_app(answers: Answers, origins: Mapping[str, Collection[str]]) -> ASGIApp:
    """Return the application; `origins` are by the values of the header Host that it answers to."""

    def flame(request: Request) -> Any:
        return answers.flame(_selection(request), _is_set(request, "inverted"), _baseline(request), _function(request))

    def top(request: Request) -> Any:
        search, sort, gone = (request.query_params.get(name, "") for name in ("search", "sort", "gone"))
        of_those = {"by_total": sort == "total", "only_gone": bool(gone)}
        return answers.top(_selection(request), search, _baseline(request), **of_those)

    def facets(request: Request) -> Any:
        facet, search = (request.query_params.get(name, "") for name in ("facet", "search"))
        return answers.facets(_selection(request), facet, search)

    def timeline(request: Request) -> Any:
        return answers.timeline(_selection(request), request.query_params.get("facet", "service"))

    def source(request: Request) -> Any:
        query = request.query_params
        function = query.get("function", ""), query.get("file", "")
        return answers.source(_selection(request), function, _baseline(request))

    def trace(request: Request) -> Any:
        return answers.trace(_selection(request), request.query_params.get("trace", ""))

    def export(request: Request) -> Response:
        form = request.query_params.get("format", "")
        is_baseline = _is_set(request, "baseline") and form != "html"
        selection = _selection(request, "b." if is_baseline else "")
        if form == "html":
            state = [(name, text) for name, text in request.query_params.multi_items() if name != "format"]
            shown_ns = _times(request, "from", "to")
            content = answers.page(selection, _baseline(request), _function(request), state, shown_ns=shown_ns)
        else:
            content = answers.export(selection, form, _function(request), inverted=_is_set(request, "inverted"))
        media_type, suffix = _EXPORTS[form]
        name = f"{'baseline' if is_baseline else 'profile'}.{suffix}"
        return Response(
            content, media_type=media_type, headers={"content-disposition": f'attachment; filename="{name}"'}
        )

    routes = [
        Route("/api/overview", _json(lambda _request: answers.overview())),
        Route("/api/facets", _json(facets)),
        Route("/api/flame", _json(flame)),
        Route("/api/top", _json(top)),
        Route("/api/timeline", _json(timeline)),
        Route("/api/source", _json(source)),
        Route("/api/trace", _json(trace)),
        Route("/api/export", export),
        Route("/", _page("index.html")),
        *(Route(f"/{name}", _page(name)) for name in PAGE_FILES),
    ]
    handlers: Any = {ValueError: _explain(400), SourceError: _explain(503)}
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), origins)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; 0 takes a free port.

    Raises:
        SourceError: that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, TypeError) as error:  # the latter of names that cannot be any
        raise SourceError(f"cannot listen on {host}, port {port}: {getattr(error, 'strerror', error)}") from None
    # Connections inherit it; asyncio sets it only on sockets of its own. Else each answer's body waits 40 ms for the
    # browser to acknowledge the head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def own_origins(host: str, port: int, more: Collection[str]) -> dict[str, set[str]]:
    """Return the values of the header Host by which a browser reaches the server, and the origins of its page then.

    Those of `more` are of proxies and tunnels: they are taken as they are, with TLS too, and with the server's port.
    """
    names = [f"[{name}]" if ":" in name else name for name in (host.lower(), "127.0.0.1", "localhost", "::1")]
    forms = ("{}:{}", "{}") if port == _USUAL_PORT else ("{}:{}",)  # browsers leave it out
    own = [{form.format(name, port) for form in forms} for name in names]
    named = [name.lower() for each in more for name in (each, f"{each}:{port}")]
    return {
        **{name: {f"http://{each}" for each in same} for same in own for name in same},
        **{name: {f"http://{name}", f"https://{name}"} for name in named},
    }


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Answer until a signal ends the process."""
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        loop="asyncio",
    )
    _Server(config).run([listener])


class _Server(uvicorn.Server):
    """A server that waits for nothing when a signal comes."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the process: threads that make answers cannot be interrupted, and Python would wait for them."""
        del sig, frame
        os._exit(0)


class _Guard:
    """Refuses what is not for this server or is sent by another origin's page, and adds headers to each answer."""

    def __init__(self, app: ASGIApp, origins: Mapping[str, Collection[str]]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        # Browsers send no origin with links and pictures. A link to the page may be anywhere, but none to an answer.
        is_linked = scope["path"].startswith("/api/") and headers.get("sec-fetch-site", "none") not in _OWN_SITES
        if host not in self._origins:
            problem = "this name is not the viewer's: see --allow-host"
        elif is_linked or (origin is not None and origin.lower() not in self._origins[host]):
            problem = "requests from other origins are refused"
        else:
            await self._app(scope, receive, send_with_headers)
            return
        await PlainTextResponse(problem, status_code=403)(scope, receive, send_with_headers)


def _json(answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        return _to_json(answer(request))

    return respond


def _page(name: str) -> Callable[[Request], Response]:
    def respond(_request: Request) -> Response:
        return Response(page_file(name), media_type=PAGE_FILES[name])

    return respond


def _explain(status_code: int) -> Callable[[Request, Exception], Response]:
    return lambda _request, error: _to_json({"error": str(error)}, status_code)


def _to_json(content: Any, status_code: int = 200) -> Response:
    """Return an answer in ASCII: names may have lone surrogates, which have no encoding."""
    return Response(json.dumps(content), status_code, media_type="application/json")


def _selection(request: Request, prefix: str = "") -> Selection:
    query = request.query_params
    start = f"{prefix}f."
    filters = {name.removeprefix(start): frozenset(query.getlist(name)) for name in query if name.startswith(start)}
    times_ns = _times(request, f"{prefix}since", f"{prefix}until")
    return Selection(query.get("value", ""), *times_ns, filters)


def _baseline(request: Request) -> Baseline | None:
    """Return what to compare with: parameters as those of the selection, with ``b.`` before them."""
    by = request.query_params.get("compare")
    return Baseline(_selection(request, "b."), by) if by else None


def _function(request: Request) -> tuple[str, str] | None:
    query = request.query_params
    return (query["function"], query.get("file", "")) if "function" in query else None


def _is_set(request: Request, name: str) -> bool:
    return request.query_params.get(name) == "1"


def _times(request: Request, since: str, until: str) -> tuple[int | None, int | None]:
    return _time(request.query_params.get(since)), _time(request.query_params.get(until))


def _time(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 19 or int(text) >= 1 << 63:
        raise ValueError("a time is a number of nanoseconds since the epoch")
    return int(text)
