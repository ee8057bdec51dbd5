"""`check_gradients`: the gradients of a model by each input and weight, beside differences."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onnxgrad.base.checks import checked_names, mapping, patterns, positive_int, real_number
from onnxgrad.base.models import ModelLike, to_core_model, to_proto
from onnxgrad.data.arrays import as_numpy
from onnxgrad.data.columns import name_list
from onnxgrad.errors import DataError, Error, ModelError
from onnxgrad.gradient_checks.cut import cut, floating_outputs, is_float, show_scores
from onnxgrad.gradient_checks.double import (
    STRAIGHT_THROUGH,
    all_nodes,
    array_in_double,
    model_in_double,
    names_in_single,
    names_rounded,
    parameters_in_single,
)
from onnxgrad.gradient_checks.slopes import DOUBLE, ELEMENTS, SINGLE, Precision, Slopes

if TYPE_CHECKING:
    import onnx

    from onnxgrad import _core

__all__ = ["CheckedInput", "GradientCheck", "check_gradients", "check_with_source"]

_OPEN = 3  # size of dimensions that the model leaves open


class CheckedInput(NamedTuple):
    """Result of the check of one input or weight.

    Attributes
    ----------
    name : str
    shape : tuple of int
    checked : int
        Elements that were moved one by one; where there are more, one direction moved all.
    error : float
        The largest difference between gradient and slope, relative to them; where rounding hides
        the slope, to the smallest that would be seen.
    problem : str
        What is wrong with the gradient, or why there is none; empty: nothing.
    note : str
        Where nothing could be compared, as at a kink or a jump; empty: nowhere.
    """

    name: str
    shape: tuple[int, ...]
    checked: int
    error: float
    problem: str
    note: str = ""


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
        where differences see steps: what is above them cannot be compared.
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
            right = "" if _is_unknown(one) else "right"
            verdict = one.problem or ", ".join(text for text in (right, one.note) if text)
            rows.append((one.name, str(list(one.shape)), count, f"{one.error:.1e}", verdict))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
            f"{row[3]:>{widths[3]}}  {row[4]}".rstrip()
            for row in rows
        ]
        wrong = sum(bool(one.problem) for one in self.inputs)
        unknown = sum(_is_unknown(one) for one in self.inputs)
        number = len(self.inputs)
        verdict = f"all {number} are right"
        if wrong:
            verdict = f"{wrong} of {number} are wrong"
        elif unknown:
            verdict = f"{number - unknown} are right, {unknown} could not be compared"
        return "\n".join([*lines, f"in {self.dtype}: {verdict}, largest error {self.error:.1e}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values, for JSON."""
        inputs = [one._asdict() | {"shape": list(one.shape)} for one in self.inputs]
        return {"ok": self.ok, "dtype": self.dtype, "error": self.error, "inputs": inputs}


def _is_unknown(one: CheckedInput) -> bool:
    return bool(one.note) and not one.checked and not one.problem


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
    device: str | None = None,
) -> GradientCheck:
    """Compare the gradients of a model with differences of the model.

    The model is cut to what its outputs depend on and converted to float64, and the outputs are
    projected at random; the gradient of that by each input and weight is compared with central
    differences, element by element. At a kink, as that of Relu, the gradient must lie between the
    slopes on both sides. Where differences do not tell, at jumps or kinks of inner values, other
    elements are taken, or the row says so: that is no error.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    feeds : dict of str to array, default=None
        The inputs; those that are missing have their default, or are drawn: uniform in [-1, 1]
        ([0.1, 1] if outputs are NaN with these), integers 0 or 1.
    wrt : str or list of str, default=None
        Inputs and weights to check, weights also by their aliases (`WeightInfo.aliases`); None is
        all of floating type that the outputs depend on, but those that no gradient flows to, as the
        scales of Resize.
    outputs : str or list of str, default=None
        Outputs to differentiate; None is all of floating type. The output of a ZipMap stands for
        the scores in it.
    samples : int, default=12
        Elements of each input that are moved one by one, chosen at random; None is all. Where there
        are more elements, a random direction moves all of them once.
    seed : int, default=0
        Of what is drawn and chosen.
    tolerance : float, default=None
        Largest error that is right; None is 1e-6, and 2e-3 above operators that compute in float32
        only.
    dims : dict of str to int, default=None
        Sizes of the model's named dimensions, for inputs that are drawn; 3 for others.
    device : str, default=None
        Device to compute on, as of an `InferenceSession`.

    Returns
    -------
    GradientCheck
        ``ok``, and a row for each input; print it.

    Raises
    ------
    ModelError
        No valid model, an unknown name, no floating-point output.
    DataError, ShapeError
        `feeds` that the model does not accept, an input that cannot be drawn, outputs that are all
        NaN.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.check_gradients(linear_model).ok
    True
    """
    return check_with_source(
        model,
        feeds,
        wrt,
        outputs,
        samples=samples,
        seed=seed,
        tolerance=tolerance,
        dims=dims,
        source="feeds=",
        device=device,
    )


