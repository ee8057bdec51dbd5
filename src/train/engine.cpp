#include "train/engine.h"

#include <fmt/format.h>

#include "base/memory_budget.h"
#include "device/cpu/thread_count.h"
#include "onnx/inference.h"
#include "onnxgrad/option_error.h"
#include "ops/builtin.h"
#include "runtime/evaluator.h"

namespace onnxgrad::train {

const runtime::Engine& builtin_engine() {
  static const opdef::OpRegistry ops = [] {
    opdef::OpRegistry registry;
    ops::register_builtin_ops(registry);
    return registry;
  }();
  static const opdef::KernelRegistry kernels = [] {
    opdef::KernelRegistry registry;
    ops::register_builtin_cpu_kernels(registry);
    return registry;
  }();
  static const runtime::Engine engine{
      .ops = ops, .kernels = kernels, .make_inferer = onnx_io::make_type_inferer};
  return engine;
}

ir::Node complete_node(const ir::Node& node) { return builtin_engine().ops.complete(node); }

const opdef::Evaluator& builtin_evaluator() {
  static const runtime::KernelEvaluator evaluator(builtin_engine());
  return evaluator;
}

runtime::ExecutorOptions executor_options(const EngineOptions& options) {
  if (options.device != "cpu") {
    throw DeviceError(
        {.what = "there is no device '" + options.device + "'", .hint = "Available: 'cpu'."});
  }
  runtime::ExecutorOptions result{.seed = options.seed, .fuse = options.fuse};
  if (options.threads < 0) {
    throw OptionError({.what = fmt::format("{} threads were requested", options.threads),
                       .hint = "Pass 0 for the number of cores, or a positive number."});
  }
  result.threads = options.threads > 0 ? options.threads : device::available_threads();
  if (options.memory_limit_bytes > 0) {
    result.budget = std::make_shared<base::MemoryBudget>(options.memory_limit_bytes);
  }
  return result;
}

}  // namespace onnxgrad::train
