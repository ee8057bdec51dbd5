#ifndef ONNXGRAD_TRAIN_ENGINE_H_
#define ONNXGRAD_TRAIN_ENGINE_H_

#include <memory>
#include <utility>

#include "ir/graph.h"
#include "onnx/model_io.h"
#include "onnxgrad/inference_session.h"
#include "opdef/custom_gradients.h"
#include "runtime/engine.h"
#include "runtime/executor.h"

namespace onnxgrad::train {

/// All operators of src/ops; filled at the first call, read-only afterwards. Thread-safe.
const opdef::OpRegistry& builtin_ops();

/// The CPU with the kernels of src/ops, for what is computed before a session chooses its device:
/// constants, and trials of a graph. Thread-safe.
const runtime::Engine& cpu_engine();

/// Computes single nodes on the CPU: for constants. Thread-safe.
const opdef::Evaluator& builtin_evaluator();

/// The working copy of a file, in the internal opset, with the operators that users registered: the
/// graph that everything after loading reads. Throws: see onnx_io::to_internal(). Thread-safe.
ir::Model to_working_copy(const onnx_io::FileModel& file,
                          const onnx_io::OperatorTable* operators = nullptr);

/// A copy of `node` with the defaults of its attributes.
ir::Node complete_node(const ir::Node& node);

/// Number of threads that the options ask for, at least 1. Throws: OptionError.
int thread_count(const EngineOptions& options);

/// Whether backend_for() lets products of float32 use AMX from now on, where there is one.
/// Thread-safe.
void use_amx_for_float32(bool on);
bool amx_computes_float32();

/// An engine, and the options of the executors of a session on it.
struct Backend {
  std::shared_ptr<const runtime::Engine> engine;
  runtime::ExecutorOptions options = {};

  /// An executor for a graph. Throws: see runtime::Executor.
  runtime::Executor executor(std::shared_ptr<const ir::Model> model) const {
    return {std::move(model), *engine, options};
  }
};

/// The backend that options ask for. Throws: OptionError; DeviceError (see engine_on()).
Backend backend_for(const EngineOptions& options);

/// Adds what an executor holds besides its state.
void add_memory(MemoryReport& report, const runtime::Executor& executor);

/// A file, its working copy, and the gradients that users registered; all immutable and shared.
struct Source {
  onnx_io::FileModel file;
  std::shared_ptr<const ir::Model> working;
  std::shared_ptr<const opdef::CustomGradients> gradients = {};
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ENGINE_H_
