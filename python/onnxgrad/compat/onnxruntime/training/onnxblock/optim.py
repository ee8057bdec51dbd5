"""Optimizers as blocks: models with the interface of onnxruntime-training's optimizer files.

Inputs are ``learning_rate``, ``step`` and the sequences ``params``, ``gradients`` and moments; the
nodes are of com.microsoft. `onnxgrad.compat.onnxruntime.training.api.Optimizer` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from onnxgrad.compat.onnxruntime.training.onnxblock.blocks import Block
from onnxgrad.compat.onnxruntime.training.onnxblock.onnxblock import ForwardBlock

__all__ = ["SGD", "AdamW", "AdamWOptimizer", "ClipGradNorm", "SGDOptimizer"]

_DOMAIN = "com.microsoft"
_Parameters = tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]


class ClipGradNorm(Block):
    """g min(1, max_norm / (|g| + 1e-6)), with the norm |g| over all gradients."""

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._max_norm = max_norm

    def build(self, gradients_name: str) -> str:
        """Add the node for a sequence of gradients and return the name of the clipped ones."""
        output = self._node(
            "InplaceClipGradNorm", [gradients_name], domain=_DOMAIN, max_norm=self._max_norm
        )
        self.base.graph.value_info.append(
            onnx.helper.make_tensor_sequence_value_info(output, onnx.TensorProto.FLOAT, None)
        )
        return output


class SGDOptimizer(Block):
    """The node for w - lr g."""

    def build(self, learning_rate_name: str, gradients_name: str, params_name: str) -> str:
        """Add the node and return the name of its output."""
        inputs = [learning_rate_name, gradients_name, params_name]
        return self._node("SGDOptimizerV2", inputs, domain=_DOMAIN)


class AdamWOptimizer(Block):
    """The node for AdamW in the form of Hugging Face's transformers.

    Step t is s = lr sqrt(1 - b2^t) / (1 - b1^t), or lr without `bias_correction`;
    w -= s m / (sqrt(v) + eps); w -= lr weight_decay w.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
    ) -> None:
        super().__init__()
        self._attributes = {
            "alpha": betas[0],
            "beta": betas[1],
            "epsilon": eps,
            "weight_decay": weight_decay,
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": 1,
        }

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        """Add the node and return the name of its output."""
        inputs = [
            learning_rate_name,
            step_name,
            parameter_sequence_name,
            gradient_sequence_name,
            first_order_moment_sequence_name,
            second_order_moment_sequence_name,
        ]
        return self._node("AdamWOptimizer", inputs, domain=_DOMAIN, **self._attributes)


class _Optimizer(ForwardBlock):
    """The inputs, the clipping and the output that all optimizers have."""

    _moments: tuple[str, ...] = ("first_order_moments",)

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    def build(self, parameters: _Parameters) -> str:
        """Add the optimizer for ``TrainingBlock.parameters()`` and return the name of its output.

        Raises
        ------
        RuntimeError
            No parameter is trained.
        """
        trained, _ = parameters
        if not trained:
            raise RuntimeError("No parameter is trained: name some with requires_grad.")
        make = onnx.helper.make_tensor_value_info
        graph = self.base.graph
        graph.input.append(make("learning_rate", onnx.TensorProto.FLOAT, [1]))
        graph.input.append(make("step", onnx.TensorProto.INT64, [1]))
        for name in ("params", "gradients", *self._moments):
            graph.input.append(
                onnx.helper.make_tensor_sequence_value_info(name, trained[0].data_type, None)
            )
        gradients = "gradients" if self._clip_grad is None else self._clip_grad("gradients")
        output = self._update(gradients)
        graph.output.append(make(output, onnx.TensorProto.BOOL, [1]))
        return output

    def _update(self, gradients: str) -> str:
        raise NotImplementedError


class AdamW(_Optimizer):
    """A model with an `AdamWOptimizer`, and `clip_grad` (a `ClipGradNorm`) before it."""

    _moments = ("first_order_moments", "second_order_moments")

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
        clip_grad: Block | None = None,
    ) -> None:
        super().__init__(clip_grad)
        self._node_block = AdamWOptimizer(bias_correction, betas, eps, weight_decay)

    def _update(self, gradients: str) -> str:
        names = ("learning_rate", "step", "params", gradients, *self._moments)
        return str(self._node_block(*names))


class SGD(_Optimizer):
    """A model with an `SGDOptimizer`, and `clip_grad` (a `ClipGradNorm`) before it."""

    def __init__(self, clip_grad: Block | None = None) -> None:
        super().__init__(clip_grad)
        self._node_block = SGDOptimizer()

    def _update(self, gradients: str) -> str:
        return str(self._node_block("learning_rate", gradients, "params"))