def check_with_source(
    model: ModelLike,
    feeds: Mapping[str, Any] | None,
    wrt: str | Iterable[str] | None,
    outputs: str | Iterable[str] | None,
    *,
    samples: int | None,
    seed: int,
    tolerance: float | None,
    dims: Mapping[str, int] | None,
    source: str,
    device: str | None = None,
) -> GradientCheck:
    """Implement `check_gradients`; `source` is the option for inputs that messages name."""
    core = to_core_model(model)
    whole = to_proto(core)
    feeds = {} if feeds is None else mapping("feeds", feeds, "arrays")
    sizes = {} if dims is None else mapping("dims", dims, "sizes")
    sizes = {name: positive_int("dims", size) for name, size in sizes.items()}
    if tolerance is not None:
        tolerance = real_number("tolerance", tolerance, open_minimum=True)
    names = _names_in_file(core, patterns("wrt", wrt), _floats(whole)) or None
    wanted = patterns("outputs", outputs) or None
    _check_outputs(whole, wanted)
    _check_feeds(whole, feeds)
    _check_names(
        "floating-point input or weight", names or (), list(_floats(whole)), "There are", "wrt"
    )
    scores = show_scores(whole)
    wanted = wanted and [scores.get(name, name) for name in wanted]
    floating = [name for name in floating_outputs(whole) if wanted is None or name in wanted]
    if not floating:
        raise _no_outputs()
    proto = cut(whole, floating, names or ())
    _settle_defaults(proto, feeds)
    check = _Check(
        proto,
        {name: value for name, value in feeds.items() if name in _input_names(proto)},
        names,
        tolerance,
        {
            "outputs": floating,
            "samples": None if samples is None else positive_int("samples", samples),
            "seed": positive_int("seed", seed, 0),
            "device": device,
        },
        sizes,
        source,
    )
    found = check.found()
    if found is None:
        raise _no_outputs()
    straight = sorted({node.op_type for node in all_nodes(proto)} & STRAIGHT_THROUGH)
    return GradientCheck(found, "float32" if check.is_single else "float64", tuple(straight))


def _no_outputs() -> ModelError:
    return ModelError(
        what="no output that is checked is of floating-point numbers",
        hint="Name others with outputs=.",
    )


