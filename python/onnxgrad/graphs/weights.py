"""Models with new weights: random or given ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, path_text, patterns, positive_int, unknown_name
from onnxgrad.base.models import ModelLike, deliver, to_core_model
from onnxgrad.data.arrays import ArrayLike, to_feeds

if TYPE_CHECKING:
    import onnx

__all__ = ["SCHEMES", "core_initialize", "initialize", "set_weights"]

SCHEMES = (
    "auto",
    "glorot_uniform",
    "glorot_normal",
    "he_uniform",
    "he_normal",
    "lecun_uniform",
    "lecun_normal",
    "uniform",
    "normal",
    "zeros",
)


@checked_names
def initialize(
    model: ModelLike,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Return a model with new random weights; everything else is unchanged, byte for byte.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    scheme : str, default="auto"
        ``"auto"`` initializes dense layers as scikit-learn's multi-layer perceptrons do, and others
        as usual for their kind; or ``"glorot_uniform"``, ``"glorot_normal"``, ``"he_uniform"``,
        ``"he_normal"``, ``"lecun_uniform"``, ``"lecun_normal"``, ``"uniform"``, ``"normal"``,
        ``"zeros"``.
    seed : int, default=0
        The same seed draws the same weights on every machine.
    weights : str or list of str, default=None
        Names or glob patterns of the weights to draw; None means the trainable ones.
    untie : bool, default=True
        Whether to separate weights that are one in the file by accident; see `TrainingSession`.
    path : str or path, default=None
        Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An invalid model, or a pattern that matches nothing.

    Examples
    --------
    >>> import onnxgrad as og
    >>> one, two = og.initialize(linear_model, seed=1), og.initialize(linear_model, seed=2)
    >>> one == og.initialize(linear_model, seed=1), one == two
    (True, False)
    """
    core = core_initialize(to_core_model(model), scheme, seed, weights=weights, untie=untie)
    return deliver(core, path)


def core_initialize(
    model: _core.Model,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
) -> _core.Model:
    """Implement `initialize` for models of the extension."""
    if scheme not in SCHEMES:
        raise unknown_name("scheme", scheme, SCHEMES)
    return _core.initialize(
        model, scheme, positive_int("seed", seed, 0), patterns("weights", weights), bool(untie)
    )


@checked_names
def set_weights(
    model: ModelLike,
    weights: Mapping[str, ArrayLike] | str | os.PathLike[str],
    *,
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Return a model with these weights; everything else is unchanged, byte for byte.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    weights : dict of str to array, or path
        Arrays with the dtype and shape of their weights; or the path of a checkpoint or any other
        safetensors file. Names may be those of weights that training separates (``b_1``).
    path : str or path, default=None
        Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An unknown weight, or another dtype or shape.
    CheckpointError
        The file is damaged or not a safetensors file.
    """
    if isinstance(weights, (str, os.PathLike)):
        named = _core.load_weights(path_text("weights", weights))
    else:
        named = to_feeds(weights)
    return deliver(_core.set_weights(to_core_model(model), named), path)
