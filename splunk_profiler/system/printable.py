"""Text from outside, made safe to print: on a terminal, in a report, in a line of a log.

Names of services, spans, threads and files, answers of servers and values of the environment may hold anything:
sequences that a terminal obeys, line ends that begin a line of their own, marks that turn the direction of a text.
Pure; imports nothing of ours.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` on one line; what does not show as itself becomes its escape (``\\x1b``, ``\\n``, ``\\u202e``)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
