#ifndef ONNXGRAD_API_MEASURES_H_
#define ONNXGRAD_API_MEASURES_H_

#include "onnxgrad/profile.h"
#include "runtime/executor.h"

namespace onnxgrad::api {

/// Measurements of `executor` since profiling began.
Profile profile_of(const runtime::Executor& executor);

}  // namespace onnxgrad::api

#endif  // ONNXGRAD_API_MEASURES_H_
