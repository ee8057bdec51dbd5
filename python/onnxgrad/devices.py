"""The devices that sessions can compute on."""

from __future__ import annotations

import os
from typing import NamedTuple

from onnxgrad import _core
from onnxgrad.base.checks import path_text

__all__ = ["Device", "available", "load_plugin"]


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
