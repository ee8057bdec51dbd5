"""Running a model."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import checked_names, choice, flag, mapping, patterns
from onnxgrad.base.engine_options import engine_options
from onnxgrad.base.models import ModelLike, to_core_model
from onnxgrad.base.values import NodeArg, node_args
from onnxgrad.data.arrays import (
    ArrayLike,
    are_on_device,
    from_native_list,
    to_feeds,
    to_native,
)
from onnxgrad.data.device_arrays import result
from onnxgrad.data.maps import is_map, maps_of_rows, rows_of_maps
from onnxgrad.errors import DataError
from onnxgrad.profiles import Memory, Profile, profiling

__all__ = ["InferenceSession", "NotPickled"]


class NotPickled:
    """Base of classes that cannot be pickled."""

    def __reduce__(self) -> str:
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be pickled: it is tied to the memory of this process")


_MAP_TYPES = {"string": np.str_, "int64": np.int64, "float32": np.float32, "float64": np.float64}


def _packed_map(value: Any, name: str, type_name: str) -> Any:
    """Convert a dictionary for the extension: its keys, then its values."""
    if not isinstance(value, Mapping):
        raise DataError(
            what=f"'{name}': a {type(value).__name__} for a map",
            value=name,
            hint="Give one dictionary; run the model once for each of several.",
        )
    key_type, value_type = re.findall("|".join(_MAP_TYPES), type_name)[:2]
    parts = []
    for items, kind in ((value.keys(), key_type), (value.values(), value_type)):
        try:
            array: np.ndarray[Any, Any] = np.array(list(items), _MAP_TYPES[kind])
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                what=f"'{name}': its keys or values are not all of type {kind}",
                value=name,
                detail=str(error),
                hint=f"The model declares {type_name}.",
            ) from error
        parts.append(to_native(array, name))
    return _core.pack_values(parts)


def _packed(value: Any, name: str, type_name: str) -> Any:
    """Convert a sequence, optional or map for the extension."""
    if type_name.startswith("map("):
        return _packed_map(value, name, type_name)
    if value is None:
        return _core.pack_nothing()
    elements = value if isinstance(value, list | tuple) else [value]
    return _core.pack_values([to_native(element, name) for element in elements])


def _unpacked(value: Any, type_name: str) -> Any:
    elements = _core.unpack_values(value)
    if elements is None:
        return None
    arrays = from_native_list(elements)
    return arrays if "sequence(" in type_name else arrays[0]


def has_tensors(declared: Sequence[_core.ValueInfo]) -> bool:
    """Return whether the extension's outputs are as the model declares them."""
    return all(value.is_tensor and value.keys is None for value in declared)


def as_declared(
    outputs: list[Any], names: Sequence[str], declared: Sequence[_core.ValueInfo]
) -> list[Any]:
    """Return outputs of the extension as the model declares them: sequences, optionals and maps.

    `names` are those of `outputs`; empty means all of `declared`.
    """
    if has_tensors(declared):
        return outputs
    infos = {value.name: value for value in declared}
    result = []
    for name, value in zip(names or [v.name for v in declared], outputs, strict=True):
        info = infos[name]
        if not info.is_tensor:
            value = _unpacked(value, info.type)
        elif info.keys is not None:
            value = maps_of_rows(value, info.keys)
        result.append(value)
    return result


def placed_as_declared(
    outputs: Sequence[_core.DeviceTensor],
    names: Sequence[str],
    declared: Sequence[_core.ValueInfo],
    *,
    to_host: bool,
) -> list[Any]:
    """Return `as_declared` of outputs in any memory; without `to_host` arrays stay where they are.

    Sequences, optionals and maps are on the host.
    """
    arrays = {value.name for value in declared if value.is_tensor and value.keys is None}
    values = [
        result(value, to_host=to_host or name not in arrays)
        for name, value in zip(names or [v.name for v in declared], outputs, strict=True)
    ]
    return as_declared(values, names, declared)


