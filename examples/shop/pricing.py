"""Prices and ranking of products: the shop's own computing."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from statistics import mean, quantiles

from shop.database import Line, Product

_BUNDLE_DISCOUNT = 0.07
_VOLUME_DISCOUNTS = ((50, 0.20), (10, 0.12), (3, 0.05))


def trigrams(text: str) -> set[str]:
    """All pieces of three letters."""
    padded = f"  {text.lower()} "
    return {padded[start : start + 3] for start in range(len(padded) - 2)}


def rank(word: str, products: list[Product]) -> list[Product]:
    """`products`, most like `word` first."""
    wanted = trigrams(word)

    def likeness(product: Product) -> float:
        found = trigrams(product.name) | trigrams(product.maker)
        return len(wanted & found) / len(wanted | found)

    return sorted(products, key=likeness, reverse=True)


def price(basket: list[tuple[Product, int]]) -> list[Line]:
    """The lines of an order, each with its discount for volume and the best bundle it is part of."""
    bundled = best_bundles(basket)
    lines = []
    for product, quantity in basket:
        discount = next((share for least, share in _VOLUME_DISCOUNTS if quantity >= least), 0.0)
        if product.id in bundled:
            discount = max(discount, _BUNDLE_DISCOUNT)
        lines.append(Line(product, quantity, round(product.cents * quantity * (1 - discount))))
    return lines


def best_bundles(basket: list[tuple[Product, int]]) -> set[int]:
    """Products of the three that together save most, tried out over all threes of the basket."""
    best: tuple[float, set[int]] = (0.0, set())
    for three in combinations(basket, 3):
        makers = {product.maker for product, _ in three}
        saved = sum(product.cents * quantity for product, quantity in three) * _BUNDLE_DISCOUNT / len(makers)
        if saved > best[0]:
            best = (saved, {product.id for product, _ in three})
    return best[1]


def stock_report(rows: list[tuple[str, int, int]]) -> dict[str, dict[str, float]]:
    """For each maker: value of the stock in cents, mean price and the price that nine in ten do not exceed."""
    prices = defaultdict(list)
    values: dict[str, int] = defaultdict(int)
    for maker, cents, stock in rows:
        prices[maker].append(cents)
        values[maker] += cents * stock
    return {
        maker: {"value": values[maker], "mean": mean(prices[maker]), "p90": quantiles(prices[maker], n=10)[-1]}
        for maker in sorted(prices)
    }
