"""Several adapters on one model, chosen for each run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import path_text, shown
from onnxgrad.data.arrays import from_native, to_feeds
from onnxgrad.errors import ModelError, OptionError

__all__ = ["with_switched_adapters"]


def with_switched_adapters(
    model: _core.Model, folders: Mapping[str, str | os.PathLike[str]]
) -> tuple[_core.Model, dict[str, dict[str, Any]]]:
    """Return the model with the weights of an adapter as inputs, and these for each adapter.

    By default the inputs have the values of an adapter that changes nothing.

    Raises
    ------
    ModelError
        The adapters adapt different layers, or are of different kinds.
    """
    if not isinstance(folders, Mapping) or not folders:
        raise OptionError(
            what=f"adapters: {shown(folders)}, expected a dictionary of folders",
            value="adapters",
            hint="Give the folders by names: adapters={'mine': 'folder'}.",
        )
    loaded = {
        name: _core.load_adapter(model, path_text("adapters", folder), "default")
        for name, folder in folders.items()
    }
    infos = {name: _core.adapters(one)[0] for name, one in loaded.items()}
    first = next(iter(infos))
    one = infos[first]
    for name, info in infos.items():
        if _layers(info) != _layers(one) or info.full:
            raise ModelError(
                what=f"the adapters '{first}' and '{name}' do not adapt the same layers in the "
                "same way"
                if not info.full
                else f"the adapter '{name}' has whole weights of the model",
                value=name,
                hint="Give it to a session of its own.",
            )
    blank = _core.add_adapter(
        model,
        one.kind,
        one.rank,
        one.scale * one.rank,
        False,
        0.0,
        [layer.module for layer in one.layers],
        [],
        [],
        "default",
        0,
    )
    feeds = {
        name: dict(to_feeds(_tensors(loaded[name], info, one.scale)))
        for name, info in infos.items()
    }
    return _core.adapters_as_inputs(blank), feeds


def _layers(info: _core.AdapterInfo) -> tuple[str, list[str]]:
    return info.kind, sorted(layer.weight for layer in info.layers)


def _tensors(model: _core.Model, info: _core.AdapterInfo, scale: float) -> dict[str, Any]:
    """Return the tensors of an adapter, all of one rank, for a graph with this scale."""
    rank = max(layer.rank for layer in info.layers)
    tensors = {}
    for layer in info.layers:
        for i, name in enumerate(layer.tensors):
            value = from_native(model.weight(name))
            if i == 1 and layer.scale != scale:
                value = value * value.dtype.type(layer.scale / scale)
            if i < 2 and layer.rank < rank:  # A or B: (IA)³'s factors have one rank
                axis = i if value.ndim > 2 else 1 - i
                width = [(0, rank - layer.rank if k == axis else 0) for k in range(value.ndim)]
                value = np.pad(value, width)
            tensors[name] = value
    return tensors
