#ifndef ONNXGRAD_RUNTIME_PLAN_CACHE_H_
#define ONNXGRAD_RUNTIME_PLAN_CACHE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/executor.h"
#include "runtime/graph_file.h"
#include "runtime/program.h"

namespace onnxgrad::runtime {

/// A folder of graphs that are ready to be planned, shared by any number of processes: a file for
/// each program, shapes, options, processor and build of this library, named after a checksum of
/// all these. What is read is checked against accidents, not against malice: the folder must be the
/// user's own. A file that is damaged, or not one of these, is ignored with a warning; so is a
/// folder that cannot be written to. The oldest files are removed when there are very many.
class PlanCache {
 public:
  using Warn = std::function<void(const std::string& message)>;

  /// Makes the folder if there is none.
  PlanCache(std::string folder, Warn warn);

  /// What `compile` makes of these arguments. `max_arena_bytes`: nullopt if plans are not made to
  /// fit.
  static std::string key_of(const Program& program, const std::vector<FeedInfo>& feeds,
                            const Engine& engine, const ExecutorOptions& options,
                            std::optional<std::int64_t> max_arena_bytes);

  std::optional<PlannedGraph> read(const std::string& key, const Program& program);
  void write(const std::string& key, std::string_view graph);
  /// A file is not what it should be.
  void warn_of(const std::string& key, const std::string& why);

 private:
  std::string path_of(const std::string& key) const;
  void remove_oldest();

  std::string folder_;
  Warn warn_;
  bool is_usable_ = true;
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_PLAN_CACHE_H_
