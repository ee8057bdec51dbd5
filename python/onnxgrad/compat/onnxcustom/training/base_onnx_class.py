"""Base class of this package's classes: saving of graphs, and parameters."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

import onnx

import onnxgrad as og
from onnxgrad.compat.onnxruntime.values import OrtValue, array_of
from onnxgrad.files import save_model

__all__ = ["BaseOnnxClass", "GraphFolder", "GraphRunner", "check_graph_folder", "save_graph"]

_MAX_SHOWN = 50


GraphFolder: TypeAlias = "str | os.PathLike[str] | type[bytes]"
"""Folder to write graphs to; the type `bytes` returns them instead."""


def check_graph_folder(folder: GraphFolder) -> None:
    """Refuse a folder that does not exist.

    Raises
    ------
    FileNotFoundError
    """
    if folder is not bytes and not os.path.isdir(folder):  # type: ignore[arg-type] # noqa: PTH112
        raise FileNotFoundError(f"Folder {os.fspath(folder)!r} does not exist.")  # type: ignore[arg-type]


def save_graph(model: onnx.ModelProto, folder: GraphFolder, file: str) -> str | bytes:
    """Write a graph and return its path, or return it as bytes."""
    if folder is bytes:
        return bytes(model.SerializeToString())
    path = os.path.join(folder, file)  # type: ignore[arg-type] # noqa: PTH118 (returned as text)
    save_model(model, path)
    return path


class BaseOnnxClass:
    """An object whose attributes may be ONNX graphs or other such objects."""

    def save_onnx_graph(
        self, folder: GraphFolder, prefix: str | None = None, suffix: str | None = None
    ) -> dict[str, Any]:
        """Write all graphs to files.

        Parameters
        ----------
        folder : path or the type bytes
            Must exist. With ``bytes``, nothing is written and the dictionary has the graphs.
        prefix, suffix : str, default=None
            Prefix and suffix of file names; the default prefix is the abbreviated class name.

        Returns
        -------
        dict
            Paths by name of the attribute, with a dictionary for each attribute that is an object
            with graphs.
        """
        check_graph_folder(folder)
        start = f"{self._short_name()}." if prefix is None else prefix
        end = suffix or ""
        saved: dict[str, Any] = {}
        for name, value in self._graphs().items():
            if isinstance(value, onnx.ModelProto):
                saved[name] = save_graph(value, folder, f"{start}{name}{end}.onnx")
            else:
                short = f"{value._short_name()}." if prefix is None else prefix
                saved[name] = value.save_onnx_graph(folder, f"{short}{name.rstrip('_')}.", suffix)
        return saved

    @classmethod
    def _short_name(cls) -> str:
        name = cls.__name__
        for long, short in (
            ("OrtGradient", "Grad"),
            ("ForwardBackward", "FB"),
            ("Learning", "L"),
        ):
            name = name.replace(long, short)
        return name

    def _graphs(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, (onnx.ModelProto, BaseOnnxClass))
        }

    @classmethod
    def _param_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        """Return the constructor's parameters; with `deep`, also those of the parameters."""
        params = {name: getattr(self, name) for name in self._param_names()}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, BaseOnnxClass):
                    inner = value.get_params(deep)
                    params.update({f"{name}__{key}": item for key, item in inner.items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Set constructor parameters; ``name__inner`` is a parameter of the parameter `name`.

        Raises
        ------
        ValueError
            An unknown parameter.
        """
        names = self._param_names()
        own = {name: value for name, value in params.items() if "__" not in name}
        nested: dict[str, dict[str, Any]] = {}
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if outer not in names:
                raise ValueError(f"Unexpected parameter {name!r}, expected one of {names}.")
            if inner:
                nested.setdefault(outer, {})[inner] = value
        if own:
            self.__init__(**{**self.get_params(), **own})  # type: ignore[misc]
        for outer, inner_params in nested.items():
            getattr(self, outer).set_params(**inner_params)
        return self

    def __repr__(self) -> str:
        shown = []
        for name in self._param_names():
            value = getattr(self, name)
            text = repr(value)
            if isinstance(value, onnx.ModelProto):
                text = repr("ir_version...")  # protobuf's own repr differs between its versions
            elif not isinstance(value, BaseOnnxClass) and len(text) > _MAX_SHOWN:
                end = "...]" if isinstance(value, list) else "..."
                text = repr(text[:10] + end)
            shown.append(f"{name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


class GraphRunner:
    """Runs a small graph on the engine, with arrays or OrtValues of either library."""

    def __init__(self, graph: onnx.ModelProto) -> None:
        self.session = og.InferenceSession(graph, threads=1)

    def __call__(self, feeds: Mapping[str, Any]) -> list[OrtValue]:
        """Return the outputs."""
        arrays = {name: array_of(value) for name, value in feeds.items() if value is not None}
        return [OrtValue(array) for array in self.session.run(None, arrays)]
