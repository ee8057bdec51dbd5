#include "onnxgrad/model_forms.h"

#include <memory>
#include <utility>

#include "api/model_impl.h"
#include "api/training_session_impl.h"
#include "train/graphs/training_mode.h"
#include "train/open_batch/batch_proof.h"
#include "train/open_batch/open_batch.h"

namespace onnxgrad {
namespace {

constexpr const char* kExportHint =
    "Export the model with a dynamic batch, in PyTorch dynamic_shapes={\"x\": {0: \"batch\"}}.";

[[noreturn]] void refuse_opening(const std::string& obstacle) {
  throw ModelError(
      {.what = "the batch dimension cannot be opened: " + obstacle, .hint = kExportHint});
}

}  // namespace

namespace api {

Model with_open_batch(const Model& model, const train::BatchForm& form) {
  if (!form.is_opened()) return model;
  return wrap(train::open_file_graph(*model.impl().file_graph(), form));
}

}  // namespace api

Model open_batch(const Model& model) {
  const auto working = train::in_inference_form(model.impl().working());
  const train::BatchForm form = train::open_batch(working);
  if (form.rows == 0) return model;
  if (!form.obstacle.empty()) refuse_opening(form.obstacle);
  Model opened = api::with_open_batch(model, form);
  std::string difference;
  try {
    const auto copy = train::in_inference_form(opened.impl().working());
    difference = train::disprove(working, copy, form.rows, form.inputs);
  } catch (const Error& error) {  // e.g. an output that the working copy has in another form
    difference = error.problem().what;
  }
  if (!difference.empty()) refuse_opening(difference);
  return opened;
}

Model to_inference(const Model& model) {
  ir::Model graph = ir::clone(*model.impl().file_graph());
  if (!train::leave_training(graph)) return model;
  return api::wrap(std::move(graph));
}

}  // namespace onnxgrad
