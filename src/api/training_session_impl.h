#ifndef ONNXGRAD_API_TRAINING_SESSION_IMPL_H_
#define ONNXGRAD_API_TRAINING_SESSION_IMPL_H_

#include "api/call_guard.h"
#include "api/model_impl.h"
#include "onnxgrad/training_session.h"
#include "train/graphs/file_training.h"
#include "train/session/session.h"

namespace onnxgrad {

namespace api {

/// The graph of `model` with the changes that opened the batch of its working copy; `model` itself
/// if there was nothing to open. Throws: ModelError (the file has a node in another form).
Model with_open_batch(const Model& model, const train::BatchForm& form);

}  // namespace api

struct TrainingSession::Impl {
  Impl(const Model& source_model, const Loss& loss, const Optimizer& optimizer,
       const TrainingOptions& options)
      : model(api::untied(source_model, options.untie)),
        session(model.impl().training_source(), loss, optimizer, options) {}
  /// Trains as the file describes.
  Impl(const Model& source_model, const onnx_io::FileModel& file, const TrainingOptions& options)
      : model(source_model),
        session(file,
                std::make_shared<train::FileTraining>(file, options.engine.seed,
                                                      model.impl().operators),
                options) {}

  Model model;
  train::Session session;
  api::Gate busy;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_API_TRAINING_SESSION_IMPL_H_
