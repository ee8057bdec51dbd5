"""Models with adapters: added, saved, loaded, merged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxgrad import _core
from onnxgrad.adapters.described import AdapterLike, adapter_name, as_adapter
from onnxgrad.base.checks import checked_names, choice, flag, path_text
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.data.arrays import ArrayLike, from_native, to_feeds

if TYPE_CHECKING:
    import numpy as np
    import onnx
from onnxgrad.errors import ModelError

__all__ = [
    "AdapterInfo",
    "AdapterLayer",
    "add",
    "as_inputs",
    "load",
    "loaded_state",
    "merge",
    "of",
    "save",
    "save_core",
    "set_state",
    "state",
]


class AdapterLayer(NamedTuple):
    """An adapted layer.

    Attributes
    ----------
    module : str
        Name of the layer: that of its weight without ``.weight``.
    weight : str
        Name of the weight in the model.
    role : str
        What it is in the graph: ``"query"``, ``"mlp_up"``, ..., see `LoRA`.
    tensors : list of str
        Names of the adapter's weights: A and B; A, B and the magnitude; or factors.
    """

    module: str
    weight: str
    role: str
    tensors: list[str]


class AdapterInfo(NamedTuple):
    """An adapter of a model.

    Attributes
    ----------
    name : str
    kind : {"lora", "dora", "ia3", "bitfit", "norms"}
    rank : int
    scale : float
        Factor of x A B.
    dropout : float
    layers : list of AdapterLayer
    full : list of str
        Weights of the model that are trained beside the adapter.
    """

    name: str
    kind: str
    rank: int
    scale: float
    dropout: float
    layers: list[AdapterLayer]
    full: list[str]


def add(
    model: ModelLike,
    adapter: AdapterLike = "lora",
    *,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """Return a model with an adapter; until it is trained, it computes what `model` computes.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    adapter : str, Adapter or dict, default="lora"
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.
    **options
        Options of the adapter, as in ``add(model, "dora", rank=4)``.

    Returns
    -------
    onnx.ModelProto
        What trains it trains the adapter alone; see `of`.

    Raises
    ------
    ModelError
        A target matches no layer, or a layer that cannot be adapted.

    Examples
    --------
    >>> import onnxgrad as og
    >>> adapted = og.adapters.add(linear_model, rank=1)
    >>> [layer.module for layer in og.adapters.of(adapted)[0].layers]
    ['coef']
    """
    kind = kind_if(like, model, path)
    described = as_adapter(adapter, **options)
    return deliver(described._add_to(to_core_model(model), 0), path, kind)


def of(model: ModelLike) -> list[AdapterInfo]:
    """Return the adapters of a model.

    Raises
    ------
    ModelError
        The model's record of its adapters is damaged.
    """
    return [
        AdapterInfo(
            one.name,
            one.kind,
            one.rank,
            one.scale,
            one.dropout,
            [AdapterLayer(x.module, x.weight, x.role, x.tensors) for x in one.layers],
            one.full,
        )
        for one in _core.adapters(to_core_model(model))
    ]


def merge(
    model: ModelLike,
    *,
    dequantize: bool = False,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return the model without adapters whose weights do what the adapters did.

    Its outputs are those of the adapted model up to rounding.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    dequantize : bool, default=False
        Whether packed weights become float ones, as `dequantize_weights` makes them.
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Returns
    -------
    onnx.ModelProto
        The graph that the first adapter was added to.

    Raises
    ------
    ModelError
        There are no adapters, or a weight cannot take them: it is quantized, or other layers read
        it too.
    """
    kind = kind_if(like, model, path)
    native = to_core_model(model)
    if flag("dequantize", dequantize):
        native = _core.dequantize_weights(native)
    return deliver(_core.merge_adapters(native), path, kind)


def as_inputs(
    model: ModelLike, *, path: str | os.PathLike[str] | None = None, like: bool = False
) -> onnx.ModelProto:
    """Return the model with the weights of its adapters as inputs, after its own.

    Their defaults are the values that they have. ONNX Runtime binds the tensors of an
    ``.onnx_adapter`` file (see `save`) to inputs of these names.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.
    """
    kind = kind_if(like, model, path)
    return deliver(_core.adapters_as_inputs(to_core_model(model)), path, kind)


