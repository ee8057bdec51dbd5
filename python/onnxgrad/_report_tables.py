"""What a report shows as HTML (its text is the C++ library's), and both of changes of weights."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onnxgrad._values import WeightInfo
    from onnxgrad.reports import Report, WeightChange

# Rows of a table, and lines of a list, that are shown as HTML; text shows all.
_HTML_ROWS = 30
_HTML_LINES = 8


class _Column(NamedTuple):
    title: str
    width: int | None  # characters that a cell has at most; None: names that options take
    is_number: bool = False


class _Table(NamedTuple):
    columns: Sequence[_Column]
    rows: Sequence[tuple[str, ...]]


def _fitted(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 3] + "..."


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def size_text(num_bytes: int) -> str:
    """Return a number of bytes as people read it.

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
    """Return a large number as people read it.

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


def _operators(report: Report) -> _Table:
    columns = [
        _Column("operator", 44),
        _Column("count", 8, is_number=True),
        _Column("runs", 4),
        _Column("gradient", 8),
    ]
    rows = [
        (
            f"{use.domain}.{use.op_type}" if use.domain else use.op_type,
            str(use.count),
            _yes(use.runs),
            _yes(use.has_gradient),
        )
        for use in report.operators
    ]
    return _Table(columns, rows)


def _reader(weight: WeightInfo, readers: int) -> str:
    if readers > 1:
        return f"{weight.op_type} and {readers - 1} more"
    return f"{weight.op_type} {weight.node}".strip()


def _weights(report: Report) -> _Table:
    columns = [
        _Column("weight", None),
        _Column("read by", 20),
        _Column("dtype", 8),
        _Column("shape", 12),
        _Column("parameters", 10, is_number=True),
        _Column("FLOPs", 8, is_number=True),
        _Column("trained", 7),
    ]
    rows = [
        (
            weight.name,
            _reader(weight, readers),
            weight.dtype,
            str(list(weight.shape)),
            str(weight.num_parameters),
            count_text(flops),
            _yes(weight.trainable),
        )
        for weight, flops, readers in zip(
            report.weights, report.weight_flops, report.weight_readers, strict=True
        )
        if weight.is_floating
    ]
    return _Table(columns, rows)


def _changes(changes: Sequence[WeightChange]) -> _Table:
    columns = [
        _Column("weight", None),
        _Column("shape", 16),
        _Column("norm before", 12, is_number=True),
        _Column("norm after", 12, is_number=True),
        _Column("change", 8, is_number=True),
    ]
    rows = [
        (
            change.name,
            str(list(change.shape)),
            f"{change.norm_before:.6g}",
            f"{change.norm_after:.6g}",
            f"{change.relative:.2%}" if change.relative < 10 else f"{change.relative:.3g}",
        )
        for change in changes
    ]
    return _Table(columns, rows)


def changes_as_text(changes: Sequence[WeightChange]) -> str:
    """Return an aligned table, at most 100 columns wide but for long names."""
    return "\n".join(_text_table(_changes(changes))) + "\n"


def changes_as_html(changes: Sequence[WeightChange]) -> str:
    """Return a small table."""
    return _html_table(_changes(changes))


def _heading(report: Report) -> str:
    maker = f", made by {report.producer}" if report.producer else ""
    file = report.file or "model"
    return f"{file}, opset {report.opset}, IR version {report.ir_version}{maker}"


def _values(report: Report) -> list[str]:
    named = [("input ", value) for value in report.inputs]
    named += [("output", value) for value in report.outputs]
    return [
        f"{kind} {value.name}: {value.type} [{', '.join(str(d or '?') for d in value.shape)}]"
        for kind, value in named
    ]


def _totals(report: Report) -> str:
    return (
        f"{report.num_parameters} parameters ({size_text(report.num_bytes)}): "
        f"{report.num_trainable} trained, {report.num_frozen} frozen; "
        f"{count_text(report.flops)} FLOPs a row forward"
    )


def _reasons(report: Report) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for weight in report.weights:
        if weight.is_floating and not weight.trainable:
            reasons.setdefault(weight.reason, []).append(f"'{weight.name}'")
    lines = [f"not trained: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    for name, parts in report.separated.items():
        lines.append(f"trained apart: '{name}' as {', '.join(map(repr, parts))}")
    return lines


def _training(report: Report) -> list[str]:
    lines = [report.loss_line or f"no loss: {report.loss_problem}"]
    lines += [
        f"no gradient: {gap.op_type} node '{gap.node}', input {gap.input}: {gap.reason}"
        for gap in report.missing_gradients
    ]
    return lines


def _text_table(table: _Table) -> list[str]:
    cells = [tuple(column.title for column in table.columns)]
    for row in table.rows:
        fitted = zip(row, table.columns, strict=True)
        cells.append(tuple(_fitted(cell, column.width) for cell, column in fitted))
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def as_html(report: Report) -> str:
    """Return small tables without style or script; long ones are cut, with the number of rows."""
    lines = _html_lines(_values(report))
    training = _html_lines([*_reasons(report), *_training(report)])
    return (
        f"<b>{html.escape(_fitted(_heading(report), 100))}</b>{lines}"
        f"{_html_table(_operators(report))}{_html_table(_weights(report))}"
        f"<p>{html.escape(_totals(report))}</p>{training}"
    )


def _html_lines(lines: Sequence[str]) -> str:
    shown = [html.escape(_fitted(line, 200)) for line in lines[:_HTML_LINES]]
    if len(lines) > _HTML_LINES:
        shown.append(f"and {len(lines) - _HTML_LINES} more")
    return f"<p>{'<br>'.join(shown)}</p>"


def _html_table(table: _Table) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    body = [row((column.title for column in table.columns), "th")]
    for cells in table.rows[:_HTML_ROWS]:
        fitted = zip(cells, table.columns, strict=True)
        body.append(row((html.escape(_fitted(c, column.width)) for c, column in fitted), "td"))
    hidden = len(table.rows) - _HTML_ROWS
    if hidden > 0:
        body.append(f"<tr><td colspan={len(table.columns)}>and {hidden} more</td></tr>")
    return f"<table>{''.join(body)}</table>"
