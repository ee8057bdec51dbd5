"""Blocks that add one node or initializer each, and their base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from onnxgrad.compat.graphs.building import add_node, fresh_name, typed_value
from onnxgrad.compat.onnxruntime.training.onnxblock.model_accessor import current_model

__all__ = [
    "Abs",
    "Add",
    "Block",
    "Cast",
    "Clip",
    "Constant",
    "Div",
    "InputLike",
    "LabelEncoder",
    "Linear",
    "Log",
    "Mul",
    "Neg",
    "PassThrough",
    "Pow",
    "ReduceAllL2",
    "ReduceMean",
    "ReduceSum",
    "SequenceConstruct",
    "Sigmoid",
    "Softplus",
    "Sub",
]

_LARGEST_CHECKED = 2**31 - 1  # bytes that the checker takes


class Block(ABC):
    """A part of a model: a subclass defines `build`, and is called within `onnxblock.base`.

    Attributes
    ----------
    base : onnx.ModelProto
        The model being built, once the block has been called.
    """

    def __init__(self) -> None:
        self.base: Any = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add nodes to `base` and return the names of the outputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build, and check the model."""
        self.base = current_model()
        output = self.build(*args, **kwargs)
        if self.base.ByteSize() < _LARGEST_CHECKED:
            onnx.checker.check_model(self.base, full_check=True)
        return output

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Return `base` with inferred types and shapes."""
        initializers = list(self.base.graph.initializer)
        if self.base.ByteSize() < _LARGEST_CHECKED:
            return onnx.shape_inference.infer_shapes(self.base)
        bare = onnx.ModelProto()
        bare.CopyFrom(self.base)
        del bare.graph.initializer[:]
        bare = onnx.shape_inference.infer_shapes(bare)
        bare.graph.initializer.extend(initializers)
        return bare

    def _node(
        self, op_type: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node with one output and return its name."""
        return add_node(self.base, op_type, inputs, domain, attributes)

    def _initializer(self, token: str, value: Any) -> str:
        """Add an initializer and return its name; numbers become float32 [1]."""
        if not isinstance(value, np.ndarray):
            value = np.array([value], np.float32)
        name = fresh_name(token)
        self.base.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        return name


class _Operator(Block):
    """A node of a fixed operator, with inputs in the order of the call."""

    def __init__(self, op_type: str, num_inputs: int | None, **attributes: Any) -> None:
        super().__init__()
        self._op_type, self._num_inputs, self._attributes = op_type, num_inputs, attributes

    def build(self, *input_names: str) -> str:
        """Add the node and return the name of its output."""
        if self._num_inputs is not None and len(input_names) != self._num_inputs:
            raise TypeError(f"{self._op_type} takes {self._num_inputs} inputs, not {input_names}.")
        return self._node(self._op_type, input_names, **self._attributes)


class Add(_Operator):
    """a + b."""

    def __init__(self) -> None:
        super().__init__("Add", 2)


class Sub(_Operator):
    """a - b."""

    def __init__(self) -> None:
        super().__init__("Sub", 2)


class Mul(_Operator):
    """a * b."""

    def __init__(self) -> None:
        super().__init__("Mul", 2)


class Div(_Operator):
    """a / b."""

    def __init__(self) -> None:
        super().__init__("Div", 2)


class Sigmoid(_Operator):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__("Sigmoid", 1)


class Softplus(_Operator):
    """log(1 + exp(x))."""

    def __init__(self) -> None:
        super().__init__("Softplus", 1)


class Log(_Operator):
    """The natural logarithm."""

    def __init__(self) -> None:
        super().__init__("Log", 1)


class Neg(_Operator):
    """-x."""

    def __init__(self) -> None:
        super().__init__("Neg", 1)


class Abs(_Operator):
    """|x|."""

    def __init__(self) -> None:
        super().__init__("Abs", 1)


class ReduceMean(_Operator):
    """The mean over all elements."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceMean", 1, keepdims=int(keepdims))


class ReduceSum(_Operator):
    """The sum over all elements."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceSum", 1, keepdims=int(keepdims))


class SequenceConstruct(_Operator):
    """A sequence of tensors."""

    def __init__(self) -> None:
        super().__init__("SequenceConstruct", None)


class Cast(_Operator):
    """A conversion to another type, such as ``onnx.TensorProto.FLOAT``."""

    def __init__(self, to: int) -> None:
        super().__init__("Cast", 1, to=int(to))


class Pow(Block):
    """x to the power of a number."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        """Add the node and return the name of its output."""
        return self._node(
            "Pow", [pow_input_name, self._initializer("pow_exponent", self._exponent)]
        )


class Constant(Block):
    """A number, as an initializer float32 [1]."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        """Add the initializer and return its name."""
        return self._initializer("initializer", self._value)


class ReduceAllL2(Block):
    """sqrt(the sum of squares over all elements of all inputs), float32 [1]."""

    def build(self, *reduce_node_input_names: str) -> str:
        """Add the nodes and return the name of the norm."""
        squares = []
        for name in reduce_node_input_names:
            row = self._node("Reshape", [name, self._initializer("row", np.array([-1], np.int64))])
            squares.append(self._node("ReduceSumSquare", [row], keepdims=1))
        total = squares[0] if len(squares) == 1 else self._node("Sum", squares)
        return self._node("Sqrt", [total])


class Clip(Block):
    """min(max(x, clip_min), clip_max), where either may be absent."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = (("clip_min", clip_min), ("clip_max", clip_max))

    def build(self, clip_input_name: str) -> str:
        """Add the node and return the name of its output."""
        bounds = [
            "" if value is None else self._initializer(token, np.array(value, np.float32))
            for token, value in self._bounds
        ]
        return self._node("Clip", [clip_input_name, *bounds])


class PassThrough(Block):
    """Returns its arguments and adds nothing."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        """Return the names."""
        return input_names


class InputLike(Block):
    """A new input with type and shape of an input or output of the model."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Add the input and return its name."""
        value = typed_value(self.base, self._like)
        value.name = input_name or fresh_name("input")
        self.base.graph.input.append(value)
        return value.name


class LabelEncoder(Block):
    """A table from keys to values, ai.onnx.ml's operator with attributes of the same names."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: list[float] | None = None,
        keys_int64s: list[int] | None = None,
        keys_strings: list[str] | None = None,
        values_floats: list[float] | None = None,
        values_int64s: list[int] | None = None,
        values_strings: list[str] | None = None,
    ) -> None:
        super().__init__()
        given = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        self._attributes = {name: value for name, value in given.items() if value is not None}

    def build(self, label_encoder_input_name: str) -> str:
        """Add the node and return the name of its output."""
        return self._node(
            "LabelEncoder", [label_encoder_input_name], domain="ai.onnx.ml", **self._attributes
        )


class Linear(Block):
    """alpha x W + beta b, with W [in_features, out_features] and b from a normal distribution.

    NumPy's global generator is used, so that ``numpy.random.seed`` fixes them.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self._shape, self._bias = (in_features, out_features), bias
        self._scales: dict[str, Any] = {"alpha": alpha, "beta": beta}

    def build(self, linear_input_name: str) -> str:
        """Add weights and node and return the name of its output."""
        inputs = [linear_input_name]
        shapes: dict[str, tuple[int, ...]] = {"linear.weight": self._shape}
        if self._bias:
            shapes["linear.bias"] = self._shape[1:]
        for token, shape in shapes.items():
            value = np.random.standard_normal(shape)  # noqa: NPY002 (the original's generator)
            inputs.append(self._initializer(token, value.astype(np.float32)))
        return self._node("Gemm", inputs, **self._scales)
