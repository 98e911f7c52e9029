"""Draws the picture of the README from saved profiles: the head of the report, as SVG.

splunk-profiler demo --output profiles/demo
.venv/bin/python scripts/report-picture.py profiles/demo docs/report.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from splunk_profiler.cli.analysis import analyse
from splunk_profiler.cli.report import draw
from splunk_profiler.cli.terminal import Terminal

WIDTH = 100
SPANS = 3
HEAD_ENDS = "Hottest functions outside of spans"
LEFT_OUT = "read from"  # a place on the machine where the picture was made


def main() -> None:
    """Draw, cut, save."""
    profiles, picture = Path(sys.argv[1]), Path(sys.argv[2])
    whole = Terminal(record=True, width=WIDTH, file=io.StringIO())
    draw(analyse(profiles), profiles, console=whole, top=4, spans=SPANS)
    head = whole.export_text(styles=True).partition(HEAD_ENDS)[0].splitlines()
    head = head[:-1] if head else head  # the beginning of that heading
    shown = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    for line in head:
        if LEFT_OUT not in line:
            shown.print(Text.from_ansi(line))
    svg = shown.export_svg(title="splunk-profiler demo")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture fetches nothing
    picture.write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
