"""Text from outside made safe: escapes for a terminal, a report or a log, and a bound for the stream.

Names, answers of servers and values of the environment may hold terminal sequences, line ends and marks that turn the
direction of a text. Pure; imports nothing of ours.
"""

from __future__ import annotations

_MAX_CHARACTERS = 4096


def printable(text: str) -> str:
    r"""Return `text` on one line, with an escape for each unprintable character (``\x1b``, ``\n``, ``\u202e``)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def shortened(text: str) -> str:
    """Return `text`, which ends in … after 4,095 characters if it has more than 4,096: a record has a largest size."""
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
