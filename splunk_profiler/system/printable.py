"""Escapes for text from outside, which make it safe to print on a terminal, in a report or in a log.

Names, answers of servers and values of the environment may hold terminal sequences, line ends and marks that turn the
direction of a text. Pure; imports nothing of ours.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` on one line, with an escape for each unprintable character (``\x1b``, ``\n``, ``\u202e``)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
