#ifndef ONNXGRAD_TRAINER_H_
#define ONNXGRAD_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/augmentation.h"
#include "onnxgrad/data.h"
#include "onnxgrad/metrics.h"
#include "onnxgrad/schedules.h"
#include "onnxgrad/training_session.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// The record of an epoch, logged at its end.
struct EpochLog {
  std::int64_t epoch = 0;  ///< from 1
  double train_loss = 0;   ///< mean over the rows of the epoch, each before its update
  std::optional<double> val_loss = {};
  std::optional<double> val_accuracy = {};
  std::vector<std::pair<std::string, double>> val_metrics = {};  ///< FitOptions::metrics
  /// "train_loss_<output>" for each of several targets: its own loss, without its factor.
  std::vector<std::pair<std::string, double>> target_losses = {};
  std::optional<double> grad_norm = {};    ///< FitOptions::grad_norm: mean of the epoch's steps
  std::optional<double> noise_scale = {};  ///< FitOptions::noise_scale
  double learning_rate = 0;                ///< rate of the last step
  double seconds = 0;                      ///< duration of this epoch, including validation
  double rows_per_s = 0;                   ///< training throughput
  std::int64_t steps = 0;                  ///< steps since fit() began
  std::int64_t rows = 0;                   ///< rows trained on
  double data_wait_s = 0;                  ///< wait for rows of a DataSource
  bool is_best = false;                    ///< the best so far; see EarlyStopping::monitor
  // Times of several workers (of the epoch, since it was resumed):
  double network_wait_s = 0;       ///< wait for the others, mean of all workers
  std::int64_t slowest_rank = -1;  ///< the worker that waited least: others wait for it
  std::string slowest_host = {};
  double slowest_lag_s = 0;  ///< its computing time minus the mean of the others
};

struct StepLog {
  std::int64_t epoch = 0;  ///< from 1
  std::int64_t step = 0;   ///< counted in this fit(), from 1
  /// All steps of this fit(), with those of a resumed one; 0: the number of rows is not known yet.
  std::int64_t total_steps = 0;
  double loss = 0;
  std::optional<double> grad_norm = {};  ///< FitOptions::grad_norm
};

/// Stops when a number no longer improves.
struct EarlyStopping {
  std::int64_t patience = 10;  ///< epochs without improvement before stopping
  double min_delta = 1e-4;     ///< smallest change that counts as an improvement
  bool restore_best = true;    ///< end with the best weights (and optimizer state)
  /// Number to monitor: "train_loss", "val_loss", "val_accuracy" or "val_<metric>"; empty:
  /// val_loss, and train_loss without validation.
  std::string monitor = {};
  bool maximize = false;  ///< a larger number is better
};

/// Reaction of fit() to a loss that is NaN or infinite.
enum class OnNonFinite {
  /// Throws ConvergenceError naming epoch, step, batch and the first non-finite value with its
  /// node. The weights (and optimizer state) are the last finite ones, recovered by repeating
  /// steps from a snapshot taken at the start of the epoch (of the block for data in chunks); see
  /// FitOptions::snapshot_every_steps and MemoryReport::snapshots.
  kRaise,
  kStop,    ///< stop without an error; the message is the stop_reason
  kIgnore,  ///< continues
  kSkip,    ///< continues, but non-finite steps change nothing: the session is recompiled
            ///< as with TrainingOptions::skip_non_finite
};

/// Folder and frequency of the checkpoints of fit(): everything that it needs to continue as if it
/// had not been stopped. docs/checkpoints.md states what is guaranteed.
struct CheckpointOptions {
  /// A dedicated folder, created if needed. While fit() runs, no other fit() may use it.
  std::string folder = {};
  std::int64_t every_steps = 0;  ///< 0: at the end of each epoch
  std::int64_t keep = 3;         ///< number of newest checkpoints to keep
  bool keep_best = true;         ///< also keep the one of the best epoch
  /// Minimum age of the last checkpoint for one at the end of an epoch, so that short
  /// epochs do not wait for the disk. The best epoch is then the best one that was written.
  double min_seconds = 0;
};

