"""Models with new weights: random or given ones."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onnxgrad import _core
from onnxgrad.base.checks import (
    checked_names,
    choice,
    flag,
    path_text,
    patterns,
    positive_int,
)
from onnxgrad.base.heads import SCHEMES
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.data.arrays import ArrayLike, from_native, to_feeds

if TYPE_CHECKING:
    import numpy as np
    import onnx

__all__ = [
    "SCHEMES",
    "core_initialize",
    "initialize",
    "load_state_dict",
    "set_weights",
    "state_dict",
]


@checked_names
def initialize(
    model: ModelLike,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
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
    like : bool, default=False
        As for `gradient`.

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
    kind = kind_if(like, model, path)
    core = core_initialize(to_core_model(model), scheme, seed, weights=weights, untie=untie)
    return deliver(core, path, kind)


def core_initialize(
    model: _core.Model,
    scheme: str = "auto",
    seed: int = 0,
    *,
    weights: str | Iterable[str] | None = None,
    untie: bool = True,
) -> _core.Model:
    """Implement `initialize` for models of the extension."""
    choice("scheme", scheme, SCHEMES)
    return _core.initialize(
        model,
        scheme,
        positive_int("seed", seed, 0),
        patterns("weights", weights),
        flag("untie", untie),
    )


@checked_names
def set_weights(
    model: ModelLike,
    weights: Mapping[str, ArrayLike] | str | os.PathLike[str],
    *,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return a model with these weights; everything else is unchanged, byte for byte.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    weights : dict of str to array, or path
        Arrays with the dtype and shape of their weights; or the path of a checkpoint or any other
        safetensors file. Names may be aliases (`WeightInfo.aliases`), and those of weights that
        training separates (``b_1``). A tensor that the file stores twice is set in both places.
    path : str or path, default=None
        Where to write the result as well. Above 2 GiB its large tensors go to a file next to it.
    like : bool, default=False
        As for `gradient`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An unknown weight, or another dtype or shape.
    CheckpointError
        The file is damaged or not a safetensors file.

    See Also
    --------
    load_state_dict : Weights in the form that PyTorch has them.
    """
    kind = kind_if(like, model, path)
    if isinstance(weights, (str, os.PathLike)):
        named = _core.load_weights(path_text("weights", weights))
    else:
        named = to_feeds(weights)
    return deliver(_core.set_weights(to_core_model(model), named), path, kind)


@checked_names
def state_dict(model: ModelLike) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights as the program that the file was exported from has them.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto

    Returns
    -------
    dict of str to numpy.ndarray
        The weights that are trained by default and the running statistics, in the order of the
        file; copies. Names are those of `WeightInfo.aliases` where there are any; the matrix of a
        linear layer is [out, in], and those of an LSTM, GRU or RNN are torch's
        (``cell.weight_ih_l0``, ``cell.bias_hh_l0_reverse``), with its order of gates:
        ``module.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})``.

    Raises
    ------
    ModelError
        An invalid model.

    Examples
    --------
    >>> import onnxgrad as og
    >>> {name: array.shape for name, array in og.state_dict(linear_model).items()}
    {'coef': (2, 1), 'intercept': (1,)}
    """
    state = _core.state_dict(to_core_model(model))
    return {name: from_native(array) for name, array in state.items()}


@checked_names
def load_state_dict(
    model: ModelLike, state: Mapping[str, ArrayLike], *, strict: bool = True, like: bool = False
) -> onnx.ModelProto:
    """Return a model with the weights of a state dictionary, as of ``torch.nn.Module.state_dict``.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    state : dict of str to array
        Tensors in the form of `state_dict`, in any floating dtype, of PyTorch or another library;
        those with ``requires_grad`` are taken as they are. ``num_batches_tracked``, which ONNX
        does not have, is ignored.
    strict : bool, default=True
        Whether names that are missing or unexpected are an error; else they are warned about.
    like : bool, default=False
        As for `gradient`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A tensor of another shape; with `strict`, missing or unexpected names, all of them.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> state = og.state_dict(linear_model)
    >>> state["intercept"] = np.array([0.25])
    >>> loaded = og.load_state_dict(linear_model, state)
    >>> float(og.state_dict(loaded)["intercept"][0])
    0.25
    """
    kind = kind_if(like, model)
    core, missing, unexpected = _core.load_state_dict(
        to_core_model(model), to_feeds(state), flag("strict", strict)
    )
    found = (("missing", missing), ("unexpected", unexpected))
    text = "; ".join(f"{kind} {', '.join(map(repr, names))}" for kind, names in found if names)
    if text:
        warnings.warn(f"load_state_dict: {text}", UserWarning, stacklevel=3)
    return deliver(core, kind=kind)
