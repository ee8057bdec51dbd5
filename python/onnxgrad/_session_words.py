"""What sessions say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxgrad.sessions import TrainingSession

__all__ = ["NotPickled", "described"]


class NotPickled:
    """Base of what cannot be pickled."""

    def __reduce__(self) -> str:
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be pickled: it is tied to the memory of this process")


def described(session: TrainingSession) -> str:
    """Return loss, optimizer and progress of a session in a few words."""
    weights = [weight.name for weight in session.trained_weights]
    names = ", ".join(weights[:3]) + (f", ... ({len(weights)})" if len(weights) > 3 else "")
    done = f"{session.steps} step{'s' * (session.steps != 1)}"
    loss = f"{session.loss_name or 'loss'} on '{session.scores_name}'"
    return f"{loss}, {session.optimizer!r}, trains {names}, {done} done"
