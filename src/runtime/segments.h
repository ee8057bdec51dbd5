#ifndef ONNXGRAD_RUNTIME_SEGMENTS_H_
#define ONNXGRAD_RUNTIME_SEGMENTS_H_

#include <cstdint>

#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// Divides the steps of a plan for a device other than the host into segments, as long as possible,
/// with the copies between them: a value is copied to the host when a kernel there reads it first,
/// and back when the device reads what such a kernel has computed.
void add_segments(Plan& plan);

/// Bytes that a run copies between device and host, without inputs and results.
std::int64_t transferred_bytes(const Plan& plan);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_SEGMENTS_H_
