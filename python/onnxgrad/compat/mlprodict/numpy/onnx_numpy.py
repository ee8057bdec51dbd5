"""Functions in NumPy-like code with annotated shapes, as ONNX models.

The function is called once with traced values. A call with arrays runs the resulting model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.numpy_helper

import onnxgrad as og
from onnxgrad.compat.graphs import tools

__all__ = ["NDArray", "OnnxFunction", "OnnxVar", "apply", "onnxnumpy", "onnxnumpy_default"]


class Annotation(NamedTuple):
    """Shape and type of a value."""

    shape: tuple[int | None, ...]
    dtype: Any


class NDArray:
    """``NDArray[(None, 2), numpy.float32]`` annotates an array [N, 2]."""

    def __class_getitem__(cls, item: Any) -> Annotation:
        shape, dtype = item
        dims = (shape,) if shape is None or isinstance(shape, int) else tuple(shape)
        return Annotation(dims, dtype)


def import_ndonnx() -> Any:
    """Return the module ndonnx."""
    try:
        import ndonnx
    except ImportError as error:
        raise ImportError(
            "onnxnumpy traces with ndonnx, which is not installed: pip install ndonnx"
        ) from error
    return ndonnx


class OnnxVar:
    """A traced value: an ndonnx array with methods like NumPy's arrays."""

    __array_ufunc__ = None  # lets this class handle operators with NumPy arrays

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> Any:
        """Static shape, with None for unknown dimensions."""
        return self.array.shape

    @property
    def T(self) -> OnnxVar:  # noqa: N802 (NumPy's name)
        """Transposed."""
        return OnnxVar(self.array.T)

    def __getitem__(self, index: Any) -> OnnxVar:
        return OnnxVar(self.array[index])

    def reshape(self, *shape: Any) -> OnnxVar:
        """Return the same elements in another shape."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return apply(import_ndonnx().reshape, self, tuple(wanted))

    def astype(self, dtype: Any) -> OnnxVar:
        """Return the elements in another type."""
        ndx = import_ndonnx()
        return apply(ndx.astype, self, getattr(ndx, np.dtype(dtype).name))

    def sum(self, axis: Any = None, keepdims: bool = False) -> OnnxVar:
        """Return sums."""
        return apply(import_ndonnx().sum, self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> OnnxVar:
        """Return means."""
        return apply(import_ndonnx().mean, self, axis=axis, keepdims=keepdims)


def apply(function: Callable[..., Any], *arguments: Any, **options: Any) -> OnnxVar:
    """Call an ndonnx function with traced values and arrays."""
    return OnnxVar(function(*(_plain(value) for value in arguments), **options))


def _plain(value: Any) -> Any:
    if isinstance(value, OnnxVar):
        return value.array
    return import_ndonnx().asarray(value) if isinstance(value, np.ndarray) else value


def _operator(name: str) -> Callable[..., OnnxVar]:
    def method(self: OnnxVar, *others: Any) -> OnnxVar:
        return OnnxVar(getattr(self.array, name)(*(_plain(other) for other in others)))

    return method


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul", "mod"):
    setattr(OnnxVar, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(OnnxVar, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("neg", "abs", "lt", "le", "gt", "ge"):
    setattr(OnnxVar, f"__{_name}__", _operator(f"__{_name}__"))


class OnnxFunction:
    """A function as a model, which calls run.

    Parameters
    ----------
    function : callable
        A function with annotated arguments and result.
    runtime : str, default="onnxruntime"
        Accepted for compatibility: calls run on onnxgrad's engine.
    """

    def __init__(self, function: Callable[..., Any], runtime: str = "onnxruntime") -> None:
        self.function = function
        self.runtime = runtime
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._model: onnx.ModelProto | None = None
        self._session: og.InferenceSession | None = None

    def to_onnx(self) -> onnx.ModelProto:
        """Return the model: inputs by name, output ``y``, constants ``init``, ``init_1``, ..."""
        if self._model is None:
            self._model = self._trace()
        copy = onnx.ModelProto()
        copy.CopyFrom(self._model)
        return copy

    def _trace(self) -> onnx.ModelProto:
        ndx = import_ndonnx()
        annotations = inspect.get_annotations(self.function, eval_str=True)
        result = annotations.pop("return", None)
        arguments = {}
        for name, annotation in annotations.items():
            dims = tuple("N" if dim is None else dim for dim in annotation.shape)
            kind = getattr(ndx, np.dtype(annotation.dtype).name)
            arguments[name] = ndx.argument(shape=dims, dtype=kind)
        traced = self.function(**{name: OnnxVar(value) for name, value in arguments.items()})
        model = tools.name_constants(ndx.build(arguments, {"y": traced.array}))
        if isinstance(result, Annotation):
            element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(result.dtype))
            dims = tuple("N" if dim is None else dim for dim in result.shape)
            info = onnx.helper.make_tensor_value_info("y", element, dims)
            model.graph.output[0].CopyFrom(info)
        return model

    def __call__(self, *arrays: Any) -> np.ndarray[Any, Any]:
        """Return the result for arrays."""
        if self._session is None:
            self._session = og.InferenceSession(self.to_onnx())
        names = [value.name for value in self._session.get_inputs()]
        found = self._session.run(None, dict(zip(names, arrays, strict=True)))[0]
        return np.asarray(found)


def onnxnumpy_default(function: Callable[..., Any]) -> OnnxFunction:
    """Convert a function to a model; a decorator."""
    return OnnxFunction(function)


def onnxnumpy(runtime: str = "onnxruntime") -> Callable[[Callable[..., Any]], OnnxFunction]:
    """Convert a function to a model; a decorator with options."""
    return lambda function: OnnxFunction(function, runtime)
