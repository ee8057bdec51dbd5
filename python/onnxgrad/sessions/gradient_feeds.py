"""Gradients of passes as the feeds of a session that updates, which stay in the extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onnxgrad import _core
from onnxgrad.data.arrays import ArrayLike, from_native, from_native_list, to_feeds, to_native

if TYPE_CHECKING:
    import numpy as np

__all__ = ["GradientFeeds"]


class GradientFeeds:
    """The gradients of a loss, the first output of passes; arrays only where they are asked for.

    Parameters
    ----------
    weights : list of str
        The `weight_names` of the ForwardBackward.
    name_of : callable
        The name of the feed for the gradient of a weight.
    """

    def __init__(self, weights: Sequence[str], name_of: Callable[[str], str]) -> None:
        self._names = {name: name_of(name) for name in weights}
        self._core = _core.GradientFeeds([*self._names.values()])

    def compute(
        self,
        passes: Any,
        inputs: Sequence[tuple[str, ArrayLike]],
        *,
        adds: bool = False,
    ) -> list[np.ndarray[Any, Any]]:
        """Return the outputs of a ForwardBackward for all inputs, and keep the gradients.

        `inputs` have the names, in the order of the model. With `adds` the gradients are added to
        the ones before.
        """
        before = self._core.tensors if adds else {}
        native = [to_native(value, name) for name, value in inputs]
        outputs = from_native_list(self._core.compute(passes._core, native))
        if before:
            self._core.tensors = to_feeds(
                {
                    name: from_native(before[name]) + from_native(gradient)
                    for name, gradient in self._core.tensors.items()
                }
            )
        return outputs

    def update(self, session: Any, passes: Any) -> None:
        """Do a step of a TrainingSession with the gradients, and give its weights to the passes."""
        self._core.update(session._core, passes._core)

    def gradient(self, weight: str) -> np.ndarray[Any, Any]:
        """Return the gradient of a weight."""
        return from_native(self._core.tensors[self._names[weight]])
