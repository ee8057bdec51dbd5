"""Devices, execution providers and OrtValues."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.compat.onnxruntime.values import (
    OrtDevice,
    OrtMemType,
    OrtValue,
    device_types,
    providers,
)
from onnxgrad.devices import available

__all__ = [
    "device_to_providers",
    "get_ort_device",
    "get_ort_device_from_session",
    "get_ort_device_type",
    "numpy_to_ort_value",
    "ort_device_to_string",
    "provider_to_device",
]


def provider_to_device(provider_name: str) -> str:
    """Return ``"cpu"``, ``"cuda"`` or a plugin's device for the name of an execution provider."""
    known = providers()
    if provider_name not in known:
        raise ValueError(f"Unexpected value for provider_name={provider_name!r}.")
    return known[provider_name]


def get_ort_device_type(device: Any) -> int:
    """Return the type number of a device, given as a name or an object with a name."""
    name = device if isinstance(device, str) else device.device_name()
    return get_ort_device(name.lower()).device_type()


def get_ort_device(device: str | OrtDevice) -> OrtDevice:
    """Return a device by name: ``"cpu"``, ``"cuda"``, ``"gpu"``, ``"cuda:1"``, a plugin's."""
    if isinstance(device, OrtDevice):
        return device
    name, _, index = device.partition(":")
    types = {**device_types(), "gpu": OrtDevice.cuda()}
    if name not in types or not (index or "0").isdigit():
        raise ValueError(f"Unable to interpret string {device!r} as a device.")
    return OrtDevice(types[name], OrtMemType.DEFAULT, int(index or 0))


def ort_device_to_string(device: OrtDevice) -> str:
    """Return the name of a device; the inverse of `get_ort_device`."""
    names = {number: name for name, number in device_types().items()}
    if device.device_type() not in names:
        raise NotImplementedError(f"Unable to guess device for {device!r}.")
    index = device.device_id()
    return names[device.device_type()] + (f":{index}" if index else "")


def numpy_to_ort_value(arr: np.ndarray[Any, Any], device: Any = None) -> OrtValue:
    """Convert an array to an OrtValue, without a copy.

    It stays in host memory: sessions on a device of this process copy it.
    """
    wanted = get_ort_device("cpu" if device is None else device)
    names = [name for name, number in device_types().items() if number == wanted.device_type()]
    is_there = bool({*names} & {one.name.partition(":")[0] for one in available()})
    return OrtValue.ortvalue_from_numpy(arr, "cpu" if is_there else wanted)


def device_to_providers(device: str | OrtDevice) -> list[Any]:
    """Return the execution providers of a device, the preferred one first.

    The one of a device with another number than 0 has the option ``device_id``.
    """
    kind, _, number = ort_device_to_string(get_ort_device(device)).partition(":")
    own = next(name for name, known in providers().items() if known == kind)
    if number:
        return [(own, {"device_id": int(number)}), "CPUExecutionProvider"]
    return [*dict.fromkeys([own, "CPUExecutionProvider"])]


def get_ort_device_from_session(sess: Any) -> OrtDevice:
    """Return the device of a session: that of its first provider, or the host."""
    providers = sess.get_providers() if hasattr(sess, "get_providers") else ["CPUExecutionProvider"]
    return get_ort_device(provider_to_device(providers[0]))
