#include "train/session/batch_check.h"

#include <algorithm>

#include "runtime/executor.h"
#include "train/data/targets.h"
#include "train/graphs/training_graph.h"
#include "train/losses/losses.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using runtime::Port;

void check_target(const LossInfo& loss, const std::string& port, const Tensor& tensor) {
  const LossInfo* info = find_target(loss, port);
  if (info == nullptr) return;
  check_class_numbers(*info, tensor, port);
  if (has_soft_targets(info->function)) check_range(*info, tensor, port);
  if (tensor.dims().rank() > 0 && tensor.dims()[0] == 0) {
    throw DataError({.what = "a batch without rows",
                     .hint = "Skip empty batches: the mean over no rows is not a number."});
  }
}

}  // namespace

void BatchCheck::check(const Step& step, std::span<const Port> ports,
                       std::span<const Tensor* const> fed) {
  for (std::size_t i = 0; i < ports.size(); ++i) check_target(step.loss, ports[i].name, *fed[i]);
  check_rows(step, ports, fed);
}

// One target or weight for each row: a formula would broadcast a single one over all. Inputs with
// the same name of a dimension and another size are no fault if the scores have these rows.
void BatchCheck::check_rows(const Step& step, std::span<const Port> ports,
                            std::span<const Tensor* const> fed) {
  std::vector<Dims> dims;
  for (const Tensor* tensor : fed) dims.push_back(tensor->dims());
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const LossInfo* const target = find_target(step.loss, ports[i].name);
    if (target == nullptr && ports[i].name != step.sample_weight) continue;
    try {
      runtime::check_one_size(ports, dims, i, 0);
    } catch (const ShapeError&) {
      const auto rows = rows_of_scores(step, target == nullptr ? step.loss : *target, ports, dims);
      // Rows that only a run shows are compared there; a single one would be broadcast.
      if (rows ? *rows != dims[i][0] : dims[i][0] == 1) throw;
    }
  }
  sizes_.look_at(ports, dims);
}

// For inputs of these shapes; nullopt: only a run shows it.
std::optional<std::int64_t> BatchCheck::rows_of_scores(const Step& step, const LossInfo& loss,
                                                       std::span<const Port> ports,
                                                       const std::vector<Dims>& dims) {
  if (score_rows_.scores == loss.scores && score_rows_.dims == dims) return score_rows_.rows;
  score_rows_ = {.scores = loss.scores, .dims = dims};
  ir::Value* const scores = step.working.graph->find(loss.scores);
  if (scores == nullptr) return std::nullopt;
  runtime::Executor executor = step.backend.executor(build_prediction(step.working, {scores}, {}));
  std::vector<Dims> needed;
  for (const Port& input : executor.inputs()) {
    const auto port = std::ranges::find(ports, input.name, &Port::name);
    if (port == ports.end()) return std::nullopt;
    needed.push_back(dims[static_cast<std::size_t>(port - ports.begin())]);
  }
  const auto found = executor.prepare(needed).planned_desc(0);
  if (found && found->dims.rank() > 0) score_rows_.rows = found->dims[0];
  return score_rows_.rows;
}

}  // namespace onnxgrad::train
