"""Blocks that make whole models: with a loss, and with its gradient."""

from __future__ import annotations

from typing import Any

import onnx

from onnxgrad.compat.graphs.building import register_outputs
from onnxgrad.compat.graphs.training_graphs import training_graphs
from onnxgrad.compat.onnxruntime.training.onnxblock.blocks import Block
from onnxgrad.compat.onnxruntime.training.onnxblock.model_accessor import current_model

__all__ = ["ForwardBlock", "TrainingBlock"]


class ForwardBlock(Block):
    """A block whose call makes the results of `build` the outputs of the model."""

    def __init__(self) -> None:
        super().__init__()
        self._model: onnx.ModelProto | None = None

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model.

        Raises
        ------
        RuntimeError
            The block has not been called.
        """
        if self._model is None:
            raise RuntimeError("The forward model is not built yet: call the block first.")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the model."""
        self.base = current_model()
        output = self.build(*args, **kwargs)
        self._model = self.infer_shapes_on_base()
        register_outputs(self._model, output)
        self.base.CopyFrom(self._model)
        return output


class TrainingBlock(Block):
    """A block whose call adds the gradient of the first result of `build`."""

    def __init__(self) -> None:
        super().__init__()
        self._trained: dict[str, None] = {}
        self._frozen: dict[str, None] = {}
        self._parameters: tuple[list[onnx.TensorProto], list[onnx.TensorProto]] | None = None
        self._models: tuple[onnx.ModelProto, onnx.ModelProto] | None = None

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Name a parameter or an input to compute the gradient of; with False, a frozen one."""
        chosen, other = (self._trained, self._frozen) if value else (self._frozen, self._trained)
        chosen[argument_name] = None
        other.pop(argument_name, None)

    def parameters(self) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
        """Return trained and frozen parameters, in the order of the model.

        Raises
        ------
        RuntimeError
            The block has not been called.
        """
        if self._parameters is None:
            raise RuntimeError(
                "Please build the training model first before trying to retrieve the parameters."
            )
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return training and evaluation model.

        Parameters are inputs of both. The training model has an input
        ``<name>_grad.accumulation.buffer`` for each gradient and an output
        ``<name>_grad.accumulation.out`` with the sum of both, or with the gradient alone if the
        input ``lazy_reset_grad`` is true.

        Raises
        ------
        RuntimeError
            The block has not been called.
        """
        if self._models is None:
            raise RuntimeError("The training model is not built yet: call the block first.")
        return self._models

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the models."""
        self.base = current_model()
        output = self.build(*args, **kwargs)
        model = self.infer_shapes_on_base()
        register_outputs(model, output)
        tensors = model.graph.initializer
        self._parameters = (
            [tensor for tensor in tensors if tensor.name in self._trained],
            [tensor for tensor in tensors if tensor.name in self._frozen],
        )
        self._models = training_graphs(model, list(self._trained), list(self._frozen))
        self.base.CopyFrom(self._models[0])
        return output
