"""Contrastive losses over more rows than fit into memory at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxgrad.base.checks import path_text, positive_int
from onnxgrad.base.models import ModelLike, to_core_model
from onnxgrad.data.arrays import ArrayLike
from onnxgrad.errors import DataError, OptionError
from onnxgrad.graphs import add_loss
from onnxgrad.losses import Loss, User, as_loss
from onnxgrad.losses.penalties import as_penalties
from onnxgrad.optimizers import OptimizerLike
from onnxgrad.sessions import TrainingSession
from onnxgrad.sessions.forward_backward import ForwardBackward
from onnxgrad.sessions.weights import weight_kind

__all__ = ["GradCache"]

# The sum over the elements of a row of the embedding times its gradient.
_PRODUCT = """
<ir_version: 8, opset_import: ["" : 18]>
product ({type}[N, D] embedding, {type}[N, D] gradient) => ({type}[N] row)
<int64[1] axis = {{1}}>
{{
  products = Mul(embedding, gradient)
  row = ReduceSum <keepdims = 0> (products, axis)
}}
"""


class GradCache:
    """Trains on a contrastive loss of a large batch, whose encoder runs on one part at a time.

    The negatives of a row are those of the whole batch, as the gradient is; memory is that of a
    part. The embeddings of all parts are computed first, then the gradient of the loss with respect
    to these, then part by part that of the weights: Gao et al., Scaling Deep Contrastive Learning
    Batch Size under Memory Limited Setup, arXiv:2101.06983. That costs one forward pass more.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        An encoder of one output, with ``views=`` in the loss, or a model with a tower for each of
        the loss's `output` and `partners`.
    loss : str or Loss, default="info_nce"
        `losses.InfoNCE`, `losses.Triplet` or `losses.CosineEmbedding`, without a temperature that
        is learnt.
    optimizer : str or Optimizer, default="adam"
    parts : int, default=4
        Parts of the rows of a `step`.
    **options
        Those of `TrainingSession` but `accumulate`, `sam` and `training_mode`, which is False: both
        passes have to compute the same, so dropout is off.

    Attributes
    ----------
    session : TrainingSession
        Has the weights; see `save`.

    Examples
    --------
    >>> import onnxgrad as og
    >>> cache = og.embeddings.GradCache("encoder.onnx", parts=8)           # doctest: +SKIP
    >>> cache.step({"x": questions, "x_2": answers})                       # doctest: +SKIP
    """

    session: TrainingSession

    def __init__(
        self,
        model: ModelLike,
        loss: str | Loss = "info_nce",
        optimizer: OptimizerLike = "adam",
        *,
        parts: int = 4,
        **options: Any,
    ) -> None:
        described: Any = as_loss(loss)
        if not hasattr(described, "partners"):
            raise OptionError(
                what=f"GradCache: {type(described).__name__} is no loss of embeddings",
                value="loss",
                hint="Give InfoNCE, Triplet or CosineEmbedding.",
            )
        if getattr(described, "learn_temperature", False):
            raise OptionError(
                what="GradCache: the temperature cannot be learnt",
                value="learn_temperature",
                hint="Give its value.",
            )
        if options.get("sam") is not None:
            raise OptionError(
                what="GradCache: sam= takes the gradient at other weights, whose embeddings are "
                "not those of the first pass",
                value="sam",
                hint="Leave it out, or train whole batches in a TrainingSession.",
            )
        if options.get("training_mode", False) is not False:
            raise OptionError(
                what="GradCache: in training mode a second pass draws and normalizes otherwise "
                "than the first",
                value="training_mode",
                hint="Leave it out: dropout, that of an adapter too, is off.",
            )
        if "accumulate" in options:
            raise OptionError(
                what="GradCache: accumulate= is the number of parts",
                value="accumulate",
                hint="Give parts=.",
            )
        self._parts = positive_int("parts", parts)
        self._loss = described
        self._views = described.views
        towers = [described.output, *described.partners] if self._views == 1 else [""]
        options = {"training_mode": False, **options}
        rounds = options["accumulate"] = self._parts * self._views
        options["penalty"] = [  # each of the parts adds it
            one.replace(l1=one.l1 / rounds, l2=one.l2 / rounds)
            for one in as_penalties(options.get("penalty"))
        ]
        core = to_core_model(model)
        dtypes = {value.name: value.dtype for value in core.outputs}
        self._outputs = [name or next(iter(dtypes)) for name in towers]
        is_wide = dtypes.get(self._outputs[0]) == "float64"
        self._dtype = np.float64 if is_wide else np.float32
        kind = "double" if is_wide else "float"
        import onnx

        product = User(onnx.parser.parse_model(_PRODUCT.format(type=kind)), reduction="sum")
        losses = dict.fromkeys(self._outputs, product)
        self.session = TrainingSession(model, losses, optimizer, **options)
        self._inputs = [value.name for value in self.session.get_inputs()]
        self._targets = list(self.session.target_names.values())
        self._gradient = self._embedding_loss(kind)

    def _embedding_loss(self, kind: str) -> ForwardBackward:
        """Return the loss as a function of the embeddings, e1, e2, ..."""
        import onnx

        count = self._views if self._views > 1 else len(self._outputs)
        self._names = [f"e{number + 1}" for number in range(count)]
        inputs = ", ".join(f"{kind}[N, D] {name}" for name in self._names)
        outputs = ", ".join(f"{kind}[N, D] {name}_out" for name in self._names)
        nodes = " ".join(f"{name}_out = Mul({name}, one)" for name in self._names)
        head = '<ir_version: 8, opset_import: ["" : 18]>'
        text = f"{head} g ({inputs}) => ({outputs}) <{kind} one = {{1}}> {{ {nodes} }}"
        loss = self._loss.replace(
            views=1, output="e1_out", partners=[f"{name}_out" for name in self._names[1:]]
        )
        with_loss = add_loss(onnx.parser.parse_model(text), loss, keep_outputs=False)
        return ForwardBackward(with_loss, inputs=self._names)

    def step(self, feeds: Mapping[str, ArrayLike]) -> float:
        """Do one update on a batch, and return its loss before it, without penalties.

        Parameters
        ----------
        feeds : dict of str to array
            The inputs of the model, with ``views=`` their siblings ``x_2``, ..., and ``label`` if
            the loss has targets. The number of rows must be a multiple of `parts`.
        """
        arrays = {name: np.asarray(value) for name, value in feeds.items()}
        parts = [part for view in range(self._views) for part in self._view(arrays, view)]
        evaluates_average = self.session.uses_average
        if evaluates_average:
            self.session.uses_average = False
        try:
            found = [self.session.predict(part, self._outputs) for part in parts]
        finally:
            if evaluates_average:
                self.session.uses_average = True
        embeddings = self._joined(found)
        label = {"label": np.asarray(arrays["label"], self._dtype)} if "label" in arrays else {}
        (loss,) = self._gradient.forward({**embeddings, **label})
        gradients = self._gradient.backward([np.ones_like(loss)]).inputs
        for number, part in enumerate(parts):
            targets = self._targets_of(gradients, number)
            self.session.step({**part, **targets})
        return float(loss)

    def save(self, path: str | os.PathLike[str], *, weights: str = "evaluated") -> None:
        """Write the model as it was loaded, with the current weights; see `Trainer.save`."""
        model = self.session._core.trained_model(weight_kind(weights))
        model.save(path_text("path", path))

    def _view(self, arrays: Mapping[str, Any], view: int) -> list[dict[str, Any]]:
        """Return the parts of one input of each row, under the names of the model."""
        suffix = "" if view == 0 else f"_{view + 1}"
        missing = [name + suffix for name in self._inputs if name + suffix not in arrays]
        if missing:
            raise DataError(
                what=f"GradCache: input '{missing[0]}' is missing",
                value=missing[0],
                hint="Give an array for each input of the model and each of the views.",
            )
        rows = len(arrays[self._inputs[0] + suffix])
        if rows == 0 or rows % self._parts:
            raise DataError(
                what=f"GradCache: {rows} rows are not a multiple of parts={self._parts}",
                value=self._inputs[0] + suffix,
                hint="Give another number of rows, or of parts.",
            )
        size = rows // self._parts
        return [
            {name: arrays[name + suffix][start : start + size] for name in self._inputs}
            for start in range(0, rows, size)
        ]

    def _joined(self, found: list[list[Any]]) -> dict[str, Any]:
        """Return the embeddings of all rows, for each view or tower."""
        if self._views == 1:
            columns = [[part[tower] for part in found] for tower in range(len(self._outputs))]
        else:
            columns = [
                [part[0] for part in found[first : first + self._parts]]
                for first in range(0, len(found), self._parts)
            ]
        arrays = [np.concatenate(parts) for parts in columns]
        return dict(zip(self._names, arrays, strict=True))

    def _targets_of(self, gradients: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return the gradients of the embeddings of a part, as targets of the session."""
        view, part = divmod(number, self._parts)
        names = [self._names[view]] if self._views > 1 else self._names
        targets = {}
        for target, name in zip(self._targets, names, strict=True):
            size = len(gradients[name]) // self._parts
            targets[target] = gradients[name][part * size : (part + 1) * size]
        return targets
