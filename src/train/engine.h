#ifndef ONNXGRAD_TRAIN_ENGINE_H_
#define ONNXGRAD_TRAIN_ENGINE_H_

#include "runtime/executor.h"

namespace onnxgrad::train {

/// All operators and CPU kernels of src/ops; filled at the first call, read-only afterwards.
/// Thread-safe.
const runtime::Engine& builtin_engine();

/// Computes single nodes with those kernels: for constants. Thread-safe.
const opdef::Evaluator& builtin_evaluator();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ENGINE_H_
