"""What sessions say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxgrad.sessions import TrainingSession

__all__ = ["NotPickled", "as_html", "described"]

_MAX_ROWS = 20  # of weights, in a notebook


class NotPickled:
    """Base of what cannot be pickled."""

    def __reduce__(self) -> str:
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be pickled: it is tied to the memory of this process")


def as_html(session: TrainingSession, history: Mapping[str, Sequence[float]]) -> str:
    """Return a small table: what is trained, how, and the last numbers of the history."""
    from html import escape  # needed in notebooks only

    lines = {
        "loss": session.loss_line.removeprefix("loss: "),
        "optimizer": repr(session.optimizer),
        "steps": f"{session.steps}, learning rate now {session.lr:g}",
    }
    lines |= {f"last {name}": f"{column[-1]:.6g}" for name, column in history.items() if column}
    cells = "".join(f"<tr><th>{escape(n)}</th><td>{escape(t)}</td></tr>" for n, t in lines.items())
    weights = "".join(
        f"<tr><td>{escape(weight.name)}</td><td>{list(weight.shape)}</td></tr>"
        for weight in session.trained_weights[:_MAX_ROWS]
    )
    left = len(session.trained_weights) - _MAX_ROWS
    more = f"<tr><td colspan='2'>and {left} more</td></tr>" if left > 0 else ""
    head = "<tr><th>trained weight</th><th>shape</th></tr>"
    return f"<table>{cells}</table><table>{head}{weights}{more}</table>"


def described(session: TrainingSession) -> str:
    """Return loss, optimizer and progress of a session in a few words."""
    weights = [weight.name for weight in session.trained_weights]
    names = ", ".join(weights[:3]) + (f", ... ({len(weights)})" if len(weights) > 3 else "")
    done = f"{session.steps} step{'s' * (session.steps != 1)}"
    loss = f"{session.loss_name or 'loss'} on '{session.scores_name}'"
    return f"{loss}, {session.optimizer!r}, trains {names}, {done} done"
