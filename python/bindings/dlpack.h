#ifndef ONNXGRAD_PYTHON_BINDINGS_DLPACK_H_
#define ONNXGRAD_PYTHON_BINDINGS_DLPACK_H_

#include <nanobind/nanobind.h>

#include <cstdint>

#include "onnxgrad/device_tensor.h"

// Arrays in the memory of devices as capsules of DLPack, with and without a version
// (https://dmlc.github.io/dlpack/latest/c_api.html).

namespace onnxgrad::python {

/// Returns a capsule that shares the elements. Its deleter may run in any thread.
/// Throws: nb::buffer_error (a type that DLPack lacks; read-only elements without a version).
nanobind::object to_capsule(const DeviceTensor& tensor, bool is_versioned);

/// Takes the array of a capsule over. Throws: DataError (a type that onnxgrad lacks, elements in
/// another order than row-major, a capsule that was taken before), DeviceError (a device that no
/// session uses).
DeviceTensor from_capsule(nanobind::handle capsule);

}  // namespace onnxgrad::python

#endif  // ONNXGRAD_PYTHON_BINDINGS_DLPACK_H_
