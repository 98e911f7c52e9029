"""Products and orders in an SQLite file. Each call opens a connection of its own, as threads may not share one."""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PRODUCTS = 20_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS products (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, maker TEXT NOT NULL, cents INTEGER NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY, customer TEXT NOT NULL, placed_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lines (
    order_id INTEGER NOT NULL REFERENCES orders, product_id INTEGER NOT NULL REFERENCES products,
    quantity INTEGER NOT NULL, cents INTEGER NOT NULL);
"""
_ADJECTIVES = ("light", "heavy", "folding", "electric", "silent", "waterproof", "wooden", "compact", "spare", "brass")
_NOUNS = ("lantern", "kettle", "bicycle", "shelf", "drill", "notebook", "compass", "bench", "radio", "umbrella")
_MAKERS = ("Aurora", "Borealis", "Cirrus", "Dune", "Estuary", "Fjord", "Glacier")


@dataclass(frozen=True)
class Product:
    """A thing that can be bought."""

    id: int
    name: str
    maker: str
    cents: int
    stock: int


@dataclass(frozen=True)
class Line:
    """So many of one product, at the price of all of them together."""

    product: Product
    quantity: int
    cents: int


def path() -> Path:
    """The database's file: SHOP_DATABASE, or one among the temporary files."""
    return Path(os.environ.get("SHOP_DATABASE") or Path(tempfile.gettempdir()) / "shop.sqlite3")


@contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """A connection whose transaction is committed at the end, or rolled back on an error."""
    connection = sqlite3.connect(path(), timeout=30)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        with connection:
            yield connection
    finally:
        connection.close()


def prepare() -> None:
    """Make the tables, and fill them the first time."""
    with connected() as connection:
        connection.executescript(_SCHEMA)
        if connection.execute("SELECT count(*) FROM products").fetchone()[0]:
            return
        rng = random.Random(7)
        connection.executemany(
            "INSERT INTO products (name, maker, cents, stock) VALUES (?, ?, ?, ?)",
            (
                (
                    f"{rng.choice(_ADJECTIVES)} {rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}",
                    rng.choice(_MAKERS),
                    rng.randrange(99, 49_999),
                    rng.randrange(1000, 100_000),
                )
                for _ in range(PRODUCTS)
            ),
        )


def product(product_id: int) -> Product | None:
    """The product of that number."""
    with connected() as connection:
        row = connection.execute("SELECT * FROM products WHERE id = ?", (product_id,)).fetchone()
    return Product(*row) if row else None


def candidates(word: str) -> list[Product]:
    """Products whose name or maker holds any three letters of `word` that follow each other: a full scan."""
    pieces = {word[start : start + 3] for start in range(max(1, len(word) - 2))}
    where = " OR ".join(["name LIKE ? OR maker LIKE ?"] * len(pieces))
    values = [f"%{piece}%" for piece in sorted(pieces) for _ in range(2)]
    with connected() as connection:
        rows = connection.execute(f"SELECT * FROM products WHERE {where} LIMIT 2000", values)
        return [Product(*row) for row in rows]


def place_order(customer: str, lines: list[Line]) -> int:
    """Write an order and take its products out of the stock, in one transaction that is on the disk at the end."""
    with connected() as connection:
        connection.execute("BEGIN IMMEDIATE")
        cursor = connection.execute(
            "INSERT INTO orders (customer, cents) VALUES (?, ?)", (customer, sum(line.cents for line in lines))
        )
        order_id = cursor.lastrowid
        assert order_id is not None
        for line in lines:
            connection.execute(
                "INSERT INTO lines VALUES (?, ?, ?, ?)", (order_id, line.product.id, line.quantity, line.cents)
            )
            connection.execute("UPDATE products SET stock = stock - ? WHERE id = ?", (line.quantity, line.product.id))
    return order_id


def sales() -> list[tuple[str, int, int]]:
    """Maker, price and stock of every product, for reports."""
    with connected() as connection:
        return connection.execute("SELECT maker, cents, stock FROM products").fetchall()