class _Check:
    """The check of a model that has been cut, in float64 as far as its operators know that."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Any],
        names: Sequence[str] | None,
        tolerance: float | None,
        options: dict[str, Any],
        dims: Mapping[str, int],
        source: str,
    ) -> None:
        self._model = model
        self._feeds = feeds
        self._tolerance = tolerance
        self._options = options
        self._dims = dims
        self._source = source
        left_out = parameters_in_single(model) if names is None else set()  # scales of Resize
        self._asked = [
            name
            for name in _floats(model)
            if (names is None or name in names) and name not in left_out
        ]
        weights = to_core_model(model).weights if names is None else []
        self._optional = {one.name for one in weights if not one.trainable}
        self.is_single = False

    def found(self) -> tuple[CheckedInput, ...] | None:
        """Return a row for each input and weight; None if no output has gradients."""
        double = model_in_double(self._model)
        in_single = names_in_single(double)
        single: Slopes | None = None
        try:
            slopes = self._open(double, DOUBLE, in_single)
        except Error:  # perhaps of operators that have no form for float64
            with contextlib.suppress(Error):
                single = self._open(self._model, SINGLE)
            if single is None:
                raise
            slopes = single
        if not slopes.has_outputs:
            return None
        rows = []
        for name in self._asked:
            row = self._row(slopes, name)
            if row is None and single is None:  # perhaps refused in float64 only
                with contextlib.suppress(Error):
                    single = self._open(self._model, SINGLE)
            used = slopes
            if row is None and single is not None and slopes is not single:
                used, row = single, self._row(single, name)
            self.is_single |= row is not None and (used is single or name in in_single)
            if row is None:
                if name in self._optional:  # no gradient flows there, and none is needed
                    continue
                row = CheckedInput(name, slopes.shape(name), 0, float("inf"), slopes.refusal(name))
            rows.append(row)
        return tuple(rows)

    def _row(self, slopes: Slopes, name: str) -> CheckedInput | None:
        """Return the row of an input; None if its gradient is refused."""
        shape = slopes.shape(name)
        if slopes.refusal(name):
            return None
        found = slopes.check(name)
        problem = found.problem
        if problem and slopes.undefined:
            problem += f"; output '{slopes.undefined[0]}' has NaN itself for these inputs"
        return CheckedInput(name, shape, found.checked, float(found.error), problem, found.note)

    def _open(
        self, model: onnx.ModelProto, precision: Precision, in_single: Collection[str] = ()
    ) -> Slopes:
        """Return what compares, with a point where outputs are numbers if one is found."""
        slopes = self._slopes(model, precision, in_single, -1.0)
        is_drawn = any(name not in self._feeds for name in _input_names(model))
        if slopes.undefined and is_drawn:
            other = self._slopes(model, precision, in_single, 0.1)
            slopes = other if other.num_terms > slopes.num_terms else slopes
        if slopes.undefined and not slopes.num_terms:
            raise DataError(
                what=f"output '{slopes.undefined[0]}' is NaN for these inputs",
                value=slopes.undefined[0],
                hint=f"Give inputs that the model is made for with {self._source}.",
            )
        return slopes

    def _slopes(
        self,
        model: onnx.ModelProto,
        precision: Precision,
        in_single: Collection[str],
        lowest: float,
    ) -> Slopes:
        """Return what compares. Weights become inputs, so that they can be moved."""
        import onnx
        from onnx import numpy_helper

        arrays = _complete(
            model, self._feeds, self._dims, (self._options["seed"], lowest), self._source
        )
        opened = onnx.ModelProto()
        opened.CopyFrom(model)
        weights = {tensor.name: tensor for tensor in opened.graph.initializer}
        for name in self._asked:
            if name in weights:
                tensor = weights[name]
                arrays[name] = numpy_helper.to_array(tensor)
                opened.graph.input.append(
                    onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
                )
                opened.graph.initializer.remove(tensor)
        return Slopes(
            opened,
            arrays,
            precision,
            tolerance=self._tolerance,
            in_single=in_single,
            rounded=names_rounded(model),
            names=self._asked,
            **self._options,
        )


def _input_names(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


def _floats(model: onnx.ModelProto) -> dict[str, None]:
    """Return the names of inputs and weights of floating-point numbers."""
    weights = [one.name for one in model.graph.initializer if is_float(one.data_type)]
    inputs = [
        value.name
        for value in model.graph.input
        if is_float(value.type.tensor_type.elem_type) and value.name not in weights
    ]
    return dict.fromkeys([*inputs, *weights])


def _names_in_file(model: _core.Model, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the names with those of weights in the file for aliases (`WeightInfo.aliases`)."""
    if all(name in known for name in names):
        return list(names)
    own = {alias: one.name for one in model.weights for alias in one.aliases if one.name in known}
    return [name if name in known else own.get(name, name) for name in names]


def _settle_defaults(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> None:
    """Keep the input or the default value of each input that has both: the input if it is fed."""
    defaults = {tensor.name: tensor for tensor in model.graph.initializer}
    for value in list(model.graph.input):
        if value.name in defaults and value.name in feeds:
            model.graph.initializer.remove(defaults[value.name])
        elif value.name in defaults:
            model.graph.input.remove(value)


def _check_feeds(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> None:
    names = _input_names(model)
    for name in feeds:
        if name not in names:
            raise DataError(
                what=f"the model has no input '{name}'",
                value=name,
                detail=f"Inputs: {name_list(names)}.",
                hint="Leave it out, or name one of these.",
            )


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


def _complete(
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    dims: Mapping[str, int],
    drawn: tuple[int, float],
    source: str,
) -> dict[str, Any]:
    """Return the feeds in the types of the model, with drawn values for those that are missing.

    `drawn` are the seed of these and the least of them.
    """
    import onnx

    rng = np.random.default_rng(drawn[0])
    arrays = {}
    for value in model.graph.input:
        kind = value.type.tensor_type.elem_type
        if value.name in feeds:
            given = feeds[value.name]
            if kind == onnx.TensorProto.DOUBLE:
                given = array_in_double(as_numpy(given, value.name))
            arrays[value.name] = given
            continue
        if value.type.WhichOneof("value") != "tensor_type" or kind == onnx.TensorProto.STRING:
            raise DataError(
                what=f"input '{value.name}' cannot be drawn: it is no tensor of numbers",
                value=value.name,
                hint=f"Give it with {source}.",
            )
        shape = [
            dim.dim_value if dim.HasField("dim_value") else int(dims.get(dim.dim_param, _OPEN))
            for dim in value.type.tensor_type.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        is_whole = np.dtype(dtype).kind in "iub"
        values = rng.integers(0, 2, shape) if is_whole else rng.uniform(drawn[1], 1, shape)
        arrays[value.name] = np.asarray(values).astype(dtype)
    return arrays
