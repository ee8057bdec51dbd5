#ifndef ONNXGRAD_DEVICE_CUDA_DNN_PLAN_H_
#define ONNXGRAD_DEVICE_CUDA_DNN_PLAN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/context.h"
#include "device/cuda/dnn_graph.h"

// Plans of cuDNN's graphs. Its heuristics propose engines for a graph; those that may compute it
// are selected by their notes and timed once on the card. The fastest one's plan is kept as JSON
// beside the images of kernels, with what cuDNN has compiled for it, so that later processes make
// it without asking or compiling.

namespace onnxgrad::device::cuda {

/// Engines that may compute a graph.
struct DnnRule {
  bool is_strict = true;  ///< none on tensor cores, which round the factors of float32
  bool is_deterministic = true;
};

class DnnPlan {
 public:
  using Build = std::function<void(DnnGraph& graph)>;

  /// The plan of the fastest engine. nullptr if cuDNN is absent or no engine computes the graph;
  /// `declined` is then the reason. `key` describes the graph: equal keys, equal graphs, of which
  /// there is one plan on a card.
  static std::shared_ptr<const DnnPlan> of(const std::shared_ptr<Context>& context,
                                           const std::string& key, const DnnRule& rule,
                                           const Build& build, std::string& declined);

  /// `addresses`: of the tensors in memory, aligned to 16 bytes. Throws: DeviceError.
  void run(std::span<const std::uint64_t> addresses, std::uint64_t workspace, Handle stream) const;
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  /// Time of one run when it was chosen.
  double time_us() const { return time_us_; }

 private:
  friend class DnnPlanner;
  DnnPlan() = default;
  int execute(Handle plan, std::span<const std::uint64_t> addresses, std::uint64_t workspace,
              Handle stream) const;

  std::shared_ptr<Context> context_;
  std::vector<std::int64_t> uids_;
  std::deque<float> constants_;
  Owned plan_;
  std::int64_t workspace_bytes_ = 0;
  double time_us_ = 0;
};

/// The fate of a graph's plan without a card.
enum class DnnPlanTest : std::uint8_t {
  kNone,     ///< no engine makes one
  kMade,     ///< its kernel is compiled, but no driver loads it
  kKept,     ///< JSON makes the same plan again
  kChanged,  ///< JSON makes none, or another one
};

/// Makes a plan of a graph for a card that is described by its properties, as JSON. Engines that
/// are compiled at run time want a libcuda.so.1. Throws: DeviceError.
DnnPlanTest test_dnn_plan(const std::string& device_json, const DnnRule& rule,
                          const DnnPlan::Build& build);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_DNN_PLAN_H_
