"""Tensors and devices under onnxruntime's names: thin wrappers of NumPy arrays, without copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx.helper

from onnxgrad.data.arrays import as_numpy
from onnxgrad.devices import available
from onnxgrad.errors import DeviceError

__all__ = [
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "OrtValueVector",
    "array_of",
    "as_ort_value",
    "available_providers",
    "device_types",
    "providers",
    "tensor_type",
    "write_into",
]

_PROVIDER = "ExecutionProvider"
_FIRST_TYPE = 64  # of the devices of plugins, which have no number in onnxruntime
# Attributes of arrays and tables of other libraries, which have one of these.
_PROTOCOLS = ("__dlpack__", "__arrow_c_stream__", "__arrow_c_array__", "with_format")
_TYPE_NAMES = {"float32": "float", "float64": "double", "object": "string"}


def providers() -> dict[str, str]:
    """Return the devices of execution providers: onnxruntime's, and those of plugins."""
    known = {f"CPU{_PROVIDER}": "cpu", f"CUDA{_PROVIDER}": "cuda"}
    others = (name for name in _plugin_devices() if name != "cuda")
    return known | {f"{name.title().replace('_', '')}{_PROVIDER}": name for name in others}


def available_providers() -> list[str]:
    """Return the execution providers of the devices of this process, the preferred one first."""
    there = {"cpu", *_plugin_devices()}
    return [name for name, device in reversed(providers().items()) if device in there]


def device_types() -> dict[str, int]:
    """Return the type numbers of devices by name."""
    plugins = (name for name in _plugin_devices() if name != "cuda")
    types = {"cpu": OrtDevice.cpu(), "cuda": OrtDevice.cuda()}
    return types | {name: _FIRST_TYPE + i for i, name in enumerate(plugins)}


def _plugin_devices() -> list[str]:
    names = [device.name.partition(":")[0] for device in available()]
    return [*dict.fromkeys(name for name in names if name != "cpu")]


class OrtMemType:
    """Kinds of memory of a device."""

    DEFAULT = 0
    CPU_INPUT = -2
    CPU_OUTPUT = -1


class OrtDevice:
    """A device: its type, kind of memory and number.

    Parameters
    ----------
    device_type : int
        ``OrtDevice.cpu()`` or ``OrtDevice.cuda()``.
    mem_type : int, default=OrtMemType.DEFAULT
    device_id : int, default=0
    """

    def __init__(
        self, device_type: int = 0, mem_type: int = OrtMemType.DEFAULT, device_id: int = 0
    ) -> None:
        self._key = (int(device_type), int(mem_type), int(device_id))

    @staticmethod
    def cpu() -> int:
        """Return the device type of the host."""
        return 0

    @staticmethod
    def cuda() -> int:
        """Return the device type of NVIDIA's GPUs."""
        return 1

    @staticmethod
    def fpga() -> int:
        """Return the device type of FPGAs."""
        return 2

    @staticmethod
    def default_memory() -> int:
        """Return the default kind of memory."""
        return OrtMemType.DEFAULT

    @staticmethod
    def make(name: str, device_id: int = 0) -> OrtDevice:
        """Return the device of that name, such as ``"cpu"``."""
        types = device_types()
        if name not in types:
            raise ValueError(f"Unexpected device {name!r}, expected one of {sorted(types)}.")
        return OrtDevice(types[name], OrtMemType.DEFAULT, device_id)

    def device_type(self) -> int:
        """Return the type."""
        return self._key[0]

    def mem_type(self) -> int:
        """Return the kind of memory."""
        return self._key[1]

    def device_id(self) -> int:
        """Return the number among the devices of its type."""
        return self._key[2]

    def _get_c_device(self) -> OrtDevice:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrtDevice) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return "OrtDevice(device_type={}, mem_type={}, device_id={})".format(*self._key)


