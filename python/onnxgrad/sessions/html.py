"""Sessions as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["session_html"]

_HTML_ROWS = 20  # maximum number of weights in the table


def session_html(session: Any, history: Mapping[str, Sequence[float]] | None = None) -> str:
    """Return a small table: loss, optimizer, the last entries of the history, trained weights."""
    from html import escape  # needed in notebooks only

    lines = {
        "loss": session.loss_line.removeprefix("loss: "),
        "optimizer": "as the file says" if session.optimizer is None else repr(session.optimizer),
        "steps": f"{session.steps}, learning rate now {session.lr:g}",
    }
    lines |= {
        f"last {name}": f"{column[-1]:.6g}" for name, column in (history or {}).items() if column
    }
    cells = "".join(f"<tr><th>{escape(n)}</th><td>{escape(t)}</td></tr>" for n, t in lines.items())
    weights = "".join(
        f"<tr><td>{escape(weight.name)}</td><td>{list(weight.shape)}</td></tr>"
        for weight in session.trained_weights[:_HTML_ROWS]
    )
    hidden = len(session.trained_weights) - _HTML_ROWS
    more = f"<tr><td colspan='2'>and {hidden} more</td></tr>" if hidden > 0 else ""
    head = "<tr><th>trained weight</th><th>shape</th></tr>"
    return f"<table>{cells}</table><table>{head}{weights}{more}</table>"
