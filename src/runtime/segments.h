#ifndef ONNXGRAD_RUNTIME_SEGMENTS_H_
#define ONNXGRAD_RUNTIME_SEGMENTS_H_

#include "runtime/plan.h"

namespace onnxgrad::runtime {

/// Divides the steps of a plan for a device other than the host into segments, as long as possible.
void add_segments(Plan& plan);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_SEGMENTS_H_
