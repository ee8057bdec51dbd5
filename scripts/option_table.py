#!/usr/bin/env python3
"""Writes the options of ``onnxgrad train`` into docs/command-line.md, from the table in the code.

scripts/option_table.py            write
scripts/option_table.py --check    exit 1 if the document says something else
"""

from __future__ import annotations

import sys
from pathlib import Path

from onnxgrad.cli.train_options import OPTIONS, TrainOption

DOCUMENT = Path(__file__).parents[1] / "docs" / "command-line.md"
BEGIN, END = "<!-- options: written by scripts/option_table.py -->", "<!-- end of options -->"


def rows() -> list[str]:
    """Return the lines of the table, with a heading for each topic."""
    lines, topic = [], None
    for option in OPTIONS:
        if option.name == "model":
            continue
        if option.topic != topic:
            topic = option.topic
            lines += ["", f"| {topic} | |", "| --- | --- |"]
        value = option.shown_value if option.kind is not bool else None
        shown = f"`{option.spelling}{f' {value}' if value else ''}`"
        lines.append(f"| {_cell(shown)} | {_cell(option.help + _default(option))} |")
    return lines[1:]


def _cell(text: str) -> str:
    return text.replace("  ", " ").replace("|", "\\|")


def _default(option: TrainOption) -> str:
    value = option.default
    is_shown = value is not None and not isinstance(value, bool) and option.name != "verbose"
    return f" [{value}]" if is_shown else ""


def document() -> str:
    """Return docs/command-line.md with the table of now."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return before + BEGIN + "\n\n" + "\n".join(rows()) + "\n\n" + END + after


def main() -> int:
    """Write the document, or compare."""
    wanted = document()
    if "--check" in sys.argv[1:]:
        if wanted == DOCUMENT.read_text(encoding="utf-8"):
            return 0
        print(f"{DOCUMENT.name} is not what {Path(__file__).name} writes", file=sys.stderr)
        return 1
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