/// The record of a checkpoint that was written, or could not be.
struct CheckpointLog {
  std::string path = {};
  std::string problem = {};  ///< reason for a failure; empty: it is on disk
};

/// Method of forming the batches of an epoch from rows in memory.
enum class Sampling {
  kRows,      ///< each row occurs once, in the order set by FitOptions::shuffle
  kWindows,   ///< ceil(N / batch_size) full batches of consecutive rows that begin at random
              ///< positions, read in place; rows can occur twice or not at all. All rows if the
              ///< batch size is N or more.
  kBalanced,  ///< rows are drawn, every class as often as the others
  kWeighted,  ///< rows are drawn, as often as their FitOptions::row_weights say
};

/// First rows of the batches of an epoch (from 0) with Sampling::kWindows, as fit() draws them for
/// `rows` rows: ceil(rows / batch_size) numbers in [0, rows - batch_size]; only 0 if a batch is
/// all rows. A pure function of its arguments. Throws: OptionError (rows or batch_size below 1).
std::vector<std::int64_t> window_starts(std::int64_t rows, std::int64_t batch_size,
                                        std::uint64_t seed, std::uint32_t epoch = 0);

/// A weight for the rows of each class, which multiplies their sample weights. The loss must take
/// these (Loss::sample_weight, and Loss::weigh_places if a row has several labels). It does not
/// apply to separate validation data.
struct ClassWeights {
  Tensor labels = {};                ///< [C], as TrainingSession::encode_target takes them
  std::vector<double> weights = {};  ///< one for each label; other classes count 1
  /// Uses N / (number of classes * number of labels of the class) instead. With a DataSource, all
  /// rows are read once before the first step.
  bool balanced = false;
};

