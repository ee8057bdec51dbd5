"""Parameters, gradients and properties of a training, and their checkpoint file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnxgrad as og
from onnxgrad.compat.onnxruntime.training.api.flat_checkpoint import FlatCheckpoint, read, written
from onnxgrad.compat.onnxruntime.values import array_of, tensor_type
from onnxgrad.files import write_file

__all__ = ["CheckpointState", "Parameter", "Parameters", "Properties"]

_Array = np.ndarray[Any, Any]


class Parameter:
    """A parameter of the model, created by `CheckpointState`.

    Attributes
    ----------
    name : str
    data : numpy.ndarray
        Its value, a read-only view; assigning an array of the same shape and dtype copies it.
    grad : numpy.ndarray or None
        The sum of the gradients since the last reset, a read-only view; zeros before the first
        step, None if it is not trained.
    requires_grad : bool
    data_type : str
        Such as ``"tensor(float)"``.
    """

    def __init__(self, name: str, state: CheckpointState) -> None:
        self.name = name
        self._state = state

    @property
    def data(self) -> _Array:
        """The value."""
        return _read_only(self._state._value(self.name))

    @data.setter
    def data(self, value: Any) -> None:
        self.copy_from(value)

    def copy_from(self, value: Any) -> None:
        """Set the value from an array or OrtValue of the same shape and dtype."""
        old, new = self.data, array_of(value)
        if old.shape != new.shape or old.dtype != new.dtype:
            raise ValueError(
                f"Parameter {self.name!r} is {old.dtype} {list(old.shape)}, "
                f"not {new.dtype} {list(new.shape)}."
            )
        self._state._set(self.name, new.copy())

    @property
    def grad(self) -> _Array | None:
        """The gradient."""
        if not self.requires_grad:
            return None
        feeds = self._state._gradients
        if feeds is None:
            return np.zeros_like(self.data)
        return _read_only(feeds.gradient(self.name))

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self.name in self._state._trained

    @property
    def data_type(self) -> str:
        """Its type."""
        return tensor_type(self.data.dtype)

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, requires_grad={self.requires_grad})"


def _read_only(array: _Array) -> _Array:
    view = array.view()
    view.flags.writeable = False
    return view


class Parameters:
    """The parameters by name."""

    def __init__(self, state: CheckpointState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        if name not in self._state._values:
            raise KeyError(f"Parameter {name!r} is not one of {[*self._state._values]}.")
        if name in self._state._missing:
            raise RuntimeError(f"The checkpoint is nominal. {_LOAD_STATES} ({name!r})")
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._state.is_nominal:
            raise RuntimeError(f"The checkpoint is nominal. {_LOAD_ALL_STATES}")
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._state._values

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, self[name]) for name in [*self._state._values])

    def __len__(self) -> int:
        return len(self._state._values)

    def __repr__(self) -> str:
        return f"Parameters({[*self._state._values]})"


_LOAD_STATES = "Please load the parameter states first, with Module.copy_buffer_to_parameters."
_LOAD_ALL_STATES = _LOAD_STATES.replace("load the", "load all the")


class Properties:
    """User-defined numbers and strings that are stored with the parameters; floats as float32."""

    def __init__(self) -> None:
        self._values: dict[str, int | float | str] = {}

    def __getitem__(self, name: str) -> int | float | str:
        if name not in self._values:
            raise KeyError(f"Property {name!r} is not one of {[*self._values]}.")
        return self._values[name]

    def __setitem__(self, name: str, value: int | float | str) -> None:
        if not isinstance(value, (int, float, str)):
            raise TypeError(f"A property is an int, float or str, not a {type(value).__name__}.")
        self._values[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[tuple[str, int | float | str]]:
        return iter([*self._values.items()])

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({self._values})"


class CheckpointState:
    """The state of a training, created by `load_checkpoint`.

    Attributes
    ----------
    parameters : Parameters
    properties : Properties
    is_nominal : bool
        Whether parameters have names but no values yet.
    """

    def __init__(
        self, values: Mapping[str, _Array], trained: Sequence[str], nominal: bool = False
    ) -> None:
        self._values = dict(values)
        self._trained = list(trained)
        self._missing = {*values} if nominal else set[str]()
        self._gradients: Any = None  # of the last module that computed some
        self._changes = 0  # number of assignments by the user, to invalidate copies
        self._optimizer: FlatCheckpoint | None = None  # only its optimizer state counts
        self._statistics: dict[str, _Array] = {}  # running ones, which are no parameters
        self._module: Any = None  # the Module that has newer ones
        self._optimizer_source: Any = None  # the Optimizer, once there is one
        self._is_behind = False  # whether that has newer values
        self.parameters = Parameters(self)
        self.properties = Properties()

    @property
    def is_nominal(self) -> bool:
        """Whether values are missing."""
        return bool(self._missing)

    def _value(self, name: str) -> _Array:
        if self._is_behind:
            self._values |= self._optimizer_source._weights()
            self._is_behind = False
        return self._values[name]

    def _set(self, name: str, value: _Array) -> None:
        self._value(name)
        self._values[name] = value
        self._missing.discard(name)
        self._changes += 1

    def _require_values(self) -> None:
        if self._missing:
            raise RuntimeError(
                "The checkpoint is nominal. Please load the model parameters first. "
                "Module.copy_buffer_to_parameters does it."
            )

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a checkpoint of `generate_artifacts` or `save_checkpoint`, or of onnxruntime 1.19.

        Raises
        ------
        FileNotFoundError
        CheckpointError
            It is no such file, or damaged.
        """
        path = Path(checkpoint_uri)
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise ValueError("it is not a regular file")
            found = read(path)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a damaged file refers to anything
            raise og.CheckpointError(
                what=f"{path}: this is not a checkpoint, or it is damaged",
                file=str(path),
                detail=str(error),
                hint="Give a file that save_checkpoint or generate_artifacts wrote.",
            ) from error
        state = cls(found.trained | found.frozen, [*found.trained], found.nominal)
        for name, value in found.properties.items():
            state.properties[name] = value
        state._optimizer = found if found.moments is not None else None
        return state

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Write a state to a file, replacing an older one completely or not at all.

        The file is onnxruntime's FlatBuffers, up to 2 GiB.

        Parameters
        ----------
        state : CheckpointState
        checkpoint_uri : path
        include_optimizer_state : bool, default=False
            Whether to write moments, step and rate of the optimizer too.
        """
        values = {name: state._value(name) for name in state._values}
        stored = FlatCheckpoint(
            trained={name: value for name, value in values.items() if name in state._trained},
            frozen={name: value for name, value in values.items() if name not in state._trained}
            | (state._statistics if state._module is None else state._module._statistics()),
            nominal=state.is_nominal,
            properties=dict(iter(state.properties)),
        )
        source = state._optimizer_source
        found = state._optimizer if source is None else source._stored()
        if include_optimizer_state and found is not None:
            stored.moments, stored.step = found.moments, found.step
            stored.learning_rate = found.learning_rate
        write_file(checkpoint_uri, written(stored))