class OrtValue:
    """A tensor in host memory, with the methods of onnxruntime's OrtValue.

    Parameters
    ----------
    array : numpy.ndarray
        Shared, not copied; it must be contiguous.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"expected a NumPy array, not a {type(array).__name__}")
        self._array = array if array.flags.c_contiguous else np.ascontiguousarray(array)

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray[Any, Any],
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,  # noqa: ARG004 (there is one host memory)
    ) -> OrtValue:
        """Return a value that shares the memory of an array; the device must be the host."""
        _check_host(device_type)
        return OrtValue(numpy_obj)

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any,
        device_type: str | OrtDevice = "cpu",
        device_id: int = 0,  # noqa: ARG004
    ) -> OrtValue:
        """Return a value of that shape in new memory."""
        _check_host(device_type)
        return OrtValue(np.empty(tuple(shape), np.dtype(element_type)))

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the array itself."""
        return self._array

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type, such as ``"tensor(float)"``."""
        return tensor_type(self._array.dtype)

    def element_type(self) -> int:
        """Return ONNX's number for the element type."""
        return int(onnx.helper.np_dtype_to_tensor_dtype(self._array.dtype))

    proto_type = element_type

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def device_name(self) -> str:
        """Return ``"cpu"``."""
        return "cpu"

    def has_value(self) -> bool:
        """Return True: there is always a tensor."""
        return True

    def is_tensor(self) -> bool:
        """Return True: the value is always a tensor."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False: the value is never a sparse tensor."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return False: the value is never a sequence."""
        return False

    def tensor_size_in_bytes(self) -> int:
        """Return the size of the data in bytes."""
        return int(self._array.nbytes)

    def update_inplace(self, np_arr: np.ndarray[Any, Any]) -> None:
        """Copy the elements of an array of the same shape and type into this value."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise ValueError(f"an array {np_arr.dtype} {list(np_arr.shape)} does not fit {self!r}")
        np.copyto(self._array, np_arr)

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule that shares the memory."""
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(value: Any, is_bool_tensor: bool = False) -> OrtValue:
        """Return a value that shares the memory of an object with DLPack."""
        array = np.from_dlpack(value)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self._array, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"OrtValue({self._array.dtype}, {list(self._array.shape)})"


class OrtValueVector(list[OrtValue]):
    """A list of OrtValues; appended arrays are converted without a copy."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__(as_ort_value(value) for value in values)

    def append(self, value: Any) -> None:
        """Append a value."""
        super().append(as_ort_value(value))

    push_back = append

    def push_back_batch(self, values: Iterable[Any]) -> None:
        """Append values."""
        self.extend(as_ort_value(value) for value in values)

    def reserve(self, size: int) -> None:
        """Do nothing: lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Do nothing."""

    def dlpack_at(self, index: int) -> Any:
        """Return the capsule of one value."""
        return self[index].to_dlpack()

    def element_type_at(self, index: int) -> int:
        """Return ONNX's number for the element type of one value."""
        return self[index].element_type()

    def bool_tensor_indices(self) -> list[int]:
        """Return the indices of values of type bool."""
        return [i for i, value in enumerate(self) if value.numpy().dtype == np.bool_]

    def to_dlpacks(self, to_tensor: Any = None) -> Iterator[Any]:
        """Yield the capsules, converted by `to_tensor` if it is given."""
        for value in self:
            yield value.to_dlpack() if to_tensor is None else to_tensor(value.to_dlpack())


def tensor_type(dtype: Any) -> str:
    """Return onnxruntime's name for a tensor type, such as ``"tensor(float)"``."""
    name = np.dtype(dtype).name
    return f"tensor({_TYPE_NAMES.get(name, name)})"


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """Return the array of a value, sharing its memory if possible.

    Takes `OrtValue`, NumPy arrays, stock onnxruntime's ``OrtValue`` and ``C_OrtValue``, and arrays
    and tables of other libraries.
    """
    if isinstance(value, OrtValue):
        return value.numpy()
    if isinstance(value, np.ndarray):
        return value
    inner = getattr(value, "_ortvalue", value)  # stock onnxruntime's OrtValue holds a C_OrtValue
    if hasattr(inner, "__dlpack__") and hasattr(inner, "data_type"):
        array = np.from_dlpack(inner)
        # onnxruntime exports bool as bytes, since older versions of DLPack lack the type.
        return array.view(np.bool_) if inner.data_type() == "tensor(bool)" else array
    if any(hasattr(inner, name) for name in _PROTOCOLS):
        return as_numpy(inner, "value")
    if hasattr(inner, "numpy"):
        return np.asarray(inner.numpy())
    raise TypeError(f"a {type(value).__name__} is neither an OrtValue nor an array")


def as_ort_value(value: Any) -> OrtValue:
    """Convert a value to an `OrtValue` that shares its memory."""
    return value if isinstance(value, OrtValue) else OrtValue(array_of(value))


def write_into(value: Any, array: np.ndarray[Any, Any]) -> None:
    """Copy the elements of an array of the same shape and type into a value.

    Raises
    ------
    TypeError
        The memory of the value is read-only.
    """
    inner = getattr(value, "_ortvalue", value)
    if not isinstance(value, (OrtValue, np.ndarray)) and hasattr(inner, "update_inplace"):
        inner.update_inplace(np.ascontiguousarray(array))
        return
    target = array_of(value)
    if not target.flags.writeable:
        raise TypeError(
            f"the memory of a {type(value).__name__} {target.dtype} {list(target.shape)} is "
            "read-only. Give a NumPy array or an OrtValue of one."
        )
    np.copyto(target, array)


def _check_host(device: Any) -> None:
    is_host = (
        device == "cpu" if isinstance(device, str) else device.device_type() == OrtDevice.cpu()
    )
    if not is_host:
        raise DeviceError(
            f"device {device!r} is not available in this build of onnxgrad; use 'cpu'"
        )
