#ifndef ONNXGRAD_TRAIN_SESSION_BATCH_CHECK_H_
#define ONNXGRAD_TRAIN_SESSION_BATCH_CHECK_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnxgrad/losses.h"
#include "runtime/input_sizes.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {

/// Checks batches in memory before they are run: targets that the loss can read, and one target or
/// weight for each row.
class BatchCheck {
 public:
  /// `warn`: see EngineOptions::warn.
  explicit BatchCheck(runtime::SizeWatch::Warn warn) : sizes_(std::move(warn)) {}

  /// The step that batches are for.
  struct Step {
    const ir::Model& working;
    const LossInfo& loss;
    const std::string& sample_weight;
    const Backend& backend;
  };
  /// `fed`: in the order of `ports`. Throws: DataError, ShapeError.
  void check(const Step& step, std::span<const runtime::Port> ports,
             std::span<const Tensor* const> fed);

 private:
  void check_rows(const Step& step, std::span<const runtime::Port> ports,
                  std::span<const Tensor* const> fed);
  std::optional<std::int64_t> rows_of_scores(const Step& step, const LossInfo& loss,
                                             std::span<const runtime::Port> ports,
                                             const std::vector<Dims>& dims);

  runtime::SizeWatch sizes_;
  struct ScoreRows {
    std::string scores = {};
    std::vector<Dims> dims = {};  // of the inputs
    std::optional<std::int64_t> rows = {};
  };
  ScoreRows score_rows_;  // the last ones
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_BATCH_CHECK_H_
