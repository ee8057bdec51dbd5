"""Parameters, gradients and properties of a training, and their checkpoint file."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnxgrad as og
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
        The sum of the gradients since the last reset, a read-only view.
    requires_grad : bool
    """

    def __init__(self, name: str, state: CheckpointState) -> None:
        self.name = name
        self._state = state

    @property
    def data(self) -> _Array:
        """The value."""
        return _read_only(self._state._values[self.name])

    @data.setter
    def data(self, value: Any) -> None:
        old, new = self.data, np.asarray(value)
        if old.shape != new.shape or old.dtype != new.dtype:
            raise ValueError(
                f"Parameter {self.name!r} is {old.dtype} {list(old.shape)}, "
                f"not {new.dtype} {list(new.shape)}."
            )
        self._state._values[self.name] = new.copy()
        self._state._changes += 1

    @property
    def grad(self) -> _Array | None:
        """The gradient, or None before the first step."""
        gradient = self._state._gradients.get(self.name)
        return None if gradient is None else _read_only(gradient)

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained."""
        return self.name in self._state._trained

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
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Any) -> None:
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._state._values

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, self[name]) for name in [*self._state._values])

    def __len__(self) -> int:
        return len(self._state._values)


class Properties:
    """User-defined numbers and strings that are stored with the parameters."""

    def __init__(self) -> None:
        self._values: dict[str, int | float | str] = {}

    def __getitem__(self, name: str) -> int | float | str:
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


class CheckpointState:
    """The state of a training, created by `load_checkpoint`.

    Attributes
    ----------
    parameters : Parameters
    properties : Properties
    """

    def __init__(self, values: Mapping[str, _Array], trained: Sequence[str]) -> None:
        self._values = dict(values)
        self._trained = list(trained)
        self._gradients: dict[str, _Array] = {}
        self._changes = 0  # number of assignments by the user, to invalidate copies
        self._optimizer: dict[str, _Array] = {}
        self._optimizer_source: Any = None  # the Optimizer, once there is one
        self.parameters = Parameters(self)
        self.properties = Properties()

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | os.PathLike[str]) -> CheckpointState:
        """Read a file written by `generate_artifacts` or `save_checkpoint`.

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
            with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                return cls._from_arrays(found)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # NumPy does not document what a damaged file raises
            raise og.CheckpointError(
                what=f"{path}: this is not a checkpoint, or it is damaged",
                file=str(path),
                detail=str(error),
                hint="Give a file that save_checkpoint or generate_artifacts wrote.",
            ) from error

    @classmethod
    def _from_arrays(cls, found: Mapping[str, _Array]) -> CheckpointState:
        head = json.loads(str(found["head"]))
        parameters = {name: found[f"parameter/{name}"] for name in head["parameters"]}
        state = cls(parameters, head["trained"])
        state._optimizer = {name: found[f"optimizer/{name}"] for name in head.get("optimizer", [])}
        for name, value in head["properties"].items():
            state.properties[name] = value
        return state

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Write a state to a file, replacing an older one completely or not at all.

        Parameters
        ----------
        state : CheckpointState
        checkpoint_uri : path
        include_optimizer_state : bool, default=False
            Whether to write moments, step and rate of the optimizer too.
        """
        source = state._optimizer_source
        optimizer = state._optimizer if source is None else source._arrays()
        if not include_optimizer_state:
            optimizer = {}
        head = {
            "parameters": [*state._values],
            "trained": state._trained,
            "properties": dict(iter(state.properties)),
            "optimizer": [*optimizer],
        }
        arrays = {f"parameter/{name}": value for name, value in state._values.items()}
        arrays |= {f"optimizer/{name}": value for name, value in optimizer.items()}
        contents = io.BytesIO()
        np.savez(contents, head=np.array(json.dumps(head)), **arrays)  # type: ignore[arg-type]
        write_file(checkpoint_uri, contents.getvalue())
