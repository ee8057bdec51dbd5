"""Inputs and outputs bound to a session, as in onnxruntime; arrays are read in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.compat.onnxruntime.values import OrtValue, array_of

__all__ = ["IOBinding"]


class IOBinding:
    """The inputs and outputs of a run.

    Parameters
    ----------
    output_names : list of str
        All outputs of the session.
    """

    def __init__(self, output_names: Sequence[str]) -> None:
        self._known = list(output_names)
        self._inputs: dict[str, np.ndarray[Any, Any]] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._values: list[OrtValue] = []

    @property
    def _iobinding(self) -> IOBinding:
        return self

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray[Any, Any]) -> None:
        """Bind an array to an input."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an OrtValue of either library to an input."""
        self._inputs[name] = array_of(ortvalue)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind host memory to an input; it must remain valid while it is bound.

        Raises
        ------
        RuntimeError
            The device is not the host.
        """
        if str(device_type).lower() != "cpu" or device_id != 0:
            raise RuntimeError(f"Device {device_type!r}:{device_id} is not available; use 'cpu'.")
        dtype = np.dtype(element_type)
        size = int(np.prod(tuple(shape))) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(buffer_ptr)
        self._inputs[name] = np.frombuffer(memory, dtype).reshape(tuple(shape))

    def bind_output(self, name: str, *device: Any, **options: Any) -> None:
        """Request an output in new memory.

        Raises
        ------
        ValueError
            An unknown name.
        """
        del device, options
        self._bind(name, None)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Request an output in the memory of an OrtValue of the same shape and type."""
        self._bind(name, ortvalue)

    def _bind(self, name: str, value: OrtValue | None) -> None:
        if name not in self._known:
            raise ValueError(f"There is no output {name!r}, only {self._known}.")
        self._outputs[name] = value

    def clear_binding_inputs(self) -> None:
        """Remove the inputs."""
        self._inputs = {}

    def clear_binding_outputs(self) -> None:
        """Remove the outputs."""
        self._outputs = {}

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self._values)

    def copy_outputs_to_cpu(self) -> list[np.ndarray[Any, Any]]:
        """Return the outputs of the last run as arrays."""
        return [value.numpy() for value in self._values]

    def run(self, session: Any) -> None:
        """Run a session on the inputs and store the outputs."""
        names = list(self._outputs)
        found = session.run(names, self._inputs)
        self._values = []
        for name, array in zip(names, found, strict=True):
            bound = self._outputs[name]
            if bound is not None:
                bound.update_inplace(array)
            self._values.append(bound or OrtValue(np.asarray(array)))
