#include "train/engine.h"

#include "onnx/inference.h"
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

const opdef::Evaluator& builtin_evaluator() {
  static const runtime::KernelEvaluator evaluator(builtin_engine());
  return evaluator;
}

}  // namespace onnxgrad::train
