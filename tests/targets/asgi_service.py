"""An ASGI application as uvicorn serves it, without a framework: each request works in a span, as wsgi_service's do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from wsgi_service import serve


async def application(
    scope: dict[str, Any], _receive: Callable[[], Awaitable[Any]], send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """The request's path is the number of the span."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])  # uvicorn goes on without the lifespan protocol
    body = json.dumps(serve(int(scope["path"].strip("/")))).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
