"""The lines of a function with their text, where its file is on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_MAX_ROWS = 500  # of lines without weights
_LINES_AROUND = 4
_MAX_SOURCE_BYTES = 4 << 20


def read_source(file: Path) -> list[str]:
    """Return the lines of a file of Python; none if it is not here, or is something else."""
    with suppress(OSError):
        if file.suffix == ".py" and file.is_file() and file.stat().st_size <= _MAX_SOURCE_BYTES:
            with file.open(encoding="utf-8", errors="replace") as lines:  # `splitlines` knows other line ends
                return [line.rstrip("\n") for line in lines]
    return []


def source_rows(texts: Sequence[str], weights: Mapping[int, Sequence[int]]) -> list[list[int | str]]:
    """Return rows of number, text and weights: the lines that have any, and those around them if there are texts.

    Args:
        texts: of the file, by line.
        weights: by number of a line; 0 is a line that is not known.
    """
    numbers = sorted(number for number in weights if number > 0)
    nothing = [0] * len(next(iter(weights.values()), ()))
    if texts and numbers:
        first, last = max(1, numbers[0] - _LINES_AROUND), min(len(texts), numbers[-1] + _LINES_AROUND)
        numbers = sorted({*numbers, *range(first, min(last, first + _MAX_ROWS) + 1)})
    return [
        [number, texts[number - 1] if number <= len(texts) else "", *weights.get(number, nothing)] for number in numbers
    ]
