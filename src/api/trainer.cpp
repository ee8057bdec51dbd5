#include "onnxgrad/trainer.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "api/call_guard.h"
#include "api/training_session_impl.h"
#include "onnxgrad/option_error.h"
#include "onnxgrad/tables.h"
#include "train/data/augment.h"
#include "train/data/block_reader.h"
#include "train/data/dataset.h"
#include "train/data/sampler.h"
#include "train/data/stop_flag.h"
#include "train/fit/evaluator.h"
#include "train/fit/fit_loop.h"
#include "train/fit/options.h"

namespace onnxgrad {

struct Trainer::Impl {
  explicit Impl(std::shared_ptr<TrainingSession> training_session)
      : session(std::move(training_session)) {}

  train::Session& compiled() const { return session->impl().session; }
  api::Gate& busy() const { return session->impl().busy; }
  /// Compiles the step that the options require.
  void compile_for(const FitOptions& options) const;
  /// Runs the epoch loop on rows in memory, or on a source of them.
  template <class Rows>
  void run_loop(Rows& rows, const FitOptions& options);

  std::shared_ptr<TrainingSession> session;
  History history = {};
  train::StopFlag stop;
  api::Gate fitting;
};

namespace {

/// A source whose first chunk has been read. If it can only be read once, that chunk is replayed.
class PeekedSource : public DataSource {
 public:
  explicit PeekedSource(DataSource& source) : source_(source) {
    source_.start({});
    first_ = source_.next();
  }
  const std::optional<Dataset>& first() const { return first_; }
  std::optional<std::int64_t> num_rows() const override { return source_.num_rows(); }
  void start(const Pass& pass) override {
    const bool is_first = !std::exchange(has_started_, true);
    if (is_first && !source_.can_start_again()) return;
    first_.reset();
    source_.start(pass);
  }
  std::optional<Dataset> next() override {
    return first_ ? std::exchange(first_, std::nullopt) : source_.next();
  }
  bool can_start_again() const override { return source_.can_start_again(); }
  bool take_rows(std::int64_t begin, std::int64_t end) override {
    return source_.take_rows(begin, end);
  }
  std::vector<Piece> pieces() const override { return source_.pieces(); }
  std::unique_ptr<DataSource> open_pieces(const std::vector<std::int64_t>& numbers) const override {
    return source_.open_pieces(numbers);
  }

