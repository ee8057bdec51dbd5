"""Models for another task: a new head, features, normalizations put back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, patterns, real_number
from onnxgrad.base.heads import HeadLabels, core_replace_head
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.data.arrays import ArrayLike, to_feeds

if TYPE_CHECKING:
    import onnx

__all__ = ["features", "replace_head", "unfold_batch_norm"]


@checked_names
def replace_head(
    model: ModelLike,
    classes: int,
    *,
    at: str | Iterable[str] = "auto",
    init: str = "auto",
    labels: HeadLabels | None = None,
    seed: int = 0,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return a model with a new last layer, for other classes.

    The head is the layer whose results are the outputs up to biases, probabilities, labels, and
    what moves or averages them. Softmax, ArgMax, ZipMap, lists of labels and shapes follow the new
    number of classes. All other weights stay as they are in the file.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    classes : int
        Number of classes, or of columns of a regression.
    at : str or list of str, default="auto"
        Which head, if there are several: the name of its layer, weight or node, of a value behind
        it or of an output; ``"all"`` replaces all.
    init : str, default="auto"
        How weights and bias are drawn; see `initialize`.
    labels : list of int or str, default=None
        Labels of the classes, for a model that returns labels; None means 0, 1, ...
    seed : int, default=0
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The model has no head, or several and `at` chooses none. The message names them.

    Notes
    -----
    Probabilities of a single score (a Sigmoid) become a Softmax, unless there are two classes again
    and the file has a probability for both.

    Examples
    --------
    >>> import onnxgrad as og
    >>> wide = og.replace_head(linear_model, classes=7)
    >>> og.InferenceSession(wide).get_outputs()[0].shape[-1]
    7
    """
    kind = kind_if(like, model, path)
    core = core_replace_head(
        to_core_model(model), classes, at=at, init=init, labels=labels, seed=seed
    )
    return deliver(core, path, kind)


@checked_names
def features(
    model: ModelLike,
    at: str | Iterable[str] = "head",
    *,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return a model whose outputs are inner values, without what they do not need.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    at : str or list of str, default="head"
        Names of values or nodes of the main graph; ``"head"`` is what the head reads (see
        `replace_head`).
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Raises
    ------
    ModelError
        There is no such value; the message suggests the nearest name.

    Examples
    --------
    >>> import onnxgrad as og
    >>> [x.name for x in og.InferenceSession(og.features(linear_model)).get_outputs()]
    ['X']
    """
    kind = kind_if(like, model, path)
    return deliver(_core.features(to_core_model(model), patterns("at", at)), path, kind)


@checked_names
def unfold_batch_norm(
    model: ModelLike,
    rows: Mapping[str, ArrayLike] | None = None,
    *,
    epsilon: float = 1e-5,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return a model with a BatchNormalization behind each convolution that lacks one.

    Exporters fold them into the convolutions, which get biases. The outputs stay the same up to
    rounding; trained on, the normalizations use the statistics of each batch again.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    rows : dict of str to array, default=None
        Some hundred rows for all inputs, which the statistics are computed from; None means mean 0
        and variance 1.
    epsilon : float, default=1e-5
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Raises
    ------
    ModelError
        No convolution has a bias and no normalization.
    """
    kind = kind_if(like, model, path)
    feeds = {} if rows is None else to_feeds(rows)
    core = _core.unfold_batch_norm(to_core_model(model), feeds, real_number("epsilon", epsilon))
    return deliver(core, path, kind)