struct FitOptions {
  std::int64_t epochs = 10;
  /// Rows of a batch. 0: 32, or all rows with L-BFGS, which requires them. kAsTheyCome: each chunk
  /// of a DataSource is a batch.
  std::int64_t batch_size = 0;
  static constexpr std::int64_t kAsTheyCome = -1;
  bool shuffle = true;  ///< false: batches are consecutive rows, read in place
  Sampling sampling = Sampling::kRows;
  /// With kBalanced and kWeighted: a row can be drawn more than once in an epoch. False: rows
  /// of larger weight come earlier, and those of weight 0 not at all.
  bool replacement = true;
  std::int64_t epoch_rows = 0;  ///< rows drawn in an epoch; 0: as many as there are
  /// A weight >= 0 for each row of the data [N], for kWeighted.
  std::vector<double> row_weights = {};
  /// Called before each epoch (from 1), with kWeighted: weights [N] of the rows from then on;
  /// empty: as before. Workers must return the same.
  std::function<std::vector<double>(std::int64_t epoch)> on_row_weights = {};
  /// Changes of the rows of each training batch, in this order.
  std::vector<Augmentation> augment = {};
  bool drop_last = false;  ///< true: skip a last batch that is smaller than the others
  std::uint64_t seed = 0;  ///< for shuffling and the validation split
  /// Fraction of the rows, in (0, 1), held out for validation: drawn by `seed`, stratified by
  /// class for classifiers. 0: none.
  double validation_fraction = 0;
  const Dataset* validation = nullptr;      ///< separate rows to validate on
  DataSource* validation_source = nullptr;  ///< separate rows, read in chunks
  std::int64_t validation_every = 1;        ///< epochs
  std::vector<Metric> metrics = {};         ///< computed on the validation rows
  std::optional<ClassWeights> class_weights = {};
  std::optional<EarlyStopping> early_stopping = {};
  /// Logs the Euclidean norm of all gradients together, before any clipping. (With L-BFGS, that
  /// of the last point tried.) The session is recompiled if this was not
  /// requested before.
  bool grad_norm = false;
  /// Logs the gradient noise scale tr(S) / |G|^2 (McCandlish et al., 2018), in rows, from the norms
  /// of gradients of single batches and of those that UpdateOptions::accumulate makes of several.
  bool noise_scale = false;
  bool keep_best = false;  ///< end with the best weights, as with EarlyStopping::restore_best
  bool discard = false;    ///< a trial: weights, optimizer state and steps are restored at the end
  /// Training ends with this step, if not before; 0: no limit.
  std::int64_t max_steps = 0;
  double max_seconds = 0;  ///< training ends at the first step that ends later; 0: no limit
  OnNonFinite on_non_finite = OnNonFinite::kRaise;
  /// Steps between two snapshots for kRaise and kStop, so that fewer steps are repeated. 0: only
  /// when an epoch, or a block of a DataSource, begins.
  std::int64_t snapshot_every_steps = 0;
  bool allow_nan = false;  ///< allow NaN and infinity in inputs
  /// Maximum size of the two blocks together that rows of a DataSource are collected in.
  std::int64_t buffer_bytes = std::int64_t{64} << 20;
  /// Learning rates, starting from the session's, which is restored after the fit. If the
  /// lengths in it depend on the number of steps, and a DataSource does not know its number of
  /// rows, all rows are read once before the first step.
  std::optional<Schedule> schedule = {};
  /// The learning rate of step `step` (from 0, of this fit()); empty: the schedule's.
  std::function<double(std::int64_t step)> learning_rate = {};
  /// Maximum number of epochs that the History keeps; 0: all. A longer fit() keeps every second,
  /// fourth, eighth, ... epoch, and always the first, the best and the newest one. This also bounds
  /// the history in a checkpoint.
  std::int64_t max_history = std::int64_t{1} << 16;
  bool keep_step_losses = false;  ///< in History::step_losses: 8 bytes for each step
  /// Called at the end of each epoch; true stops. Exceptions leave fit() with the session usable.
  std::function<bool(const EpochLog&)> on_epoch_end = {};
  /// Called after every `every_n_steps` steps; true stops.
  std::function<bool(const StepLog&)> on_step_end = {};
  std::int64_t every_n_steps = 0;  ///< 0: never
  /// Called after Trainer::interrupt(), in the thread of fit() and outside a step; true stops.
  /// Exceptions leave fit().
  std::function<bool()> on_interrupt = {};
  /// A checkpoint is also written when fit() ends, including by an exception or stop(), unless a
  /// kernel failed within a step. If one cannot be written, training continues and the History
  /// reports it.
  std::optional<CheckpointOptions> checkpoint = {};
  /// Continues from this checkpoint of a fit(), or from the newest complete one in this folder, bit
  /// for bit as the fit() that wrote it: same data and options (`epochs` may differ). Empty: starts
  /// from scratch.
  std::string resume = {};
  bool resume_if_any = false;  ///< start from scratch if there is no folder or no checkpoint in it
  /// Called after each checkpoint, and for each file that was skipped when resuming.
  std::function<void(const CheckpointLog&)> on_checkpoint = {};
};

struct History {
  std::vector<EpochLog> epochs;     ///< all, or as limited by FitOptions::max_history
  std::int64_t epoch_stride = 1;    ///< all epochs whose number is a multiple of it are present
  std::vector<double> step_losses;  ///< FitOptions::keep_step_losses: each before its update
  std::string stop_reason;          ///< empty: all epochs were done
  std::int64_t skipped_steps = 0;   ///< OnNonFinite::kSkip: losses that train_loss leaves out
  std::optional<std::int64_t> best_epoch = {};
  /// The epoch that the weights are from when fit() has ended: best_epoch where that one was
  /// restored, else the last one; none if fit() ended within an epoch, or has done none.
  std::optional<std::int64_t> kept_epoch = {};
  /// Suspicious findings: weights that the first epoch has not changed.
  std::vector<std::string> notes = {};
  std::string checkpoint_problem = {};  ///< reason for a missing last checkpoint; empty: it exists
};

