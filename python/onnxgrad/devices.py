"""The devices that sessions can compute on, and arrays in their memory."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from onnxgrad import _core
from onnxgrad.base.checks import path_text
from onnxgrad.data.arrays import to_native
from onnxgrad.data.device_arrays import DeviceArray

__all__ = ["Device", "DeviceArray", "available", "load_plugin", "to_device"]


class Device(NamedTuple):
    """A device.

    Attributes
    ----------
    name : str
        Value of the option ``device`` of sessions: ``"cpu"``, ``"simulated:0"``.
    origin : str
        ``"built in"``, or the file of the plugin.
    """

    name: str
    origin: str


def available() -> list[Device]:
    """Return the devices of this process, the CPU first.

    Plugins that the environment variable ``ONNXGRAD_DEVICE_PLUGINS`` lists, separated by colons,
    are loaded first.

    Raises
    ------
    DeviceError
        If a plugin cannot be loaded; see `load_plugin`.
    """
    return [Device(name, origin) for name, origin in _core.devices()]


def to_device(array: Any, device: str) -> DeviceArray:
    """Return a copy of an array in the memory of a device.

    Parameters
    ----------
    array : array
        That of any library.
    device : str
        One of `available`.

    Raises
    ------
    DeviceError
        There is no such device, or no memory for it.
    DataError
        An array of strings.
    """
    return DeviceArray(_core.device_tensor_of(to_native(array, "array"), device))


def load_plugin(path: str | os.PathLike[str]) -> None:
    """Load the shared library of a device plugin, which stays in the process.

    It runs code of its author, as every library does.

    Raises
    ------
    DeviceError
        If the file is not there, is no plugin, was built for another version of onnxgrad, or its
        device has the name of another one.
    """
    _core.load_device_plugin(path_text("path", path))
