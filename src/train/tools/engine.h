#ifndef ONNXGRAD_TRAIN_ENGINE_H_
#define ONNXGRAD_TRAIN_ENGINE_H_

#include <memory>

#include "onnx/model_io.h"
#include "onnxgrad/inference_session.h"
#include "opdef/custom_gradients.h"
#include "runtime/executor.h"

namespace onnxgrad::train {

/// All operators and CPU kernels of src/ops; filled at the first call, read-only afterwards.
/// Thread-safe.
const runtime::Engine& builtin_engine();

/// Computes single nodes with the kernels of builtin_engine(), for constants. Thread-safe.
const opdef::Evaluator& builtin_evaluator();

/// The working copy of a file for builtin_engine(), with the operators that users registered; see
/// onnx_io::to_internal().
ir::Model to_working_copy(const onnx_io::FileModel& file,
                          const onnx_io::OperatorTable* operators = nullptr);

/// A copy of `node` with the defaults of its attributes.
ir::Node complete_node(const ir::Node& node);

/// Number of threads that the options ask for, at least 1. Throws: OptionError.
int thread_count(const EngineOptions& options);

/// The engine options for an executor. Throws: OptionError; DeviceError (unknown device,
/// listing the available ones).
runtime::ExecutorOptions executor_options(const EngineOptions& options);

/// A file, its working copy, and the gradients that users registered; all immutable and shared.
struct Source {
  onnx_io::FileModel file;
  std::shared_ptr<const ir::Model> working;
  std::shared_ptr<const opdef::CustomGradients> gradients = {};
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ENGINE_H_