/// Trains a session on a dataset: the epoch loop, shuffling, batches, validation, history. One
/// fit() at a time. fit() continues from the session's current state.
/// With an automatic loss, if the model's output is several plain columns and the target of the
/// session's first steps is class labels (integers or strings, one per row), the columns are taken
/// as scores: the loss is softmax cross-entropy.
class Trainer {
 public:
  /// The session is shared: it is the same before, during and after a fit().
  explicit Trainer(std::shared_ptr<TrainingSession> session);
  explicit Trainer(TrainingSession session);
  explicit Trainer(const Model& model, const Loss& loss, const Optimizer& optimizer = Adam{},
                   const TrainingOptions& options = {});
  /// Uses the training information of the model's file if it has any; else Loss{} and Adam{}.
  explicit Trainer(const Model& model, const TrainingOptions& options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// Decides an automatic loss from such a target, and other properties that depend on labels
  /// (Loss::class_axis), as the first fit() does; returns the loss. Keeps weights and optimizer
  /// state. Throws: Error (fit() is running).
  LossInfo choose_loss(const Tensor& target);
  /// Decides by the labels of `data`.
  LossInfo choose_loss(const Dataset& data);
  /// Decides by the first chunk of `source`, unless the loss is decided already: then nothing is
  /// read. Returns the source for fit(), which still has that chunk; it refers to `source`.
  /// nullptr: nothing was read.
  std::unique_ptr<DataSource> choose_loss(DataSource& source);
  /// All data is checked before the first step. Input arrays that need no conversion are read in
  /// place and must not change meanwhile. Row order in epoch e is a pure function of (seed, e).
  /// Throws: OptionError, DataError (NaN: column and row; label: value and row; dtype, number of
  /// rows or columns), ShapeError, ConvergenceError, CheckpointError (nothing to resume from; a
  /// checkpoint of another model, other data or options, naming the first difference; a folder that
  /// cannot be used).
  const History& fit(const Dataset& data, const FitOptions& options = {});
  const History& fit(const Tensor& x, const Tensor& y, const FitOptions& options = {}) {
    return fit(Dataset{.inputs = {{.name = "", .tensor = x}}, .target = y}, options);
  }
  /// Trains on rows that come in chunks, read in a separate thread. Each chunk is checked on
  /// arrival: an error in a later chunk leaves the weights of the last step. With batch_size
  /// kAsTheyCome each chunk is one batch, in order of arrival. Otherwise rows are collected in two
  /// blocks, of `buffer_bytes` together; shuffling takes the chunks in random order, if the source
  /// supports it, and then the rows of each block. A validation fraction is drawn row by row, and
  /// read in a separate pass.
  const History& fit(DataSource& source, const FitOptions& options = {});
  /// Computes loss and accuracy over all rows, in batches. `allow_nan` as in FitOptions.
  EvaluationResult evaluate(const Dataset& data, std::int64_t batch_size = 256,
                            const std::vector<Metric>& metrics = {}, bool allow_nan = false);
  EvaluationResult evaluate(DataSource& source, std::int64_t batch_size = 256,
                            const std::vector<Metric>& metrics = {}, bool allow_nan = false);

  /// Makes a running fit() end after its current step. Lock-free: callable from any thread, signal
  /// handler or callback.
  void stop() noexcept;
  /// Makes a running fit(), or the next one, call FitOptions::on_interrupt after its current step,
  /// or while it waits for rows. Lock-free, like stop().
  void interrupt() noexcept;

  /// Initial weights, empty optimizer state, empty history.
  void reset();
  /// History of the last fit().
  const History& history() const;
  TrainingSession& session();
  const TrainingSession& session() const;
  Model trained_model(WeightKind kind = WeightKind::kEvaluated) const {
    return session().trained_model(kind);
  }
  /// trained_model(kind).save(path).
  void save(const std::string& path, WeightKind kind = WeightKind::kEvaluated) const {
    trained_model(kind).save(path);
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAINER_H_
