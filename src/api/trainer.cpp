#include "onnxgrad/trainer.h"

#include <atomic>

#include "api/call_guard.h"
#include "api/training_session_impl.h"
#include "onnxgrad/option_error.h"
#include "train/evaluator.h"
#include "train/fit_loop.h"
#include "train/targets.h"

namespace onnxgrad {

struct Trainer::Impl {
  explicit Impl(TrainingSession training_session) : session(std::move(training_session)) {}

  /// An automatic loss is settled by the head and the target: see target_asks_for_classes.
  void settle_loss(const Tensor& target);

  bool is_automatic = false;
  TrainingSession session;
  History history = {};
  std::atomic<bool> stop{false};
  api::Gate fitting;
};

static_assert(std::atomic<bool>::is_always_lock_free, "stop() is called from signal handlers");

void Trainer::Impl::settle_loss(const Tensor& target) {
  if (!is_automatic || session.steps() != 0) return;
  if (!train::target_asks_for_classes(session.loss(), target)) return;
  TrainingSession settled = session.impl().with_loss(SoftmaxCrossEntropy{});
  settled.continue_from(session);
  session = std::move(settled);
}

Trainer::Trainer(TrainingSession session) : impl_(std::make_unique<Impl>(std::move(session))) {}
Trainer::Trainer(const Model& model, const Loss& loss, const Optimizer& optimizer,
                 const TrainingOptions& options)
    : Trainer(TrainingSession(model, loss, optimizer, options)) {
  impl_->is_automatic = std::holds_alternative<AutoLoss>(loss.function);
}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

const LossInfo& Trainer::choose_loss(const Tensor& target) {
  const api::CallGuard guard(impl_->fitting);
  impl_->settle_loss(target);
  return impl_->session.loss();
}

const History& Trainer::fit(const Dataset& data, const FitOptions& options) {
  const api::CallGuard guard(impl_->fitting);
  impl_->settle_loss(data.target);
  const api::CallGuard session_guard(impl_->session.impl().busy);
  if (options.on_non_finite == OnNonFinite::kSkip) impl_->session.impl().session.guard_updates();
  train::FitLoop loop(impl_->session.impl().session, data, options, impl_->stop, impl_->history);
  loop.run();
  return impl_->history;
}

EvaluationResult Trainer::evaluate(const Dataset& data, std::int64_t batch_size) {
  const api::CallGuard guard(impl_->fitting, api::CallGuard::Kind::kFromCallback);
  impl_->settle_loss(data.target);
  const api::CallGuard session_guard(impl_->session.impl().busy,
                                     api::CallGuard::Kind::kFromCallback);
  train::Session& session = impl_->session.impl().session;
  if (batch_size < 1) {
    throw OptionError("batch_size is " + std::to_string(batch_size) + ", expected 1 or more");
  }
  train::Evaluator evaluator(
      session, train::prepare_data(session, session.evaluation_ports(), data, false), batch_size);
  return evaluator.run();
}

void Trainer::stop() noexcept { impl_->stop.store(true, std::memory_order_relaxed); }

void Trainer::reset() {
  const api::CallGuard guard(impl_->fitting);
  impl_->session.reset();
  impl_->history = {};
}

const History& Trainer::history() const { return impl_->history; }

TrainingSession& Trainer::session() { return impl_->session; }

const TrainingSession& Trainer::session() const { return impl_->session; }

}  // namespace onnxgrad
