"""`check_gradients`: the gradients of a model by each input and weight, beside differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from onnxgrad.base.checks import checked_names, patterns, positive_int
from onnxgrad.base.models import ModelLike, to_core_model, to_proto
from onnxgrad.data.columns import name_list
from onnxgrad.errors import DataError, Error, ModelError
from onnxgrad.gradient_checks.double import (
    all_nodes,
    array_in_double,
    computes_in_double,
    model_in_double,
    parameters_in_single,
)
from onnxgrad.gradient_checks.slopes import DOUBLE, ELEMENTS, SINGLE, Precision, Slopes

if TYPE_CHECKING:
    import onnx

__all__ = ["CheckedInput", "GradientCheck", "check_gradients"]

_Opened: TypeAlias = "tuple[Slopes, dict[str, tuple[int, ...]]]"

_OPEN = 3  # size of dimensions that the model leaves open
# Their gradients pass over rounding, by convention.
_STRAIGHT_THROUGH = {
    "DynamicQuantizeLinear",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
}


class CheckedInput(NamedTuple):
    """What was found of one input or weight.

    Attributes
    ----------
    name : str
    shape : tuple of int
    checked : int
        Elements that were moved one by one; where there are more, one direction moved all.
    error : float
        The largest difference between gradient and slope, relative to slopes larger than 1.
    problem : str
        What is wrong with the gradient, or why there is none; empty: nothing.
    """

    name: str
    shape: tuple[int, ...]
    checked: int
    error: float
    problem: str


class GradientCheck(NamedTuple):
    """The result of `check_gradients`; ``str()`` is a table.

    Attributes
    ----------
    inputs : tuple of CheckedInput
        In the order of the model, inputs before weights.
    dtype : str
        In which the model was run: ``"float64"``, or ``"float32"`` if some inputs had to be checked
        so because of operators without float64.
    straight_through : tuple of str
        Operators of the model that round, and whose gradients pass over that as if they did not,
        where differences see steps.
    """

    inputs: tuple[CheckedInput, ...]
    dtype: str
    straight_through: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all gradients are right."""
        return not any(checked.problem for checked in self.inputs)

    @property
    def error(self) -> float:
        """The largest error of all."""
        return max((checked.error for checked in self.inputs), default=0.0)

    def __str__(self) -> str:
        """Return a line for each input and weight."""
        rows = [("input", "shape", "checked", "error", "")]
        for one in self.inputs:
            count = f"{one.checked} of {int(np.prod(one.shape))}"
            verdict = one.problem or "right"
            rows.append((one.name, str(list(one.shape)), count, f"{one.error:.1e}", verdict))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
            f"{row[3]:>{widths[3]}}  {row[4]}".rstrip()
            for row in rows
        ]
        wrong = sum(bool(one.problem) for one in self.inputs)
        number = len(self.inputs)
        verdict = f"{wrong} of {number} are wrong" if wrong else f"all {number} are right"
        return "\n".join([*lines, f"in {self.dtype}: {verdict}, largest error {self.error:.1e}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values, for JSON."""
        inputs = [one._asdict() | {"shape": list(one.shape)} for one in self.inputs]
        return {"ok": self.ok, "dtype": self.dtype, "error": self.error, "inputs": inputs}


@checked_names
def check_gradients(
    model: ModelLike,
    feeds: Mapping[str, Any] | None = None,
    wrt: str | Iterable[str] | None = None,
    outputs: str | Iterable[str] | None = None,
    *,
    samples: int | None = ELEMENTS,
    seed: int = 0,
    tolerance: float | None = None,
    dims: Mapping[str, int] | None = None,
) -> GradientCheck:
    """Compare the gradients of a model with differences of the model.

    The model is converted to float64 and its outputs are projected at random; the gradient of that
    by each input and weight is compared with central differences, element by element. Where the
    slopes on both sides differ, as at the kink of Relu, the gradient must lie between them.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    feeds : dict of str to array, default=None
        The inputs; those that are missing are drawn: uniform in [-1, 1], integers 0 or 1.
    wrt : str or list of str, default=None
        Inputs and weights to check; None is all of floating type but those that their operators
        take in float32 alone, as Resize its scales.
    outputs : str or list of str, default=None
        Outputs to differentiate; None is all of floating type.
    samples : int, default=12
        Elements of each input that are moved one by one, chosen at random; None is all. Where there
        are more elements, a random direction moves all of them once.
    seed : int, default=0
        Of what is drawn and chosen.
    tolerance : float, default=None
        Largest error that is right; None is 1e-6, and 2e-3 for a model that must run in float32.
    dims : dict of str to int, default=None
        Sizes of the model's named dimensions, for inputs that are drawn; 3 for others.

    Returns
    -------
    GradientCheck
        ``ok``, and a row for each input; print it.

    Raises
    ------
    ModelError
        No valid model, an unknown name, no floating-point output.
    DataError, ShapeError
        `feeds` that the model does not accept.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.check_gradients(linear_model).ok
    True
    """
    proto = to_proto(to_core_model(model))
    names = patterns("wrt", wrt) or None
    wanted = patterns("outputs", outputs) or None
    _check_outputs(proto, wanted)
    options = {
        "outputs": wanted,
        "samples": None if samples is None else positive_int("samples", samples),
        "seed": positive_int("seed", seed, 0),
    }

    def slopes_of(form: onnx.ModelProto, precision: Precision) -> _Opened:
        arrays = _complete(form, feeds or {}, dims or {}, seed)
        return _slopes(form, arrays, names, precision, tolerance, options)

    double = model_in_double(proto)
    found: dict[str, _Opened] = {}
    first = None
    try:
        found["float64"] = slopes_of(double, DOUBLE)
    except Error as error:  # perhaps of operators that have no form for float64
        first = error
    if first is not None or not computes_in_double(double):
        try:
            found["float32"] = slopes_of(proto, SINGLE)
        except Error:
            if first is not None:
                raise first from None
    found = {dtype: opened for dtype, opened in found.items() if opened[0].has_outputs}
    if not found and first is not None:
        raise first
    if not found:
        raise ModelError(
            what="no output that is checked is of floating-point numbers",
            hint="Name others with outputs=.",
        )
    straight = sorted({node.op_type for node in all_nodes(proto)} & _STRAIGHT_THROUGH)
    checked, dtypes = _check_all(found)
    return GradientCheck(checked, "float32" if "float32" in dtypes else "float64", tuple(straight))


def _check_all(found: dict[str, _Opened]) -> tuple[tuple[CheckedInput, ...], set[str]]:
    """Check each input in the first type in which it is right; some operators have float32 only."""
    checked, dtypes = [], set()
    for name, shape in next(iter(found.values()))[1].items():
        results = {}
        for dtype, (slopes, _) in found.items():
            results[dtype] = _check(slopes, name, shape)
            if not results[dtype].problem:
                break
        dtype = next(
            (dtype for dtype, one in results.items() if not one.problem), next(iter(results))
        )
        checked.append(results[dtype])
        dtypes.add(dtype)
    return tuple(checked), dtypes


def _check(slopes: Slopes, name: str, shape: tuple[int, ...]) -> CheckedInput:
    try:
        found = slopes.check(name)
    except Error as error:
        return CheckedInput(name, shape, 0, float("inf"), str(error).splitlines()[0])
    problem = found.problem
    if problem and slopes.undefined:
        problem += f"; output '{slopes.undefined[0]}' has NaN itself for these inputs"
    return CheckedInput(name, shape, found.checked, float(found.error), problem)


def _check_outputs(model: onnx.ModelProto, wanted: Sequence[str] | None) -> None:
    known = [value.name for value in model.graph.output]
    _check_names("output", wanted or (), known, "Outputs:", "outputs")


def _check_names(
    kind: str, names: Sequence[str], known: Sequence[str], listed: str, option: str
) -> None:
    for name in names:
        if name not in known:
            raise ModelError(
                what=f"there is no {kind} '{name}'",
                value=name,
                detail=f"{listed} {name_list(known)}.",
                hint=f"Name one of these with {option}=.",
            )


def _slopes(
    model: onnx.ModelProto,
    arrays: dict[str, Any],
    names: Sequence[str] | None,
    precision: Precision,
    tolerance: float | None,
    options: dict[str, Any],
) -> _Opened:
    """Return what compares, and the shapes of what it is asked for, by name.

    Weights become inputs, so that they can be moved.
    """
    import onnx
    from onnx import numpy_helper

    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    fed = dict(arrays)
    weights = {
        tensor.name: tensor for tensor in opened.graph.initializer if _is_float(tensor.data_type)
    }
    known = {
        value.name: fed[value.name].shape
        for value in opened.graph.input
        if value.name not in weights and _is_float(value.type.tensor_type.elem_type)
    } | {name: tuple(tensor.dims) for name, tensor in weights.items()}
    left_out = parameters_in_single(model) if names is None else set()  # as scales of Resize
    asked = {name: known[name] for name in _wanted(names, known) if name not in left_out}
    inputs = {value.name for value in opened.graph.input}
    for name in asked:
        if name in weights:
            tensor = weights[name]
            fed[name] = numpy_helper.to_array(tensor)
            if name not in inputs:
                opened.graph.input.append(
                    onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
                )
            opened.graph.initializer.remove(tensor)
    if tolerance is not None:
        precision = precision._replace(tolerance=float(tolerance))
    return Slopes(opened, fed, precision, **options), asked


def _wanted(names: Sequence[str] | None, known: Mapping[str, Any]) -> list[str]:
    _check_names("floating-point input or weight", names or (), list(known), "There are", "wrt")
    return [name for name in known if names is None or name in names]


def _is_float(kind: int) -> bool:
    import onnx

    return kind in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


def _complete(
    model: onnx.ModelProto, feeds: Mapping[str, Any], dims: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """Return the feeds in the types of the model, with drawn values for those that are missing."""
    import onnx

    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    names = [value.name for value in inputs]
    for name in feeds:
        if name not in names:
            raise DataError(
                what=f"the model has no input '{name}'",
                value=name,
                detail=f"Inputs: {name_list(names)}.",
                hint="Leave it out, or name one of these.",
            )
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in inputs:
        kind = value.type.tensor_type.elem_type
        if value.name in feeds:
            given = feeds[value.name]
            is_double = kind == onnx.TensorProto.DOUBLE
            arrays[value.name] = array_in_double(np.asarray(given)) if is_double else given
            continue
        if value.type.WhichOneof("value") != "tensor_type" or kind == onnx.TensorProto.STRING:
            raise DataError(
                what=f"input '{value.name}' cannot be drawn: it is no tensor of numbers",
                value=value.name,
                hint="Give it with feeds=.",
            )
        shape = [
            dim.dim_value if dim.HasField("dim_value") else int(dims.get(dim.dim_param, _OPEN))
            for dim in value.type.tensor_type.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        is_whole = np.dtype(dtype).kind in "iub"
        drawn = rng.integers(0, 2, shape) if is_whole else rng.uniform(-1, 1, shape)
        arrays[value.name] = np.asarray(drawn).astype(dtype)
    return arrays
