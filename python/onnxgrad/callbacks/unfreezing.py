"""Training of the last layers first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxgrad.base.checks import positive_int
from onnxgrad.base.depth import blocks_of
from onnxgrad.callbacks.base import Callback
from onnxgrad.errors import OptionError

if TYPE_CHECKING:
    from onnxgrad.sessions import TrainingSession

__all__ = ["GradualUnfreezing", "unfreezing_among"]


class GradualUnfreezing(Callback):
    """Trains the head first, then also the block before it, and so on to the first layer.

    Howard and Ruder, Universal Language Model Fine-tuning for Text Classification,
    arXiv:1801.06146. The weights that the trainer trains are frozen at the begin of `fit`, and
    trained again block by block; layers with a common number in their names
    (``encoder.layer.3``) are a block. Each stage is compiled for its weights, so that early ones
    are faster.

    Parameters
    ----------
    every : int, default=1
        Epochs after which one more block is trained.
    start : int or "head", default="head"
        Number of blocks that are trained from the first epoch; ``"head"`` is 1.

    Notes
    -----
    Learning rates are constant, and there is no early stopping, checkpoint or resumption: `fit`
    refuses these beside it.

    Examples
    --------
    >>> import onnxgrad as og
    >>> unfreezing = og.callbacks.GradualUnfreezing(every=2)
    """

    def __init__(self, every: int = 1, start: int | str = "head") -> None:
        self.every = positive_int("every", every)
        is_head = isinstance(start, str) and start == "head"
        self.start = 1 if is_head else positive_int("start", start)
        self._blocks: list[list[str]] = []

    def __repr__(self) -> str:
        return f"GradualUnfreezing(every={self.every}, start={self.start})"

    def begin(self, session: TrainingSession, epochs: int) -> list[int]:
        """Freeze all blocks but the first, and return the numbers of epochs of the stages."""
        self._blocks = blocks_of(session.trained_weights)[self.start :]
        if frozen := [name for block in self._blocks for name in block]:
            session.freeze(frozen)
        stages = min(len(self._blocks), (epochs - 1) // self.every)
        return [self.every] * stages + [epochs - self.every * stages]

    def advance(self, session: TrainingSession) -> None:
        """Train one more block."""
        session.unfreeze(self._blocks.pop(0))

    def end(self, session: TrainingSession) -> None:
        """Train what is still frozen again."""
        while self._blocks:
            self.advance(session)


def unfreezing_among(callbacks: list[Callback]) -> GradualUnfreezing | None:
    """Return the callback of this kind, if there is one.

    Raises
    ------
    OptionError
        There are several.
    """
    found = [one for one in callbacks if isinstance(one, GradualUnfreezing)]
    if len(found) > 1:
        raise OptionError(
            what="callbacks has several GradualUnfreezing",
            value="callbacks",
            hint="Give one of them.",
        )
    return found[0] if found else None
