"""Penalties on the weights.

In `fit` the penalty is part of the engine's step; `penalty_loss` and `update_weights` are for
custom training loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import onnxgrad as og
from onnxgrad.compat.onnxcustom.training.base_onnx_class import BaseOnnxClass, GraphRunner
from onnxgrad.compat.onnxcustom.utils.onnx_function import function_onnx_graph
from onnxgrad.compat.onnxruntime.values import OrtValue, as_ort_value, write_into

__all__ = [
    "BaseLearningPenalty",
    "ElasticLearningPenalty",
    "L1LearningPenalty",
    "L2LearningPenalty",
    "NoLearningPenalty",
]


class BaseLearningPenalty(BaseOnnxClass):
    """Base class of penalties: l1 sum abs(w) + l2 sum w^2, added to the loss of each batch."""

    l1: float
    l2: float

    def description(self, weights: list[str]) -> Any:
        """Return the engine's penalty, or None."""
        if not self.l1 and not self.l2:
            return None
        return og.losses.Penalty(l1=self.l1, l2=self.l2, weights=weights)

    def build_onnx_function(
        self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32
    ) -> None:
        """Build the graphs ``penalty_onnx_`` (loss) and ``penalty_grad_onnx_`` (update)."""
        del device
        self.penalty_onnx_ = function_onnx_graph(
            "n_penalty_elastic_error",
            target_opset=opset,
            dtype=dtype,
            n_tensors=n_tensors,
            loss_shape=None,
            l1_weight=self.l1,
            l2_weight=self.l2,
        )
        self.penalty_grad_onnx_ = function_onnx_graph(
            "update_penalty_elastic_error",
            target_opset=opset,
            dtype=dtype,
            l1=self.l1,
            l2=self.l2,
        )
        for name in [name for name in vars(self) if name.startswith("_run")]:
            delattr(self, name)

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> OrtValue:
        """Return the loss [1] plus the penalty on the weights."""
        del device
        feeds = {"loss": loss, **{f"W{i}": weight for i, weight in enumerate(weights)}}
        if not hasattr(self, "_run_loss"):
            self._run_loss = GraphRunner(self.penalty_onnx_)
        return self._run_loss(feeds)[0]

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> OrtValue:
        """Update a weight in place by a gradient step of rate 1 on the penalty, and return it."""
        del n_bind, device
        if not hasattr(self, "_run_update"):
            self._run_update = GraphRunner(self.penalty_grad_onnx_)
        found = self._run_update({"X": statei})[0]
        write_into(statei, found.numpy())
        return found

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningPenalty:
        """Return the penalty of that name, or the object itself; None means no penalty.

        Raises
        ------
        ValueError
            An unknown name.
        """
        if isinstance(class_name, BaseLearningPenalty):
            return class_name
        names: dict[Any, type[BaseLearningPenalty]] = {
            None: NoLearningPenalty,
            "": NoLearningPenalty,
            "penalty": ElasticLearningPenalty,
            "elastic": ElasticLearningPenalty,
            "l1l2": ElasticLearningPenalty,
            "l1": L1LearningPenalty,
            "l2": L2LearningPenalty,
            **{cls.__name__: cls for cls in BaseLearningPenalty.__subclasses__()},
        }
        if class_name not in names:
            raise ValueError(
                f"Unexpected class name {class_name!r}. It should be one of {[*names]}."
            )
        return names[class_name](**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_run")}


class NoLearningPenalty(BaseLearningPenalty):
    """No penalty."""

    l1 = 0.0
    l2 = 0.0

    def __init__(self) -> None:
        pass

    def build_onnx_function(
        self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32
    ) -> None:
        """Do nothing: there are no graphs."""

    def penalty_loss(self, device: Any, loss: Any, *weights: Any) -> OrtValue:
        """Return the loss unchanged."""
        del device, weights
        return as_ort_value(loss)

    def update_weights(self, n_bind: int, device: Any, statei: Any) -> OrtValue:
        """Return the weight unchanged."""
        del n_bind, device
        return as_ort_value(statei)


class ElasticLearningPenalty(BaseLearningPenalty):
    """l1 sum abs(w) + l2 sum w^2.

    Parameters
    ----------
    l1, l2 : float, default=0.5
    """

    def __init__(self, l1: float = 0.5, l2: float = 0.5) -> None:
        self.l1 = l1
        self.l2 = l2


class L1LearningPenalty(BaseLearningPenalty):
    """l1 sum abs(w).

    Parameters
    ----------
    l1 : float, default=0.5
    """

    l2 = 0.0

    def __init__(self, l1: float = 0.5) -> None:
        self.l1 = l1


class L2LearningPenalty(BaseLearningPenalty):
    """l2 sum w^2.

    Parameters
    ----------
    l2 : float, default=0.5
    """

    l1 = 0.0

    def __init__(self, l2: float = 0.5) -> None:
        self.l2 = l2