@checked_names
def state(model: ModelLike, name: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of an adapter under PEFT's names and in its shapes.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    name : str, default=""
        Empty means the only adapter.
    """
    native = _core.adapter_state(to_core_model(model), adapter_name(name))
    return {key: from_native(value) for key, value in native.items()}


@checked_names
def set_state(
    model: ModelLike, tensors: Mapping[str, ArrayLike], name: str = "", *, like: bool = False
) -> onnx.ModelProto:
    """Return the model with these tensors of `state` in its adapter.

    Raises
    ------
    ModelError
        A missing or unknown tensor, or another shape.
    """
    kind = kind_if(like, model)
    native = _core.set_adapter_state(to_core_model(model), to_feeds(tensors), adapter_name(name))
    return deliver(native, kind=kind)


@checked_names
def save(
    model: ModelLike, folder: str | os.PathLike[str], *, name: str = "", kind: str = "peft"
) -> None:
    """Write an adapter to a folder.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    folder : path
        Made if it is not there.
    name : str, default=""
        Which adapter; empty means the only one.
    kind : {"peft", "onnx_adapter"}, default="peft"
        ``"peft"``: ``adapter_config.json`` and ``adapter_model.safetensors``, which
        ``PeftModel.from_pretrained`` reads. ``"onnx_adapter"``: ``<name>.onnx_adapter`` and
        ``model.onnx``, the model with the adapter's weights as inputs (see `as_inputs`), for
        ONNX Runtime and its generate() extension.

    Raises
    ------
    ModelError
        There is no such adapter.
    CheckpointError
        A file cannot be written.
    """
    save_core(to_core_model(model), folder, adapter_name(name), kind)


def save_core(
    model: _core.Model, folder: str | os.PathLike[str], name: str = "", kind: str = "peft"
) -> None:
    """Implement `save` for models of the extension."""
    choice("kind", kind, ["peft", "onnx_adapter"])
    target, name = path_text("folder", folder), adapter_name(name)
    if kind == "peft":
        _core.save_adapter(model, target, name)
        return
    from onnxgrad.adapters.onnx_adapter import save_onnx_adapter

    save_onnx_adapter(model, target, name)


@checked_names
def load(
    model: ModelLike,
    folder: str | os.PathLike[str],
    *,
    name: str = "default",
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
) -> onnx.ModelProto:
    """Return the model with the adapter that PEFT or `save` wrote for the same network.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        Exported from the network that the adapter was made for, or with an adapter `name` of the
        same layers, which gets the tensors.
    folder : path
        With ``adapter_config.json`` and ``adapter_model.safetensors``.
    name : str, default="default"
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.

    Raises
    ------
    ModelError
        The model has no layer of that name, or of another size.
    CheckpointError
        A damaged file, or an adapter that is neither LoRA, DoRA nor (IA)³.
    """
    kind = kind_if(like, model, path)
    native = _core.load_adapter(
        to_core_model(model), path_text("folder", folder), adapter_name(name)
    )
    return deliver(native, path, kind)


def loaded_state(
    model: _core.Model,
    folder: str | os.PathLike[str],
    name: str,
    states: Mapping[str, Any],
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the states of a session on `model` that an adapter of a folder has."""
    known = {one.name: one for one in _core.adapters(model)}
    if not known:
        raise ModelError(
            what="the model has no adapter that could be loaded",
            hint="Give the trainer lora= or adapter= like that of the folder, or train "
            "adapters.load(model, folder).",
        )
    if adapter_name(name) == "" and len(known) == 1:
        (name,) = known
    choice("name", name, list(known))
    loaded = _core.load_adapter(model, path_text("folder", folder), name)
    one = known[name]
    names = [*(tensor for layer in one.layers for tensor in layer.tensors), *one.full]
    return {
        key: from_native(loaded.weight(key)).astype(states[key].dtype)
        for key in names
        if key in states
    }
