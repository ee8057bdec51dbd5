"""Rows for fit, evaluation and validation, converted for the extension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onnxgrad import _core
from onnxgrad.base.checks import real_number
from onnxgrad.data.arrays import NativeArray, from_native, to_native
from onnxgrad.data.arrow import is_table
from onnxgrad.data.columns import feeds_of
from onnxgrad.data.device_arrays import DeviceArray, device_tensor
from onnxgrad.data.files import source_like
from onnxgrad.data.labels import Labels, native_targets
from onnxgrad.data.maps import with_rows
from onnxgrad.data.rows import NativeRows, named_inputs, own_tokens, unpack_table
from onnxgrad.data.sources import Source
from onnxgrad.data.sparse import dense_pieces, has_sparse, sparse_source
from onnxgrad.errors import DataError, OptionError
from onnxgrad.quantization import as_quantization
from onnxgrad.quantization.functions import first_rows
from onnxgrad.session_options.model_changes import changed_model
from onnxgrad.sessions import TrainingSession

__all__ = ["Rows", "calibrated", "convert", "dataset", "table_as_rows", "unpack", "validation_rows"]


def table_as_rows(validation: Any, y: Any, sample_weight: Any) -> Any:
    """Return a table that is given as `validation` with its columns for target and weight.

    They are those of the training rows; anything but a table is returned unchanged.
    """
    if not is_table(validation) or y is None:
        return validation
    weight = sample_weight if isinstance(sample_weight, str) else None
    return (validation, y) if weight is None else (validation, y, weight)


def calibrated(session: TrainingSession, X: Any) -> _core.Trainer:
    """Quantize the model of a session, with its weights, by rows of X; return its new trainer."""
    core = session._core
    most = as_quantization(session._arguments["quantize"]).rows
    if isinstance(X, Source):
        native = X.native(session)
        if not native.can_start_again:
            raise DataError(
                what="quantize=: the data can be read only once, and the ranges of activations are "
                "measured before the training",
                value="X",
                hint="Give calibration= some rows to measure, or a source that can start again.",
            )
        feeds = first_rows(native, core.inputs, most)
    else:
        X = with_rows(core.inputs, unpack_table(core, X)[0])
        if has_sparse(X):
            X = next(iter(dense_pieces(X)))
        feeds = {name: from_native(value) for name, value in named_inputs(core, X)}
    frozen = session._first_trained - {weight.name for weight in session.trained_weights}
    given = {**session._arguments, "calibration": feeds}
    rate = core.learning_rate
    if session._start is None:
        given["new_head"] = None  # the trained model has it
        start = core.trained_model()
        values = {}
    else:
        start = session._start
        values = session._values_that_were_set()
        session._start = None
        session._first_values = {}
    session._model = changed_model(start, given, given["seed"])
    session._core = session._compiled(session._model)
    session._awaits_rows = False
    if values:
        trained = {weight.name for weight in session.trained_weights}
        session._set_weights({name: values[name] for name in trained & values.keys()})
    if session._weighs_positions:
        session._core.use_sample_weights(session._sample_weight, True)
    if left := sorted(frozen & {weight.name for weight in session.trained_weights}):
        session.freeze(left)
    if session._core.learning_rate != rate:
        session._core.learning_rate = rate
    return _core.Trainer(session._core)


class Rows(NamedTuple):
    """Rows in memory: a table's columns as arrays by input, anything else as it was given.

    Attributes
    ----------
    X : dict of str to array, or array
    y : numpy.ndarray, dict of these by output, or None
    sample_weight : numpy.ndarray or None
    placed_y : dict of str to DeviceTensor
        Those of `y` that were given in the memory of a device, by output; a single one has ``""``.
    placed_weight : DeviceTensor or None
        `sample_weight`, if it was given there.
    """

    X: Any
    y: Any
    sample_weight: Any
    placed_y: dict[str, _core.DeviceTensor]
    placed_weight: _core.DeviceTensor | None


def unpack(session: TrainingSession, X: Any, y: Any, sample_weight: Any) -> Rows:
    """Return arrays or tables as rows for the inputs of `session`."""
    core = session._core
    several = y if isinstance(y, Mapping) else {"": y}
    targets = {str(name): device_tensor(one, str(name) or "y") for name, one in several.items()}
    placed = {name: one for name, one in targets.items() if one is not None}
    weight = device_tensor(sample_weight, "sample_weight")
    # Checks read the copies that the next call makes of these.
    given = {
        str(name): DeviceArray(placed[str(name)]) if str(name) in placed else one
        for name, one in several.items()
    }
    X, y, sample_weight = unpack_table(
        core,
        X,
        given if isinstance(y, Mapping) else given[""],
        sample_weight if weight is None else DeviceArray(weight),
    )
    return Rows(with_rows(core.inputs, X), y, sample_weight, placed, weight)


def convert(
    session: TrainingSession, labels: Labels, rows: Rows, targets: Mapping[str, NativeArray]
) -> NativeRows:
    """Return rows for the loop of the extension, with their `native_targets`."""
    core, X = session._core, rows.X
    feeds = feeds_of(X)
    weight = None
    if rows.sample_weight is not None:
        weight = to_native(rows.sample_weight, "sample_weight")
    numbers = {name: labels.native(core, one, name, feeds) for name, one in targets.items()}
    target = numbers.pop("", None)
    if has_sparse(X):
        return sparse_source(core, X, target, numbers, weight)
    origin = None if feeds is None else feeds.origin
    inputs = dict(named_inputs(core, X, in_place=True))
    placed = {name: one for name, one in inputs.items() if isinstance(one, _core.DeviceTensor)}
    inputs |= {name: one.to_host() for name, one in placed.items()}  # for checks
    return _core.Dataset(
        inputs, target, numbers, weight, 0, origin, placed, rows.placed_y, rows.placed_weight
    )


def dataset(
    session: TrainingSession, labels: Labels, X: Any, y: Any, sample_weight: Any
) -> NativeRows:
    """Return arrays or tables as rows for the inputs and targets of `session`."""
    if y is None:
        y = own_tokens(session._core, X)
    rows = unpack(session, X, y, sample_weight)
    has_targets = rows.y is not None or session.target_name
    return convert(session, labels, rows, native_targets(rows.y) if has_targets else {})


def validation_rows(
    session: TrainingSession,
    labels: Labels,
    validation: float | Sequence[Any] | Source | None,
    source: Source | None,
    options: _core.FitOptions,
) -> NativeRows | None:
    """Return the rows of the option `validation`; a fraction is stored in `options` instead."""
    if validation is None:
        return None
    validation = source_like(source, validation)
    if isinstance(validation, Source):
        return validation.native(session)
    if isinstance(validation, (tuple, list)):
        if len(validation) not in (2, 3):
            raise OptionError(
                what=f"validation: {len(validation)} arrays, expected (X, y)",
                value="validation",
                hint="Give (X, y), (X, y, sample_weight), or a fraction such as 0.1.",
            )
        weight = validation[2] if len(validation) == 3 else None
        return dataset(session, labels, validation[0], validation[1], weight)
    fraction: Any = validation
    if hasattr(fraction, "__len__"):
        raise OptionError(
            what=f"validation: one {type(fraction).__name__}, expected (X, y)",
            value="validation",
            hint="Give (X, y), or a fraction of the rows such as validation=0.1.",
        )
    options.validation_fraction = real_number("validation", fraction, 0.0, 1.0, open_minimum=True)
    return None
