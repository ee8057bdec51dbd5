#include "train/tools/engine.h"

#include <fmt/format.h>

#include <atomic>

#include "autodiff/gradient_at.h"
#include "base/memory_budget.h"
#include "device/cpu_options.h"
#include "device/thread_count.h"
#include "onnx/inference.h"
#include "onnx/operator_table.h"
#include "onnxgrad/option_error.h"
#include "ops/builtin.h"
#include "runtime/evaluator.h"
#include "runtime/executor.h"
#include "train/tools/devices.h"

namespace onnxgrad::train {
namespace {

/// The public switch, which is one of the process (onnxgrad/amx.h).
std::atomic<bool> amx_for_float32 = true;

device::CpuOptions cpu_options() { return {.amx_for_float32 = amx_for_float32}; }

}  // namespace

void use_amx_for_float32(bool on) { amx_for_float32 = on; }
bool amx_computes_float32() { return cpu_options().computes_float32_by_amx(); }

const opdef::OpRegistry& builtin_ops() {
  static const opdef::OpRegistry ops = [] {
    opdef::OpRegistry registry;
    ops::register_builtin_ops(registry);
    return registry;
  }();
  return ops;
}

const runtime::Engine& cpu_engine() {
  static const opdef::KernelRegistry kernels = [] {
    opdef::KernelRegistry registry;
    ops::register_builtin_cpu_kernels(registry);
    return registry;
  }();
  static const runtime::Engine engine{
      .ops = builtin_ops(), .kernels = kernels, .make_inferer = onnx_io::make_type_inferer};
  return engine;
}

ir::Node complete_node(const ir::Node& node) { return builtin_ops().complete(node); }

const opdef::Evaluator& builtin_evaluator() {
  static const runtime::Engine engine = [] {
    runtime::Engine made = cpu_engine();
    made.cpu.amx_for_float32 = false;  // constants have the same bits with either switch
    return made;
  }();
  static const runtime::KernelEvaluator evaluator(engine);
  return evaluator;
}

ir::Model to_working_copy(const onnx_io::FileModel& file, const onnx_io::OperatorTable* operators) {
  const opdef::OpRegistry& ops = builtin_ops();
  return onnx_io::to_internal(file, ops, &builtin_evaluator(), {.table = operators},
                              [&](ir::GraphBuilder& g, const opdef::GradientAt& request) {
                                return autodiff::add_gradient_at(g, ops, request, operators);
                              });
}

int thread_count(const EngineOptions& options) {
  if (options.threads < 0) {
    throw OptionError({.what = fmt::format("{} threads were requested", options.threads),
                       .hint = "Pass 0 for the number of cores, or a positive number."});
  }
  return options.threads > 0 ? options.threads : device::available_threads();
}

void add_memory(MemoryReport& report, const runtime::Executor& executor) {
  const runtime::MemoryUse use = executor.memory();
  report.device = executor.device().name();
  report.activations += use.arena - use.scratch + use.blocks + use.slots;
  report.scratch += use.scratch + use.cells;
  report.constants += use.constants;
  report.host += use.on_host;
  report.dynamic += use.dynamic;
  report.recomputed_values += use.recomputed_values;
  report.recomputed_bytes += use.recomputed_bytes;
  report.recomputed_flops += use.recomputed_flops;
}

namespace {

opdef::Numerics numerics_of(const EngineOptions& options) {
  if (options.math != "float32" && options.math != "tf32") {
    throw OptionError(
        {.what = fmt::format("math: '{}', expected 'float32' or 'tf32'", options.math),
         .hint = "Leave it out for float32. For 16 bits use precision='bf16'."});
  }
  return {.is_deterministic = options.deterministic, .allows_tf32 = options.math == "tf32"};
}

// The engine of the device, or a copy with these numerics.
std::shared_ptr<const runtime::Engine> engine_with(std::string_view device,
                                                   const opdef::Numerics& numerics) {
  struct Changed {
    std::shared_ptr<const runtime::Engine> original;  // owns what the copy refers to
    runtime::Engine engine;
  };
  std::shared_ptr<const runtime::Engine> engine = engine_on(device);
  const opdef::Numerics& own = engine->numerics;
  if (numerics.is_deterministic == own.is_deterministic &&
      numerics.allows_tf32 == own.allows_tf32) {
    return engine;
  }
  const auto changed = std::make_shared<Changed>(Changed{.original = engine, .engine = *engine});
  changed->engine.numerics = numerics;
  return {changed, &changed->engine};
}

}  // namespace

Backend backend_for(const EngineOptions& options) {
  Backend result{.engine = engine_with(options.device, numerics_of(options)),
                 .options = {.threads = thread_count(options),
                             .seed = options.seed,
                             .fuse = options.fuse,
                             .cpu = cpu_options()}};
  if (options.memory_limit_bytes > 0) {
    result.options.budget = std::make_shared<base::MemoryBudget>(options.memory_limit_bytes);
    result.options.fits_budget = true;
  }
  return result;
}

}  // namespace onnxgrad::train
