"""Losses on the output of a model.

In `fit` the loss is part of the engine's step; `loss_gradient` and `loss_scores` are for custom
training loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

import onnxgrad as og
from onnxgrad.compat.onnxcustom.training.base_onnx_class import BaseOnnxClass, GraphRunner
from onnxgrad.compat.onnxcustom.utils.onnx_function import function_onnx_graph
from onnxgrad.compat.onnxcustom.utils.onnx_rewriter import unreduced_onnx_loss
from onnxgrad.compat.onnxruntime.values import OrtValue

__all__ = [
    "AbsoluteLearningLoss",
    "BaseLearningLoss",
    "ElasticLearningLoss",
    "NegLogLearningLoss",
    "SquareLearningLoss",
]


class BaseLearningLoss(BaseOnnxClass):
    """Base class of losses.

    A user-defined subclass defines `description` for `fit`, or a graph for `build_onnx_function`.
    """

    is_classifier = False
    _function = ""

    def description(self) -> og.losses.Loss:
        """Return the engine's loss, summed over the rows."""
        raise NotImplementedError("This method must be overwritten.")

    def _options(self) -> dict[str, Any]:
        return {}

    def build_onnx_function(
        self,
        opset: int,
        device: Any = None,
        weight_name: str | None = None,
        dtype: Any = np.float32,
    ) -> None:
        """Build the graphs ``loss_grad_onnx_`` (Y, Y_grad) and ``loss_score_onnx_`` (Y).

        The inputs are X1 (expected), X2 (predicted), of type `dtype`, and the weights of rows if
        they have a name. Y of the first is the sum over the rows [1], of the second elementwise.
        """
        del device
        self.weight_name_ = weight_name
        options = self._options()
        self.loss_grad_onnx_ = function_onnx_graph(
            self._function, target_opset=opset, dtype=dtype, weight_name=weight_name, **options
        )
        loss = onnx.ModelProto()
        loss.CopyFrom(self.loss_grad_onnx_)
        del loss.graph.output[1]
        self.loss_score_onnx_ = unreduced_onnx_loss(loss, "Y")
        for name in [name for name in vars(self) if name.startswith("_run")]:
            delattr(self, name)

    def loss_gradient(
        self, device: Any, expected: Any, predicted: Any, weight: Any = None
    ) -> list[OrtValue]:
        """Return the loss, summed over the rows [1], and its gradient for the prediction."""
        return self._run("loss_grad_onnx_", device, expected, predicted, weight)

    def loss_scores(
        self, device: Any, expected: Any, predicted: Any, weight: Any = None
    ) -> OrtValue:
        """Return the loss of each element of the prediction, times the weight of its row."""
        return self._run("loss_score_onnx_", device, expected, predicted, weight)[0]

    def _run(
        self, name: str, device: Any, expected: Any, predicted: Any, weight: Any
    ) -> list[OrtValue]:
        del device
        if not hasattr(self, name):
            raise RuntimeError(f"{name!r} is missing: build_onnx_function has not been called.")
        runner = vars(self).setdefault(f"_run_{name}", None) or GraphRunner(getattr(self, name))
        setattr(self, f"_run_{name}", runner)
        feeds = {"X1": expected, "X2": predicted}
        if self.weight_name_ is not None:
            feeds[self.weight_name_] = weight
        return runner(feeds)

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningLoss:
        """Return the loss of that name, or the object itself.

        Raises
        ------
        ValueError
            An unknown name.
        """
        if isinstance(class_name, BaseLearningLoss):
            return class_name
        names: dict[str, type[BaseLearningLoss]] = {
            "square_error": SquareLearningLoss,
            "square": SquareLearningLoss,
            "squared_error": SquareLearningLoss,
            "SquareLearningLoss": SquareLearningLoss,
            "absolute_error": AbsoluteLearningLoss,
            "absolute": AbsoluteLearningLoss,
            "AbsoluteLearningLoss": AbsoluteLearningLoss,
            "elastic_error": ElasticLearningLoss,
            "elastic": ElasticLearningLoss,
            "ElasticLearningLoss": ElasticLearningLoss,
            "log": NegLogLearningLoss,
            "neglog": NegLogLearningLoss,
            "NegLogLearningLoss": NegLogLearningLoss,
        }
        if class_name not in names:
            raise ValueError(
                f"Unexpected class name {class_name!r}. It should be one of {sorted(names)}."
            )
        return names[class_name](**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_run")}


class SquareLearningLoss(BaseLearningLoss):
    """(f(x) - y)^2."""

    _function = "grad_loss_square_error"

    def __init__(self) -> None:
        pass

    def description(self) -> og.losses.Loss:
        """Return the engine's loss, summed over the rows."""
        return og.losses.SquaredError(reduction="sum")


class AbsoluteLearningLoss(BaseLearningLoss):
    """abs(f(x) - y)."""

    _function = "grad_loss_absolute_error"

    def __init__(self) -> None:
        pass

    def description(self) -> og.losses.Loss:
        """Return the engine's loss, summed over the rows."""
        return og.losses.AbsoluteError(reduction="sum")


class ElasticLearningLoss(BaseLearningLoss):
    """l1_weight abs(f(x) - y) + l2_weight (f(x) - y)^2.

    Parameters
    ----------
    l1_weight, l2_weight : float, default=0.5
    """

    _function = "grad_loss_elastic_error"

    def __init__(self, l1_weight: float = 0.5, l2_weight: float = 0.5) -> None:
        self.l1_weight = l1_weight
        self.l2_weight = l2_weight

    def _options(self) -> dict[str, Any]:
        return {"l1_weight": self.l1_weight, "l2_weight": self.l2_weight}

    def description(self) -> og.losses.Loss:
        """Return the engine's loss, summed over the rows."""
        return og.losses.Elastic(
            l1_weight=self.l1_weight, l2_weight=self.l2_weight, reduction="sum"
        )


class NegLogLearningLoss(BaseLearningLoss):
    """The log loss of a binary classifier, -y log p - (1 - y) log(1 - p) with p = sigmoid(f(x)).

    Parameters
    ----------
    eps : float, default=1e-5
        `loss_gradient` clips p to [eps, 1 - eps]; the engine computes from the scores without it.
    probability_function : {"sigmoid"}, default="sigmoid"
    """

    is_classifier = True
    _function = "grad_sigmoid_neg_log_loss_error"

    def __init__(self, eps: float = 1e-5, probability_function: str = "sigmoid") -> None:
        if probability_function != "sigmoid":
            raise ValueError(
                f"Unexpected probability_function={probability_function!r}, expected 'sigmoid'."
            )
        self.eps = eps
        self.probability_function = probability_function

    def _options(self) -> dict[str, Any]:
        return {"eps": self.eps}

    def description(self) -> og.losses.Loss:
        """Return the engine's loss, summed over the rows."""
        return og.losses.BinaryCrossEntropy(reduction="sum")
