"""Devices, execution providers and OrtValues."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.compat.onnxruntime.values import DEVICES, OrtDevice, OrtMemType, OrtValue

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
    """Return ``"cpu"`` or ``"cuda"`` for the name of an execution provider."""
    if provider_name not in DEVICES:
        raise ValueError(f"Unexpected value for provider_name={provider_name!r}.")
    return DEVICES[provider_name]


def get_ort_device_type(device: Any) -> int:
    """Return the type number of a device, given as a name or an object with a name."""
    name = device if isinstance(device, str) else device.device_name()
    return get_ort_device(name.lower()).device_type()


def get_ort_device(device: str | OrtDevice) -> OrtDevice:
    """Return the device of that name: ``"cpu"``, ``"cuda"``, ``"gpu"``, ``"cuda:1"``."""
    if isinstance(device, OrtDevice):
        return device
    name, _, index = device.partition(":")
    types = {"cpu": OrtDevice.cpu(), "cuda": OrtDevice.cuda(), "gpu": OrtDevice.cuda()}
    if name not in types or not (index or "0").isdigit():
        raise ValueError(f"Unable to interpret string {device!r} as a device.")
    return OrtDevice(types[name], OrtMemType.DEFAULT, int(index or 0))


def ort_device_to_string(device: OrtDevice) -> str:
    """Return the name of a device; the inverse of `get_ort_device`."""
    names = {OrtDevice.cpu(): "cpu", OrtDevice.cuda(): "cuda"}
    if device.device_type() not in names:
        raise NotImplementedError(f"Unable to guess device for {device!r}.")
    index = device.device_id()
    return names[device.device_type()] + (f":{index}" if index else "")


def numpy_to_ort_value(arr: np.ndarray[Any, Any], device: Any = None) -> OrtValue:
    """Convert an array to an OrtValue, without a copy."""
    host = "cpu" if device is None else get_ort_device(device)
    return OrtValue.ortvalue_from_numpy(arr, host)


def device_to_providers(device: str | OrtDevice) -> list[str]:
    """Return the execution providers of a device, the preferred one first."""
    kind = get_ort_device(device).device_type()
    if kind == OrtDevice.cpu():
        return ["CPUExecutionProvider"]
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def get_ort_device_from_session(sess: Any) -> OrtDevice:
    """Return the device of a session: that of its first provider, or the host."""
    providers = sess.get_providers() if hasattr(sess, "get_providers") else ["CPUExecutionProvider"]
    return get_ort_device(provider_to_device(providers[0]))
