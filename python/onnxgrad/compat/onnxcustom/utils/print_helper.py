"""Short descriptions of OrtValues."""

from __future__ import annotations

from typing import Any

from onnxgrad.compat.onnxruntime.values import array_of

__all__ = ["str_ortvalue"]


def str_ortvalue(ov: Any) -> str:
    """Return device, shape, type and the first and last elements of a value in one line."""
    value = getattr(ov, "_ortvalue", ov)
    array = array_of(value).ravel()
    shown = array.tolist()
    if len(shown) > 10:
        text = f"[{', '.join(map(str, [*shown[:5], '...', *shown[-5:]]))}]"
    else:
        text = str(shown)
    device = value.device_name() if hasattr(value, "device_name") else "cpu"
    shape = value.shape() if callable(value.shape) else list(value.shape)
    return f"device={device.capitalize()} dtype={array.dtype} shape={tuple(shape)!r} value={text}"
