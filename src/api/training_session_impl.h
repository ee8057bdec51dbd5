#ifndef ONNXGRAD_API_TRAINING_SESSION_IMPL_H_
#define ONNXGRAD_API_TRAINING_SESSION_IMPL_H_

#include <atomic>

#include "api/model_impl.h"
#include "onnxgrad/training_session.h"
#include "train/session.h"

namespace onnxgrad {

struct TrainingSession::Impl {
  Impl(const Model& source_model, const Loss& loss, const Optimizer& optimizer,
       const TrainingOptions& options)
      : model(source_model), session(source_model.impl().source(), loss, optimizer, options) {}

  Model model;
  train::Session session;
  std::atomic<bool> busy{false};
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_API_TRAINING_SESSION_IMPL_H_
