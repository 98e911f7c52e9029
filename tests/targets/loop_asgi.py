"""A FastAPI service of asyncio and of threaded routes, for uvicorn; the path says how long a request takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from loop_work import configure, ids, work, work_in_turns
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

_PROVIDER = configure()


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Send the last spans after the last request."""
    yield
    await asyncio.to_thread(_PROVIDER.shutdown)


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    """Not traced."""
    return {"status": "ok"}


@app.get("/task/{milliseconds}")
async def task(milliseconds: int) -> dict[str, Any]:
    """An asyncio route."""
    await work_in_turns(milliseconds)
    return ids()


@app.get("/thread/{milliseconds}")
def thread(milliseconds: int) -> dict[str, Any]:
    """A threaded route."""
    work(milliseconds)
    return ids()


FastAPIInstrumentor.instrument_app(app, excluded_urls="health", exclude_spans=["receive", "send"])
