"""Losses as blocks: called with the name of the scores, they return that of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnxgrad.compat.graphs.building import has_value, typed_value
from onnxgrad.compat.onnxruntime.training.onnxblock import blocks

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]


class _Loss(blocks.Block):
    """A loss whose elements are reduced by mean, sum or not at all."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise RuntimeError(f"reduction={reduction!r}: expected 'mean', 'sum' or 'none'.")
        self._reduction = reduction

    def _reduced(self, name: str) -> str:
        if self._reduction == "none":
            return name
        kind = blocks.ReduceMean if self._reduction == "mean" else blocks.ReduceSum
        return str(kind(keepdims=False)(name))

    def _target(self, scores: str, name: str) -> str:
        """Return the name of the target: a value that is there, or a new input like the scores."""
        known = has_value(self.base, name) or any(v.name == name for v in self.base.graph.input)
        return name if known else str(blocks.InputLike(scores)(name))


class MSELoss(_Loss):
    """(x - t)^2."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss and return its name."""
        difference = blocks.Sub()(loss_input_name, self._target(loss_input_name, target_name))
        return self._reduced(blocks.Mul()(difference, difference))


class L1Loss(_Loss):
    """|x - t|."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss and return its name."""
        difference = blocks.Sub()(loss_input_name, self._target(loss_input_name, target_name))
        return self._reduced(blocks.Abs()(difference))


class BCEWithLogitsLoss(_Loss):
    """w (p t softplus(-x) + (1 - t) (x + softplus(-x))), with weight w and pos_weight p.

    It is -w (p t log sigmoid(x) + (1 - t) log(1 - sigmoid(x))) without overflow.
    """

    def __init__(
        self,
        weight: np.ndarray[Any, Any] | None = None,
        reduction: str = "mean",
        pos_weight: np.ndarray[Any, Any] | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weight, self._pos_weight = weight, pos_weight

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss and return its name."""
        target = self._target(loss_input_name, target_name)
        kind = typed_value(self.base, loss_input_name).type.tensor_type.elem_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        one = self._initializer("bceloss.one", np.ones(1, dtype))
        add, mul = blocks.Add(), blocks.Mul()
        positive = blocks.Softplus()(blocks.Neg()(loss_input_name))
        negative = mul(blocks.Sub()(one, target), add(loss_input_name, positive))
        positive = mul(target, positive)
        if self._pos_weight is not None:
            weight = np.asarray(self._pos_weight, dtype)
            positive = mul(positive, self._initializer("bceloss.pos_weight", weight))
        loss = add(positive, negative)
        if self._weight is not None:
            weight = np.asarray(self._weight, dtype)
            loss = mul(self._initializer("bceloss.weight", weight), loss)
        return self._reduced(loss)


class CrossEntropyLoss(_Loss):
    """ONNX's SoftmaxCrossEntropyLoss of scores [N, C, ...] and class numbers int64 [N, ...].

    Parameters
    ----------
    weight : numpy.ndarray, default=None
        A factor for each class [C].
    reduction : str, default="mean"
        ``"mean"`` (with `weight`: weighted), ``"sum"`` or ``"none"``.
    ignore_index : int, default=None
        A class number whose positions do not count.
    """

    def __init__(
        self,
        weight: np.ndarray[Any, Any] | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weight, self._ignored = weight, ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Add the loss and return its name."""
        known = {value.name for value in self.base.graph.input}
        if labels_name not in known and not has_value(self.base, labels_name):
            labels = typed_value(self.base, scores_input_name)
            labels.name = labels_name
            labels.type.tensor_type.elem_type = onnx.TensorProto.INT64
            del labels.type.tensor_type.shape.dim[1]
            self.base.graph.input.append(labels)
        inputs = [scores_input_name, labels_name]
        if self._weight is not None:
            inputs.append(self._initializer("celoss.weight", np.asarray(self._weight)))
        options: dict[str, Any] = {"reduction": self._reduction}
        if self._ignored is not None:
            options["ignore_index"] = self._ignored
        return self._node("SoftmaxCrossEntropyLoss", inputs, **options)
