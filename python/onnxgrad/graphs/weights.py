"""Models with other weights: new random ones, or given ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, path_text, patterns, positive_int, unknown_name
from onnxgrad.base.models import ModelLike, to_core_model, to_proto
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
) -> onnx.ModelProto:
    """Return a model with new random weights; everything else stays byte for byte as it was.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    scheme : str, default="auto"
        ``"auto"`` draws as scikit-learn's multi-layer perceptrons do for dense layers, and what is
        usual for others; or ``"glorot_uniform"``, ``"glorot_normal"``, ``"he_uniform"``,
        ``"he_normal"``, ``"lecun_uniform"``, ``"lecun_normal"``, ``"uniform"``, ``"normal"``,
        ``"zeros"``.
    seed : int, default=0
        The same seed draws the same weights on every machine.
    weights : str or list of str, default=None
        Names or glob patterns of the weights to draw; None is the trainable ones.
    untie : bool, default=True
        Whether weights that are one in the file by accident become several, each with numbers of
        its own; see `TrainingSession`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        No valid model, or a pattern that matches nothing.

    Examples
    --------
    >>> import onnxgrad as og
    >>> one, two = og.initialize(linear_model, seed=1), og.initialize(linear_model, seed=2)
    >>> one == og.initialize(linear_model, seed=1), one == two
    (True, False)
    """
    core = core_initialize(to_core_model(model), scheme, seed, weights=weights, untie=untie)
    return to_proto(core)


def core_initialize(
    model: _core.Model,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
) -> _core.Model:
    """Do what `initialize` does, on the extension's models."""
    if scheme not in SCHEMES:
        raise unknown_name("scheme", scheme, SCHEMES)
    return _core.initialize(
        model, scheme, positive_int("seed", seed, 0), patterns("weights", weights), bool(untie)
    )


@checked_names
def set_weights(
    model: ModelLike, weights: Mapping[str, ArrayLike] | str | os.PathLike[str]
) -> onnx.ModelProto:
    """Return a model with these weights; everything else stays byte for byte as it was.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    weights : dict of str to array, or path
        Each with the dtype and shape of the weight; or the path of a checkpoint or of any other
        safetensors file. Names may be those of weights that training takes apart (``b_1``).

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An unknown weight, or another dtype or shape.
    CheckpointError
        The file is damaged or no safetensors file.
    """
    if isinstance(weights, (str, os.PathLike)):
        named = _core.load_weights(path_text("weights", weights))
    else:
        named = to_feeds(weights)
    return to_proto(_core.set_weights(to_core_model(model), named))
