"""The gradient graph, under onnxruntime-training's name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import onnxgrad as og
from onnxgrad.compat.models import load_proto
from onnxgrad.files import write_file

__all__ = ["GradientGraphBuilder"]


class GradientGraphBuilder:
    """Builds the gradient of a loss in a model.

    Parameters
    ----------
    model : bytes or path
    y_node_arg_names : set of str
        Outputs to differentiate.
    x_node_arg_names : set of str
        Inputs and initializers to differentiate with respect to.
    loss_node_arg_name : str
        Name of the loss, which has one element; its gradient is 1.
    options
        Accepted for compatibility.
    """

    def __init__(
        self,
        model: Any,
        y_node_arg_names: Iterable[str],
        x_node_arg_names: Iterable[str],
        loss_node_arg_name: str = "",
        options: Any = None,
    ) -> None:
        del options
        self._model = load_proto(model)
        self._outputs = sorted(y_node_arg_names) or [loss_node_arg_name]
        wanted = set(x_node_arg_names)
        graph = self._model.graph
        known = [value.name for value in [*graph.input, *graph.initializer]]
        self._wrt = [name for name in dict.fromkeys(known) if name in wanted]
        self._wrt += sorted(wanted - {*known})
        self._built: Any = None

    def build(self) -> None:
        """Compute the gradient."""
        self._built = og.gradient(
            self._model, self._wrt, self._outputs, fill_grad=True, keep_outputs=True, inline=True
        )

    def get_model(self) -> bytes:
        """Return the model as bytes; its outputs are ``<name>_grad``, then the loss.

        Raises
        ------
        RuntimeError
            If `build` has not been called.
        """
        if self._built is None:
            raise RuntimeError("build() has not been called.")
        return bytes(self._built.SerializeToString())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file."""
        write_file(path, self.get_model())