 private:
  DataSource& source_;
  std::optional<Dataset> first_;
  bool has_started_ = false;
};

// Decides the loss by the first chunk of `source`, if it waits for labels, and returns a source
// that gives that chunk again; nullptr: it does not wait.
std::unique_ptr<PeekedSource> settle_by_first_chunk(train::Session& session, DataSource& source) {
  if (!train::awaits_labels(session)) return nullptr;
  auto peeked = std::make_unique<PeekedSource>(source);
  if (peeked->first()) train::settle_by_labels(session, *peeked->first());
  return peeked;
}

void check_batch_size(std::int64_t batch_size) {
  if (batch_size >= 1) return;
  throw OptionError({.what = "batch_size is " + std::to_string(batch_size) + ", expected 1 or more",
                     .hint = "Give a number of rows, such as 32."});
}

}  // namespace

void Trainer::Impl::compile_for(const FitOptions& options) const {
  if (options.schedule || options.learning_rate) compiled().expect_learning_rate();
  if (options.on_non_finite == OnNonFinite::kSkip) compiled().guard_updates();
  compiled().log_gradient_norm(options.grad_norm);
  compiled().log_noise_scale(options.noise_scale);
  compiled().read_mixed_targets(train::mixes_targets(options.augment));
}

template <class Rows>
void Trainer::Impl::run_loop(Rows& rows, const FitOptions& options) {
  compile_for(options);
  try {
    train::FitLoop loop(compiled(), rows, options, stop, history);
    loop.run();
  } catch (...) {
    compiled().read_mixed_targets(false);
    throw;
  }
  compiled().read_mixed_targets(false);
}

Trainer::Trainer(std::shared_ptr<TrainingSession> session)
    : impl_(std::make_unique<Impl>(std::move(session))) {}
Trainer::Trainer(TrainingSession session)
    : Trainer(std::make_shared<TrainingSession>(std::move(session))) {}
Trainer::Trainer(const Model& model, const Loss& loss, const Optimizer& optimizer,
                 const TrainingOptions& options)
    : Trainer(std::make_shared<TrainingSession>(model, loss, optimizer, options)) {}
Trainer::Trainer(const Model& model, const TrainingOptions& options)
    : Trainer(std::make_shared<TrainingSession>(
          has_training_info(model) ? TrainingSession(model, options)
                                   : TrainingSession(model, Loss{}, Adam{}, options))) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

LossInfo Trainer::choose_loss(const Tensor& target) {
  return choose_loss(Dataset{.inputs = {}, .target = target});
}

LossInfo Trainer::choose_loss(const Dataset& data) {
  const api::CallGuard guard(impl_->fitting);
  const api::CallGuard session_guard(impl_->busy());
  train::settle_by_labels(impl_->compiled(), data);
  return impl_->session->loss();
}

std::unique_ptr<DataSource> Trainer::choose_loss(DataSource& source) {
  const api::CallGuard guard(impl_->fitting);
  const api::CallGuard session_guard(impl_->busy());
  return settle_by_first_chunk(impl_->compiled(), source);
}

std::vector<std::int64_t> window_starts(std::int64_t rows, std::int64_t batch_size,
                                        std::uint64_t seed, std::uint32_t epoch) {
  if (rows < 1 || batch_size < 1) {
    throw OptionError({.what = "windows of " + std::to_string(batch_size) + " rows out of " +
                               std::to_string(rows) + ": both must be 1 or more",
                       .hint = "Give the numbers of rows of the data and of a batch."});
  }
  const std::int64_t size = std::min(rows, batch_size);
  std::vector<std::int64_t> order(
      static_cast<std::size_t>(train::count_windows(rows, size) * size));
  train::draw_windows(seed, epoch, rows, size, order);
  std::vector<std::int64_t> starts;
  for (std::size_t i = 0; i < order.size(); i += static_cast<std::size_t>(size)) {
    starts.push_back(order[i]);
  }
  return starts;
}

const History& Trainer::fit(const Dataset& data, const FitOptions& options) {
  const api::CallGuard guard(impl_->fitting);
  const api::CallGuard session_guard(impl_->busy());
  train::settle_by_labels(impl_->compiled(), data);
  impl_->run_loop(data, options);
  return impl_->history;
}

const History& Trainer::fit(DataSource& source, const FitOptions& options) {
  const api::CallGuard guard(impl_->fitting);
  const api::CallGuard session_guard(impl_->busy());
  const auto peeked = settle_by_first_chunk(impl_->compiled(), source);
  DataSource& rows = peeked ? *peeked : source;
  impl_->run_loop(rows, options);
  return impl_->history;
}

EvaluationResult Trainer::evaluate(const Dataset& data, std::int64_t batch_size,
                                   const std::vector<Metric>& metrics, bool allow_nan) {
  const api::CallGuard guard(impl_->fitting, api::CallGuard::Kind::kFromCallback);
  const api::CallGuard session_guard(impl_->busy(), api::CallGuard::Kind::kFromCallback);
  train::Session& session = impl_->compiled();
  check_batch_size(batch_size);
  train::settle_by_labels(session, data);
  const auto evaluation = session.evaluation(train::metrics_need_scores(metrics, session.loss()));
  train::Evaluator evaluator(evaluation, session.loss(), metrics, session.workers());
  return evaluator.run(
      train::prepare_data(session.schema(), evaluation->data_ports(), data, allow_nan), batch_size);
}

EvaluationResult Trainer::evaluate(DataSource& source, std::int64_t batch_size,
                                   const std::vector<Metric>& metrics, bool allow_nan) {
  const api::CallGuard guard(impl_->fitting, api::CallGuard::Kind::kFromCallback);
  const api::CallGuard session_guard(impl_->busy(), api::CallGuard::Kind::kFromCallback);
  train::Session& session = impl_->compiled();
  check_batch_size(batch_size);
  const auto peeked = settle_by_first_chunk(session, source);
  DataSource& rows = peeked ? *peeked : source;
  if (session.batch().fixed_rows() > 0) batch_size = session.batch().fixed_rows();
  const auto evaluation = session.evaluation(train::metrics_need_scores(metrics, session.loss()));
  train::Evaluator evaluator(evaluation, session.loss(), metrics, session.workers());
  const train::OwnRange own(rows, session.workers());
  if (own.is_part()) evaluator.take_own_rows();
  train::BlockReader reader(rows,
                            [&](const Dataset& chunk) {
                              return train::prepare_data(session.schema(), evaluation->data_ports(),
                                                         chunk, allow_nan);
                            },
                            {}, {.batch_size = batch_size});
  train::StopFlag stop;
  return evaluator.run(reader, batch_size, stop).value();
}

std::vector<DescriptionInfo> fit_option_table() { return train::fit_option_rows().infos(); }

FitOptions make_fit_options(std::string_view type, const FieldValues& options) {
  return std::get<FitOptions>(train::fit_option_rows().make(type, options));
}

void Trainer::stop() noexcept { impl_->stop.stop(); }

void Trainer::interrupt() noexcept { impl_->stop.interrupt(); }

void Trainer::reset() {
  const api::CallGuard guard(impl_->fitting);
  TrainingSession& session = *impl_->session;
  session.reset();
  impl_->history = {};
}

const History& Trainer::history() const { return impl_->history; }

TrainingSession& Trainer::session() { return *impl_->session; }

const TrainingSession& Trainer::session() const { return *impl_->session; }

}  // namespace onnxgrad
