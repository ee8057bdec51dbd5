#include "train/session/runner.h"

#include <utility>

#include "train/session/label_form.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {

Runner::Runner(std::shared_ptr<const ir::Model> model, const runtime::ExecutorOptions& options)
    : executor_(std::move(model), builtin_engine(), options),
      num_data_ports_(executor_.inputs().size()) {}

runtime::Execution& Runner::prepare_plan(const std::vector<Dims>& dims, const LossInfo& loss) {
  try {
    return executor_.prepare(dims);
  } catch (const ShapeError&) {
    check_places(loss, data_ports(), dims);
    throw;
  }
}

}  // namespace onnxgrad::train
