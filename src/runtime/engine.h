#ifndef ONNXGRAD_RUNTIME_ENGINE_H_
#define ONNXGRAD_RUNTIME_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu_options.h"
#include "device/device.h"
#include "ir/builder.h"
#include "ir/graph.h"
#include "opdef/kernel.h"
#include "opdef/packed_constants.h"
#include "opdef/registry.h"

// The parts and options of an engine, with which plans are made.

namespace onnxgrad::runtime {

class Executor;
class TailCache;

/// The parts of the engine; outlives every Executor.
struct Engine {
  const opdef::OpRegistry& ops;
  const opdef::KernelRegistry& kernels;
  /// onnx_io::make_type_inferer
  std::unique_ptr<ir::TypeInferer> (*make_inferer)(const ir::Model& model);
  device::Device& device = device::cpu();
  /// The CPU's, for what is computed when a plan is made; nullptr: same as `kernels`.
  const opdef::KernelRegistry* host_kernels = nullptr;
  /// Features of the CPU that kernels may use.
  device::CpuOptions cpu = {};
  opdef::Numerics numerics = {};

  const opdef::KernelRegistry& on_host() const { return host_kernels ? *host_kernels : kernels; }
};

struct ExecutorOptions {
  int threads = 1;
  std::uint64_t seed = 0;
  std::shared_ptr<base::MemoryBudget> budget = nullptr;  ///< nullptr: the current one
  /// Plans are made to fit into what is left of the budget, by computing values again.
  bool fits_budget = false;
  /// Memory that its owner counts: constants in it are not in memory().
  std::string_view counted_elsewhere = {};
  /// How many plans are kept, for input shapes and for tails (data-dependent shapes) each: the most
  /// recently used ones.
  std::size_t max_cached_plans = 64;
  bool fuse = true;                            ///< false: one kernel per node, for debugging
  std::optional<device::CpuOptions> cpu = {};  ///< instead of the engine's
  /// For an executor that is only run by run_keeping() or run_owning(): the block of memory,
  /// numbered from 0, that each of outputs() is computed into.
  std::vector<std::size_t> output_blocks = {};
  /// Inputs by number whose values plans may be compiled for: small integers that determine shapes.
  std::vector<std::size_t> shape_inputs = {};
  /// The cache of the executor that this one runs a body for: their tails are counted together.
  std::shared_ptr<TailCache> tails = nullptr;
  /// Keeps constant operands of products in the order in which these read them, which takes as much
  /// memory again: for models that only run. nullptr: products read constants where they are.
  std::shared_ptr<opdef::PackedConstants> packed = nullptr;
  /// Where the work goes; nullptr: to a separate stream. Executors that read each other's state
  /// share one.
  std::shared_ptr<device::Stream> stream = nullptr;
  /// Its state, memory and values, becomes this executor's if it has the same names and types, and
  /// that one is not run anymore. Used while the executor is made.
  const Executor* state_of = nullptr;
  /// The other workers of a training, for collective operators; they outlive the executor. nullptr:
  /// one worker, for which these operators are their bodies.
  opdef::Collectives* collectives = nullptr;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_ENGINE_H_
