#ifndef ONNXGRAD_API_TRAINING_SESSION_IMPL_H_
#define ONNXGRAD_API_TRAINING_SESSION_IMPL_H_

#include "api/call_guard.h"
#include "api/model_impl.h"
#include "onnxgrad/training_session.h"
#include "train/session.h"

namespace onnxgrad {

struct TrainingSession::Impl {
  Impl(const Model& source_model, const Loss& session_loss, const Optimizer& optimizer,
       const TrainingOptions& session_options)
      : model(api::untied(source_model, session_options.untie)),
        loss(session_loss),
        options(session_options),
        session(model.impl().training_source(), loss, optimizer, options) {}

  /// A session like this one with another loss function.
  TrainingSession with_loss(const LossFunction& function) const {
    Loss other = loss;
    other.function = function;
    return TrainingSession(model, other, session.optimizer(), options);
  }

  Model model;
  Loss loss;
  TrainingOptions options;
  train::Session session;
  api::Gate busy;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_API_TRAINING_SESSION_IMPL_H_
