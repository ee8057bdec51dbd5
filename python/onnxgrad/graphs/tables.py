"""Small tables as text and as HTML, and large numbers in readable form."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = [
    "Column",
    "Table",
    "count_text",
    "fitted",
    "html_lines",
    "html_table",
    "size_text",
    "text_table",
]

# Maximum number of table rows and list lines in HTML; text shows all.
_HTML_ROWS = 30
_HTML_LINES = 8


class Column(NamedTuple):
    """A column of a table."""

    title: str
    width: int | None  # maximum characters of a cell; None: unlimited, for names to copy
    is_number: bool = False


class Table(NamedTuple):
    """Columns, and the cells of each row."""

    columns: Sequence[Column]
    rows: Sequence[tuple[str, ...]]


def fitted(text: str, width: int | None) -> str:
    """Return `text`, truncated to `width` characters unless that is None."""
    return text if width is None or len(text) <= width else text[: width - 3] + "..."


def size_text(num_bytes: int) -> str:
    """Return a number of bytes with a suitable unit.

    Examples
    --------
    >>> size_text(1000), size_text(3 * 2**20)
    ('1000 B', '3.0 MiB')
    """
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def count_text(number: int) -> str:
    """Return a number, with a suitable unit if it is large.

    Examples
    --------
    >>> count_text(99999), count_text(1234567), count_text(2 * 10**9)
    ('99999', '1.23 M', '2 G')
    """
    if number < 10**5:
        return str(number)
    for unit, size in (("k", 10**3), ("M", 10**6), ("G", 10**9)):
        if number < 1000 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 10**12:.3g} T"


def text_table(table: Table) -> list[str]:
    """Return a table as aligned lines, the titles first."""
    cells = [tuple(column.title for column in table.columns)]
    for row in table.rows:
        pairs = zip(row, table.columns, strict=True)
        cells.append(tuple(fitted(cell, column.width) for cell, column in pairs))
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def html_lines(lines: Sequence[str]) -> str:
    """Return lines as a paragraph; only the first ones if there are many."""
    shown = [html.escape(fitted(line, 200)) for line in lines[:_HTML_LINES]]
    if len(lines) > _HTML_LINES:
        shown.append(f"and {len(lines) - _HTML_LINES} more")
    return f"<p>{'<br>'.join(shown)}</p>"


def html_table(table: Table) -> str:
    """Return a table without style or script; only the first rows if there are many."""

    def row(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    body = [row((column.title for column in table.columns), "th")]
    for cells in table.rows[:_HTML_ROWS]:
        pairs = zip(cells, table.columns, strict=True)
        body.append(row((html.escape(fitted(c, column.width)) for c, column in pairs), "td"))
    hidden = len(table.rows) - _HTML_ROWS
    if hidden > 0:
        body.append(f"<tr><td colspan={len(table.columns)}>and {hidden} more</td></tr>")
    return f"<table>{''.join(body)}</table>"
