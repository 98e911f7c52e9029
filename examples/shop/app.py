"""The shop's routes: threaded ones, async ones, and one that does in the event loop what it should not.

Run it: uvicorn shop.app:app --app-dir examples
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from pydantic import BaseModel

from shop import database, pricing, telemetry

provider = telemetry.configure()
tracer = trace.get_tracer("shop")


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Prepare the database before the first request, send the last spans after the last one."""
    await asyncio.to_thread(database.prepare)
    yield
    await asyncio.to_thread(provider.shutdown)


app = FastAPI(title="shop", lifespan=lifespan)


class Item(BaseModel):
    """So many of one product."""

    product: int
    quantity: int = 1


class Order(BaseModel):
    """The items that a customer orders."""

    customer: str
    items: list[Item]


@app.get("/health")
async def health() -> dict[str, str]:
    """Report that the shop is open."""
    return {"status": "ok"}


@app.get("/products/{product_id}")
async def product(product_id: int) -> database.Product:
    """An async route: the database is asked on another thread while the event loop serves others."""
    found = await asyncio.to_thread(database.product, product_id)
    if found is None:
        raise HTTPException(404, "no such product")
    return found


@app.get("/search")
def search(q: str) -> list[database.Product]:
    """A threaded route: a scan of the table, then ranking in Python."""
    with tracer.start_as_current_span("scan products"):
        products = database.candidates(q)
    with tracer.start_as_current_span("rank products"):
        return pricing.rank(q, products)[:10]


@app.post("/orders", status_code=201)
def order(wanted: Order) -> dict[str, int]:
    """A threaded route: reads, computes a price and writes, and answers when it is on the disk."""
    basket = []
    for item in wanted.items:
        found = database.product(item.product)
        if found is None:
            raise HTTPException(404, f"no product {item.product}")
        basket.append((found, item.quantity))
    with tracer.start_as_current_span("price order"):
        lines = pricing.price(basket)
    with tracer.start_as_current_span("write order"):
        order_id = database.place_order(wanted.customer, lines)
    return {"order": order_id, "cents": sum(line.cents for line in lines)}


@app.get("/receipts/{order_id}")
async def receipt(order_id: int) -> dict[str, str]:
    """An async route that keeps several tasks going in one span: each signs a page on another thread."""
    with tracer.start_as_current_span("sign receipt"):
        pages = await asyncio.gather(*(asyncio.to_thread(_sign, f"{order_id}/{page}") for page in range(3)))
    return {"receipt": "".join(page.hex()[:16] for page in pages)}


@app.get("/reports/stock")
async def stock_report() -> dict[str, dict[str, float]]:
    """The mistake to be found: an async route that computes in the event loop, so that everybody waits for it."""
    rows = await asyncio.to_thread(database.sales)
    with tracer.start_as_current_span("compute stock report"):
        return pricing.stock_report(rows)


def _sign(text: str) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"shop", 20_000)


FastAPIInstrumentor.instrument_app(app, excluded_urls="health", exclude_spans=["receive", "send"])
