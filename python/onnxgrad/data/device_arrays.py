"""Arrays in the memory of devices, of sessions and of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.data.native import dtype_named, from_native
from onnxgrad.errors import DataError

__all__ = ["DeviceArray", "detached", "device_tensor", "result"]

_HOST = (1, 0)


class DeviceArray:
    """A dense array in the memory of a device: a result of ``to_host=False``.

    Sessions on the same device read it where it is, those on others copy it. Libraries with DLPack
    share it (``torch.from_dlpack(array)``). It lives as long as anything that shares it, also when
    the session is gone. The work that computes it may not be done when it is returned: whatever
    reads it waits, and raises what the work raised.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    device : str
        ``"cpu"``, ``"simulated:0"``.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> session = og.InferenceSession(linear_model, device="cpu")
    >>> (y,) = session.run(None, {"X": np.ones((3, 2), np.float32)}, to_host=False)
    >>> y
    DeviceArray(shape=(3, 1), dtype=float32, device='cpu')
    >>> y.numpy().shape
    (3, 1)
    """

    __slots__ = ("__weakref__", "_core")
    __array_priority__ = 100  # operators of NumPy arrays do not take it apart

    def __init__(self, core: _core.DeviceTensor) -> None:
        self._core = core

    @property
    def shape(self) -> tuple[int, ...]:  # noqa: D102
        return tuple(self._core.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._core.shape)

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return dtype_named(self._core.dtype)

    @property
    def device(self) -> str:  # noqa: D102
        return self._core.device

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy in host memory."""
        values = from_native(self._core.to_host())
        return values.copy() if self.device == "cpu" else values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"a view of an array on '{self.device}' is impossible: copy it")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._core.dlpack_device
        return kind, number

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule of DLPack, of version 1 if `max_version` allows it.

        The elements are there for work that is submitted to `stream` from now on; without a
        stream, when the call returns; with -1 nothing waits.

        Raises
        ------
        BufferError
            `dl_device` is neither its device nor the host, or `copy` is False for the host; or the
            type or the read-only elements need a newer DLPack.
        """
        own = self.__dlpack_device__()
        wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        versioned = max_version is not None and max_version[0] >= 1
        if wanted != own:
            if wanted != _HOST or copy is False:
                raise BufferError(f"an array on '{self.device}' can only be copied to the host")
            values = _core.device_tensor_of(self._core.to_host(), "cpu")
            return values.to_capsule(versioned)
        core = self._core.copy() if copy else self._core
        if stream is None:
            core.wait()
        elif stream != -1:
            core.wait_in(int(stream))
        return core.to_capsule(versioned)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of rank 0 has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device!r})"


def result(tensor: _core.DeviceTensor, *, to_host: bool) -> Any:
    """Return a result of the extension: on the host, or where it is; strings are on the host."""
    if not to_host and tensor.dtype != "string":
        return DeviceArray(tensor)
    return from_native(tensor.to_host())


def detached(value: Any) -> Any:
    """Return an array that tracks gradients as one that does not: its numbers are read."""
    if getattr(value, "requires_grad", False) is True and hasattr(value, "detach"):
        return value.detach()
    return value


def device_tensor(value: Any, name: str) -> _core.DeviceTensor | None:
    """Return an array in the memory of a device that sessions use for the extension.

    None: it is somewhere else. It is not copied.

    Raises
    ------
    DataError
        Its library refuses, or it has a type or an order of elements that onnxgrad lacks.
    """
    if isinstance(value, DeviceArray):
        return value._core
    value = detached(value)
    if not hasattr(value, "__dlpack_device__") or not hasattr(value, "__dlpack__"):
        return None
    kind, number = value.__dlpack_device__()
    memory = (int(kind), int(number))
    if memory[0] == _HOST[0] or not _core.has_dlpack_device(memory):
        return None
    stream = _core.dlpack_stream(memory)
    try:
        try:
            capsule = value.__dlpack__(stream=stream, max_version=(1, 1))
        except TypeError:  # of DLPack before 1.0
            capsule = value.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            what=f"'{name}': a {type(value).__name__} that its library does not share",
            value=name,
            detail=str(error),
            hint="Detach it from its gradients and make it contiguous, or copy it to the host.",
        ) from error
    try:
        return _core.device_tensor_from_capsule(capsule)
    except DataError as error:
        raise DataError(what=f"'{name}': {error.what}", value=name, hint=error.hint) from None