class InferenceSession(NotPickled):
    """Runs any ONNX model on onnxgrad's engine, including gradient graphs and training steps.

    The interface is that of ``onnxruntime.InferenceSession``.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    device : str, optional
    math : {"float32", "tf32"}, default="float32"
    deterministic : bool, default=True
    threads : int, default=None
        Number of threads; None means the cores that this process may use, but at most
        ``OMP_NUM_THREADS``.
    open_batch : bool, default=False
        Whether a batch whose size the file fixes is opened, so that inputs take any number of rows;
        see `onnxgrad.open_batch`.
    adapters : dict of str to path, default=None
        Folders of adapters (see `adapters.load`) by a name for `run`; they adapt the same layers
        with ranks of their own. The weights of `model` are there once, and a plan serves all
        adapters of a rank.

    Raises
    ------
    ModelError
        An invalid model.
    UnsupportedOperatorError
        Operators that the engine cannot run, if no output can be computed without them; the message
        names all of them.

    Notes
    -----
    Only one call can run at a time: a concurrent call from another thread raises `Error`. A plan is
    compiled for each set of input shapes when it first occurs. The interpreter lock is released
    during a run.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> session = og.InferenceSession(linear_model)
    >>> [(i.name, i.type, i.shape) for i in session.get_inputs()]
    [('X', 'tensor(float)', ['N', 2])]
    >>> session.run(None, {"X": np.ones((3, 2), np.float32)})[0].shape
    (3, 1)
    """

    @checked_names
    def __init__(
        self,
        model: ModelLike,
        *,
        device: str | None = None,
        math: str = "float32",
        deterministic: bool = True,
        threads: int | None = None,
        open_batch: bool = False,
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        engine = engine_options(device, threads, math=math, deterministic=deterministic)
        core = to_core_model(model)
        self._adapters: dict[str, dict[str, Any]] = {}
        if adapters is not None:
            from onnxgrad.adapters.switched import with_switched_adapters

            core, self._adapters = with_switched_adapters(
                core, mapping("adapters", adapters, "folders")
            )
        if flag("open_batch", open_batch):
            core = _core.open_batch(core)
        self._core = _core.InferenceSession(core, engine)
        inputs = [*self._core.inputs, *self._core.overridable_inputs]
        self._lists = {value.name: value.type for value in inputs if not value.is_tensor}
        self._maps = {value.name: value for value in inputs if is_map(value)}
        self._outputs = self._core.outputs
        self._has_tensors = has_tensors(self._outputs)

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, ArrayLike | Sequence[ArrayLike] | None],
        *,
        adapter: str | None = None,
        to_host: bool = True,
    ) -> list[Any]:
        """Return the outputs for the inputs `feeds`.

        Parameters
        ----------
        output_names : sequence of str or None
            None means all outputs. Only what these depend on is computed.
        feeds : dict of str to array
            Arrays of the declared types; contiguous ones are read in place, also those in the
            memory of the session's device. Inputs that have a
            default value, or that no requested output depends on, may be left out. A sequence is a
            list of arrays; an optional is an array, a list or None; a map is a dictionary, or a
            list of these, one for each row.
        adapter : str, default=None
            Which of the session's `adapters` to use; None means the model without one.
        to_host : bool, default=True
            False: arrays of numbers stay in the memory of the session's device, as
            `devices.DeviceArray`, and may not be computed yet when the call returns.

        Returns
        -------
        list of numpy.ndarray or DeviceArray
            Outputs in the order of `output_names`. Strings are returned as object arrays, the
            output of a ZipMap as a list of dictionaries, one for each row, other sequences as lists
            of arrays, and optionals as their element or None.

        Raises
        ------
        DataError
            An unknown output, an unknown or missing input, or a dtype other than declared.
        ShapeError
            Shapes that do not fit each other or the model.
        UnsupportedOperatorError
            A requested output that the engine cannot compute; others can be requested by name.

        Notes
        -----
        Shapes that the model declares for computed values do not count: what is fed determines
        them, also through a shape, axes or sizes among the inputs.
        """
        names = patterns("output_names", output_names)
        native = self._feeds(feeds)
        if adapter is not None:
            native |= self._adapters[choice("adapter", adapter, list(self._adapters))]
        if not flag("to_host", to_host) or are_on_device(native):
            placed = self._core.run_on_device(names, native)
            return placed_as_declared(placed, names, self._outputs, to_host=to_host)
        outputs = from_native_list(self._core.run(names, native))
        if self._has_tensors:
            return outputs
        return as_declared(outputs, names, self._outputs)

    def _feeds(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        lists, maps = self._lists, self._maps
        if not (lists or maps) or not isinstance(feeds, Mapping):
            return to_feeds(feeds, in_place=True)
        feeds = {k: rows_of_maps(v, maps[k]) if k in maps else v for k, v in feeds.items()}
        native = to_feeds({k: v for k, v in feeds.items() if k not in lists}, in_place=True)
        native |= {
            name: _packed(feeds[name], name, kind) for name, kind in lists.items() if name in feeds
        }
        return native

    def __repr__(self) -> str:
        inputs = [value.name for value in self._core.inputs]
        return f"InferenceSession(inputs={inputs}, outputs={[o.name for o in self._core.outputs]})"

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that `run` takes and that have no default value."""
        return node_args(self._core.inputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default value, which `run` takes too."""
        return node_args(self._core.overridable_inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in the order of ``run(None, feeds)``."""
        return node_args(self._core.outputs)

    def plan_summary(self) -> str:
        """Return the kernels of the last run, one line each; empty before the first run."""
        return self._core.plan_summary()

    @contextlib.contextmanager
    def profiling(self) -> Iterator[Profile]:
        """Time the kernels of the runs inside a ``with`` block.

        The `Profile` is filled in at the end of the block.

        Examples
        --------
        >>> import numpy as np
        >>> import onnxgrad as og
        >>> session = og.InferenceSession(linear_model)
        >>> with session.profiling() as profile:
        ...     outputs = [session.run(None, {"X": np.ones((4, 2), np.float32)}) for _ in range(10)]
        >>> profile.kernels[0].calls
        10
        """
        with profiling(self._core) as profile:
            yield profile

    def memory(self) -> Memory:
        """Return the memory that the session uses, by purpose.

        Weights are constants here: those that are read in the file's bytes count as `file`, others,
        and what kernels keep of them in an order of their own, as `constants`.
        """
        return Memory._of(self._core.memory())
